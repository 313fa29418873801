"""BatchNorm over the real rows of a padded batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def masked_batchnorm(norm: nn.Module, rows: Tensor, real: Tensor) -> Tensor:
    """What `norm` makes of the real rows of (..., d); zeros where `real` (...) is False.

    Padding enters neither the statistics of the batch nor those that are kept. A norm in evaluation mode (a frozen one)
    uses what it has kept, and keeps nothing. Every shape is known beforehand: the
    rows are weighed, not picked out, so a GPU need not be asked how many there are.

    >>> norm = nn.BatchNorm1d(1)
    >>> masked_batchnorm(norm, torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([True, True, False])).round().tolist()
    [[-1.0], [1.0], [0.0]]
    """
    if not norm.training:
        return norm(rows.flatten(0, -2)).view_as(rows) * real[..., None]
    if not isinstance(norm, nn.BatchNorm1d):  # its statistics are of several processes (`SharedBatchNorm`)
        normalised = torch.zeros_like(rows)
        normalised[real] = norm(rows[real]).to(rows.dtype)
        return normalised
    wide = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
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
