"""Reasoning over the relations between the regions of a picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.layers.masked_batchnorm import masked_batchnorm


class RegionRelation(nn.Module):
    """One residual block of graph convolution over all pairs of regions (VSRN Eq. 2 and 3).

        R = theta(V) phi(V)^T / N          affinity of every pair of regions, no softmax
        V* = BatchNorm(project(R g(V))) + V

    N is the number of real regions of a picture: padded ones neither give nor take, and stay out of the statistics of
    the normalisation. That starts with gain and bias 0, so that a new block leaves the regions as they are.

    >>> block = RegionRelation(4)
    >>> regions = torch.randn(2, 3, 4)
    >>> torch.equal(block(regions), regions)
    True
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.g = nn.Linear(dim, dim)
        self.theta = nn.Linear(dim, dim)
        self.phi = nn.Linear(dim, dim)
        self.project = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(self, regions: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L, d) and a mask (n, L), True where a region is real -> (n, L, d), padded regions zero."""
        values = self.g(regions)  # (n, L, d)
        counts = torch.full((len(regions), 1, 1), regions.shape[1], device=regions.device)
        if mask is not None:
            values = values * mask[..., None]
            counts = mask.sum(dim=1).clamp(min=1)[:, None, None]  # (n, 1, 1)
        affinity = self.theta(regions) @ self.phi(regions).transpose(1, 2) / counts  # (n, L, L)
        change = self._normalise(self.project(affinity @ values), mask)  # (n, L, d)
        related = regions + change
        return related if mask is None else related * mask[..., None]

    def _normalise(self, regions: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or not self.training:  # kept statistics are those of real regions already
            return self.norm(regions.flatten(0, 1)).view_as(regions)  # (n, L, d)
        return masked_batchnorm(self.norm, regions, mask)
