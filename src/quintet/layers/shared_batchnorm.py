"""BatchNorm over the batch of all processes, also on CPU (torch's own SyncBatchNorm is for GPUs only)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet import processes


class SharedBatchNorm(nn.Module):
    """Takes the place (and the parameters) of a BatchNorm where several processes train: global statistics."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, local: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps, self.momentum = local.eps, local.momentum
        self.weight, self.bias = local.weight, local.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(local, name))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) or (n, d, ...)."""
        if x.dtype in (torch.bfloat16, torch.float16):  # sums and counts want float32, as in torch's own
            return self.forward(x.float()).to(x.dtype)
        shape = (1, -1, *[1] * (x.dim() - 2))
        if self.training:
            others = [0, *range(2, x.dim())]
            size = x.new_tensor([x.numel() / x.shape[1]])
            sums = processes.add_up(torch.cat([x.sum(others), size]))  # (d + 1,)
            count = sums[-1].detach()
            mean = sums[:-1] / count
            squares = processes.add_up((x - mean.view(shape)).square().sum(others))  # (d,)
            variance = squares / count
            self._track(mean.detach(), variance.detach(), count)
        else:
            mean, variance = self.running_mean, self.running_var
        scaled = (x - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        return scaled * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        self.num_batches_tracked += 1
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), rate)


def share_batchnorms(module: nn.Module) -> None:
    """Replace every BatchNorm inside `module`, in place. With one process nothing changes."""
    if processes.count() == 1:
        return
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(module, name, SharedBatchNorm(child))
        else:
            share_batchnorms(child)
