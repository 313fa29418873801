"""The triplet loss with distance-weighted sampling of negatives.

Wu, Manmatha, Smola, Krähenbühl: Sampling Matters in Deep Embedding Learning, ICCV 2017.

On a sphere in many dimensions nearly all points are about sqrt(2) apart. A negative is drawn with probability inverse
to the density of its distance, so all distances are equally likely and not only the uninformative ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def distance_weights(
    scores: Tensor, candidate: Tensor, *, dim: int, nearest: float = 0.5, farthest: float | None = 1.7
) -> Tensor:
    """(n, m): the probability of each candidate for the anchor of its row. Rows without candidates sum to 0.

    `scores` are cosines of unit vectors of `dim` dimensions, so that a distance is x = sqrt(2 - 2 s). A weight is one
    over the density of x on the sphere,

        log w(x) = (2 - dim) log x - (dim - 3) / 2 log(1 - x^2 / 4),

    Distances below `nearest` are raised to it, or noisy samples would win. Candidates at `farthest` or beyond are never
    drawn, because the weight rises again towards opposite points.

    >>> candidate = torch.tensor([[False, True, True, True]])
    >>> weights = distance_weights(torch.tensor([[0.9, 0.5, 0.0, -0.9]]), candidate, dim=64)
    >>> weights[0].round(decimals=3).tolist()
    [0.0, 1.0, 0.0, 0.0]
    """
    if dim < 3:
        raise ValueError(f"the density of distances needs at least 3 dimensions, got {dim}")
    if not 0 < nearest < 2 or (farthest is not None and farthest <= nearest):
        raise ValueError(f"distances lie between 0 and 2, and nearest below farthest; got {nearest} and {farthest}")
    distance = (2 - 2 * scores.detach()).clamp(min=nearest**2).sqrt()  # (n, m)
    if farthest is not None:
        candidate = candidate & (distance < farthest)
    # Opposite points would have an infinite weight.
    log_gap = (1 - distance.square() / 4).clamp(min=torch.finfo(distance.dtype).eps).log()
    log_weights = (2 - dim) * distance.log() - (dim - 3) / 2 * log_gap
    log_weights = log_weights.masked_fill(~candidate, -math.inf)
    highest = log_weights.amax(dim=1, keepdim=True).clamp(
        min=torch.finfo(distance.dtype).min
    )  # finite, also in empty rows
    weights = (log_weights - highest).exp()
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(distance.dtype).tiny)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """(n, k): for each of k numbers a row has in [0, 1), the column drawn with the weights (n, m) of that row.

    A column of weight 0 is never drawn, except in rows of zeros.

    >>> draw(torch.tensor([[0.25, 0.0, 0.75]]), torch.tensor([[0.1, 0.3, 0.99]])).tolist()
    [[0, 2, 2]]
    """
    cumulative = weights.cumsum(dim=1).contiguous()  # (n, m)
    found = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)  # (n, k)
    column = torch.arange(weights.shape[1], device=weights.device)
    last = (column * (weights > 0)).amax(dim=1, keepdim=True)  # rounding may point past the last one with a weight
    return torch.minimum(found, last)


def sampled_triplet(
    scores: Tensor,
    positive: Tensor,
    uniform: Tensor,
    *,
    dim: int,
    margin: float = 0.2,
    nearest: float = 0.5,
    farthest: float | None = 1.7,
) -> tuple[Tensor, Tensor]:
    """The cost of each row's anchor (n,), and which rows have no candidate at all (n,) bool and cost nothing.

    Every positive column of an anchor makes one triplet with a negative of its own. `positive` is (n, m) bool, and all
    other columns are negative. `uniform` (n, m) has a random number in [0, 1) for each positive.

    >>> costs, without = sampled_triplet(
    ...     torch.tensor([[0.5, 0.4], [0.1, 0.5]]), torch.eye(2).bool(), torch.rand(2, 2), dim=8
    ... )
    >>> costs, without
    (tensor([0.1000, 0.0000]), tensor([False, False]))
    """
    weights = distance_weights(scores, ~positive, dim=dim, nearest=nearest, farthest=farthest)
    without = weights.sum(dim=1) == 0  # (n,)
    negative = scores.gather(1, draw(weights, uniform))  # (n, m): the score of the negative drawn for each positive
    costs = (margin + negative - scores).clamp(min=0)
    return costs.masked_fill(~positive | without[:, None], 0).sum(dim=1), without
