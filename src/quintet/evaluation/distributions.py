"""How similar right and wrong pairs are, and how much the two overlap (Dual-Path, Fig. 5 and Eq. 10)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.data.corpus import Split
from quintet.errors import QuintetError
from quintet.evaluation.ranks import BLOCK, ScoreBlock, group_codes
from quintet.evaluation.scoring import Member, member_scores, whole_tiles
from quintet.protocols import evaluation_mode

COSINES = (-1.0, 1.0)
ROUNDING = 1e-4  # a cosine computed in float32 may leave [-1, 1] by so much, and is still a cosine
BINS = 200  # of width 0.01 over the range of cosines; the paper does not say how finely it counts


@dataclass(frozen=True)
class Similarities:
    """Histograms of the scores of all right pairs and of all wrong ones, over the same bins."""

    edges: np.ndarray  # (bins + 1,)
    positive: np.ndarray  # (bins,) how many right pairs score in each bin
    negative: np.ndarray  # (bins,) how many wrong ones
    positive_mean: float
    positive_std: float
    negative_mean: float
    negative_std: float

    @property
    def densities(self) -> tuple[np.ndarray, np.ndarray]:
        """P and Q of Eq. 10: each integrates to one."""
        width = np.diff(self.edges)
        return self.positive / self.positive.sum() / width, self.negative / self.negative.sum() / width

    @property
    def overlap(self) -> float:
        """The indicator S of Eq. 10: 0 where right and wrong pairs are apart, 1 where they cannot be told apart."""
        return overlap(self.edges, *self.densities)

    def to_json(self) -> dict[str, Any]:
        positive, negative = self.densities
        return {
            "S": self.overlap,
            "positive": {"pairs": int(self.positive.sum()), "mean": self.positive_mean, "std": self.positive_std},
            "negative": {"pairs": int(self.negative.sum()), "mean": self.negative_mean, "std": self.negative_std},
            "edges": self.edges.tolist(),
            "positive_density": positive.tolist(),
            "negative_density": negative.tolist(),
        }


def overlap(edges: Any, positive: Any, negative: Any) -> float:
    """S = integral of min(P, Q) (Eq. 10), of two densities that are constant in each bin.

    >>> overlap([0.0, 0.5, 1.0], [2.0, 0.0], [1.0, 1.0])
    0.5
    """
    return float((np.minimum(positive, negative) * np.diff(edges)).sum())


def count_similarities(
    score_block: ScoreBlock,
    image_groups: Any,
    text_groups: Any,
    *,
    bins: int = BINS,
    block: int | tuple[int, int] = BLOCK,
) -> Similarities:
    """Count the scores of every pair, a block at a time; memory is that of one block.

    Bins divide [-1, 1]. Where scores turn out to leave it (a matcher whose score is no cosine), they divide the range
    that was found, and every block is scored once more.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    groups = group_codes(image_groups, text_groups)
    sizes = (block, block) if isinstance(block, int) else block
    counts = _Counts(COSINES, bins)
    for scores, right in _blocks(score_block, *groups, sizes):
        counts.add(scores, right)
    counts.require_both()
    if counts.low < COSINES[0] - ROUNDING or counts.high > COSINES[1] + ROUNDING:
        counts = _Counts((counts.low, counts.high), bins)
        for scores, right in _blocks(score_block, *groups, sizes):
            counts.add(scores, right)
    return counts.result()


def split_similarities(
    members: Sequence[Member],
    split: Split,
    *,
    bins: int = BINS,
    block: int | tuple[int, int] = BLOCK,
    device: torch.device | str | None = None,
) -> Similarities:
    """The same of one matcher, or of an ensemble, on a split that it has encoded."""
    with ExitStack() as modes:
        for member in members:
            modes.enter_context(evaluation_mode(member.matcher))
        scores = member_scores(members, device)
        return count_similarities(scores, split.image_groups, split.text_groups, bins=bins, block=whole_tiles(block))


def _blocks(
    score_block: ScoreBlock, image_groups: np.ndarray, text_groups: np.ndarray, sizes: tuple[int, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """(a, b) scores and, for each, whether it is of a right pair."""
    for top in range(0, len(image_groups), sizes[0]):
        images = slice(top, min(top + sizes[0], len(image_groups)))
        for left in range(0, len(text_groups), sizes[1]):
            texts = slice(left, min(left + sizes[1], len(text_groups)))
            scores = score_block(images, texts).detach().float()
            right = torch.from_numpy(image_groups[images][:, None] == text_groups[texts][None, :])
            yield scores, right.to(scores.device)


class _Counts:
    """Histograms, sums and sums of squares of the right pairs (row 0) and the wrong ones (row 1)."""

    def __init__(self, span: tuple[float, float], bins: int) -> None:
        self.span, self.bins = span, bins
        self.width = (span[1] - span[0]) / bins or 1.0  # all scores equal: one bin of any width holds them
        self.histograms = np.zeros((2, bins), np.int64)
        self.sums, self.squares = np.zeros(2), np.zeros(2)
        self.low, self.high = math.inf, -math.inf

    def add(self, scores: Tensor, right: Tensor) -> None:
        low, high = (float(edge) for edge in scores.aminmax())
        if not math.isfinite(low) or not math.isfinite(high):
            raise QuintetError("a score is NaN or infinite; look for it in the features or the weights")
        self.low, self.high = min(self.low, low), max(self.high, high)
        places = ((scores.double() - self.span[0]) / self.width).floor().long().clamp_(0, self.bins - 1)
        for row, chosen in enumerate((right, ~right)):
            found = scores[chosen].double()
            self.histograms[row] += torch.bincount(places[chosen], minlength=self.bins).cpu().numpy()
            self.sums[row] += float(found.sum())
            self.squares[row] += float(found.square().sum())

    def require_both(self) -> None:
        if not self.histograms.sum(axis=1).all():
            raise QuintetError("distributions need at least one right and one wrong pair; are the groups right?")

    def result(self) -> Similarities:
        pairs = self.histograms.sum(axis=1)
        means = self.sums / pairs
        stds = np.sqrt(np.maximum(self.squares / pairs - means**2, 0.0))
        edges = self.span[0] + self.width * np.arange(self.bins + 1)
        (positive, negative), (p_mean, n_mean), (p_std, n_std) = self.histograms, means.tolist(), stds.tolist()
        return Similarities(edges, positive, negative, p_mean, p_std, n_mean, n_std)
