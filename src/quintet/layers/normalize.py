"""Unit length in the two forms of the published methods, BatchNorm over all processes, and half precision to float32.

Torch's own SyncBatchNorm is for GPUs only; `SharedBatchNorm` also works on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet import distributed

HALF = (torch.float16, torch.bfloat16)


def widen(tensor: Tensor) -> Tensor:
    """Half precision to float32; wider types stay.

    Under autocast vectors come in half precision, which is too coarse for margins, ranks and long sums.
    """
    return tensor.float() if tensor.dtype in HALF else tensor


def l2norm(x: Tensor, dim: int = -1, eps: float = 1e-8) -> Tensor:
    """Divide by the Euclidean length along `dim`.

    With `eps` above zero, x / (|x| + eps): SCAN, BFAN, SAEM, VSE-infinity and HREM. With `eps=0`, x / |x|: VSE++, VSRN
    and AOQ; there a vector of zeros stays zero, where the authors' code gives NaN. The gradient at zero is finite in
    both. Half precision is measured in float32, where 1e-8 is not rounded away.

    >>> l2norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), eps=0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    length = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float32 if x.dtype in HALF else None)
    divisor = length + eps if eps > 0 else length.masked_fill(length == 0, 1.0)
    return (x / divisor).to(x.dtype)


def masked_batchnorm(norm: nn.Module, rows: Tensor, real: Tensor) -> Tensor:
    """`norm` of the real rows of (..., d); zeros where `real` (...) is False.

    Padding enters neither the batch statistics nor the running ones. In evaluation mode the running statistics are used
    and left unchanged. Rows are weighted, not selected, so all shapes are known and the GPU is not waited for.

    >>> norm = nn.BatchNorm1d(1)
    >>> masked_batchnorm(norm, torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([True, True, False])).round().tolist()
    [[-1.0], [1.0], [0.0]]
    """
    if not norm.training:
        return norm(rows.flatten(0, -2)).view_as(rows) * real[..., None]
    if not isinstance(norm, nn.BatchNorm1d):  # a `SharedBatchNorm`
        normalised = torch.zeros_like(rows)
        normalised[real] = norm(rows[real]).to(rows.dtype)
        return normalised
    wide = widen(rows)
    weight = real[..., None].to(wide.dtype)  # (..., 1)
    others = list(range(rows.dim() - 1))
    count = weight.sum().clamp(min=1)
    mean = (wide * weight).sum(others) / count  # (d,)
    centred = (wide - mean) * weight
    variance = centred.square().sum(others) / count  # (d,)
    _track(norm, mean.detach(), variance.detach(), count)
    normalised = centred * torch.rsqrt(variance + norm.eps)
    if norm.affine:
        normalised = (normalised * norm.weight + norm.bias) * weight
    return normalised.to(rows.dtype)


@torch.no_grad()
def _track(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked += 1
    rate = 1 / norm.num_batches_tracked.to(mean.dtype) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), rate)
    unbiased = variance * count / (count - 1).clamp(min=1)
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), rate)


class SharedBatchNorm(nn.Module):
    """Replaces a BatchNorm and keeps its parameters and buffers; the statistics are those of all processes."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, local: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps, self.momentum = local.eps, local.momentum
        self.weight, self.bias = local.weight, local.bias  # None with affine=False
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(local, name))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) or (n, d, ...)."""
        if x.dtype in HALF:  # sums and counts in float32, as in torch's own
            return self.forward(x.float()).to(x.dtype)
        shape = (1, -1, *[1] * (x.dim() - 2))
        if self.training:
            others = [0, *range(2, x.dim())]
            size = x.new_tensor([x.numel() / x.shape[1]])
            sums = distributed.all_reduce_with_gradient(torch.cat([x.sum(others), size]))  # (d + 1,)
            count = sums[-1].detach()
            mean = sums[:-1] / count
            squares = distributed.all_reduce_with_gradient((x - mean.view(shape)).square().sum(others))  # (d,)
            variance = squares / count
            self._track(mean.detach(), variance.detach(), count)
        else:
            mean, variance = self.running_mean, self.running_var
        normalised = (x - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is None or self.bias is None:
            return normalised
        return normalised * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        self.num_batches_tracked += 1
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), rate)


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, SharedBatchNorm)


def share_batchnorms(module: nn.Module) -> None:
    """Replace every BatchNorm inside `module`, in place. With one process nothing changes."""
    if distributed.world_size() == 1:
        return
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(module, name, SharedBatchNorm(child))
        else:
            share_batchnorms(child)
