"""From features of regions or grid cells to the matcher's space."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.layers.normalize import masked_batchnorm


class ChannelDropout(nn.Module):
    """Dropout of the same channels in all fragments of an image.

    A channel that is dropped in one fragment only is still visible in the others, and their mean hardly changes.

    >>> hidden = ChannelDropout(0.5)(torch.ones(2, 3, 8))
    >>> bool((hidden == hidden[:, :1]).all())
    True
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"the dropout probability must be in [0, 1), got {probability}")
        self.probability = probability

    def forward(self, fragments: Tensor) -> Tensor:
        """(n, L, d), or pooled (n, d)."""
        if not self.training or not self.probability:
            return fragments
        kept = fragments.new_ones(len(fragments), *(1 for _ in fragments.shape[1:-1]), fragments.shape[-1])
        return fragments * F.dropout(kept, self.probability)  # (n, 1, d)


class RegionProjection(nn.Module):
    """A linear map of every fragment, optionally with a residual MLP beside it. Not normalised.

    With `mlp`, VSE-infinity's head: Linear(in -> dim) + MLP(in -> dim // 2, BatchNorm, ReLU, -> dim). Its BatchNorm
    looks at real fragments only, so padding changes nothing (HREM's code, with the same head, counts padded rows too).
    `dropout` drops channels of an image in training (`ChannelDropout`); none of the papers has it.

    Parameters carry the authors' names: `fc.*`, `mlp.layers.{0,1}.*`, `mlp.bns.0.*`.

    >>> RegionProjection(8, 4)(torch.zeros(2, 3, 8)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, in_dim: int, dim: int, mlp: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = ChannelDropout(dropout)
        self.in_dim = in_dim
        self.dim = dim
        self.fc = xavier_linear(in_dim, dim)
        self.mlp = FragmentMLP(in_dim, max(dim // 2, 1), dim) if mlp else None

    def forward(self, fragments: Tensor, mask: Tensor | None = None) -> Tensor:
        """(..., in_dim) -> (..., dim); fragments outside `mask` (...) come out as zeros."""
        if fragments.shape[-1] != self.in_dim:
            raise ValueError(f"the fragments have {fragments.shape[-1]} channels, this projection takes {self.in_dim}")
        fragments = self.dropout(fragments)
        projected = self.fc(fragments)  # (..., dim)
        if self.mlp is not None:
            projected = projected + self.mlp(fragments, mask)
        return projected if mask is None else projected.masked_fill(~mask[..., None], 0)


class FragmentMLP(nn.Module):
    """Linear, BatchNorm over the real fragments of the batch, ReLU, Linear."""

    def __init__(self, in_dim: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(in_dim, hidden), nn.Linear(hidden, dim)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(hidden)])

    def forward(self, fragments: Tensor, mask: Tensor | None = None) -> Tensor:
        """(..., in_dim) -> (..., dim); the values at padding are meaningless."""
        hidden = self.layers[0](fragments)  # (..., hidden)
        if mask is None or not self.training:  # running statistics are of real fragments already
            normalised = self.bns[0](hidden.flatten(0, -2)).view_as(hidden)
        else:
            normalised = masked_batchnorm(self.bns[0], hidden, mask)
        return self.layers[1](torch.relu(normalised))


def xavier_linear(in_dim: int, dim: int) -> nn.Linear:
    """Weights uniform(-r, r) with r = sqrt(6 / (in + out)), bias zero: the initialisation of every image head."""
    linear = nn.Linear(in_dim, dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
