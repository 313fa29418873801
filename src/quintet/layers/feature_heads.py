"""What stands between a CNN's pooled feature and the common space of Dual-Path (Fig. 2)."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


def two_layer_head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """fc, BatchNorm, ReLU, fc: the paper's. The first fc has no bias, which its BatchNorm would take away again."""
    return nn.Sequential(
        _linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), _linear(hidden, outputs, bias=True)
    )


class ReleasedHead(nn.Module):
    """fc, BatchNorm and ReLU for each of `widths`; what is measured is taken before the last ReLU (released code)."""

    def __init__(self, inputs: int, *widths: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList(_linear(a, b, bias=False) for a, b in pairwise((inputs, *widths)))
        self.norm = nn.ModuleList(nn.BatchNorm1d(width) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) -> (n, last width)."""
        last = len(self.linear) - 1
        for number, (linear, norm) in enumerate(zip(self.linear, self.norm, strict=True)):
            x = norm(linear(x))
            if number < last or self.training:
                x = F.relu(x)
        return x


def _linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.kaiming_normal_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
