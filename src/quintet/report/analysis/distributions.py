"""Score distributions of positive and negative pairs, and their overlap S (Dual-Path, Fig. 5 and Eq. 10)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from quintet.data.corpus import Split
from quintet.errors import QuintetError
from quintet.evaluation.ranks import BLOCK, ScoreBlock, group_codes
from quintet.evaluation.scoring import Member, blocks_of, member_scores
from quintet.protocols import evaluation_mode
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.figures import BLUE, GREY, VERMILION, drawing, legend_below, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSINES = (-1.0, 1.0)
ROUNDING = 1e-4  # rounding in float32 may take a cosine out of [-1, 1] by this much
BINS = 200  # of width 0.01 over the range of cosines; the paper does not give its number of bins
MARGIN = 0.05  # of the range of scores, left and right of the distributions


# Numbers


@dataclass(frozen=True)
class Similarities:
    """Histograms of the scores of all positive and all negative pairs, over the same bins."""

    edges: np.ndarray  # (bins + 1,)
    positive: np.ndarray  # (bins,) number of positive pairs in each bin
    negative: np.ndarray  # (bins,) number of negative pairs
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
        """The indicator S of Eq. 10: 0 where positive and negative pairs are apart, 1 where their scores are alike."""
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


def overlap(edges: ArrayLike, positive: ArrayLike, negative: ArrayLike) -> float:
    """S = integral of min(P, Q) (Eq. 10) of two densities that are constant in each bin.

    >>> overlap([0.0, 0.5, 1.0], [2.0, 0.0], [1.0, 1.0])
    0.5
    """
    return float((np.minimum(positive, negative) * np.diff(edges)).sum())


def count_similarities(
    score_block: ScoreBlock,
    image_groups: ArrayLike,
    text_groups: ArrayLike,
    *,
    bins: int = BINS,
    block: int | tuple[int, int] = BLOCK,
) -> Similarities:
    """Count the scores of every pair, a block at a time; the memory needed is that of one block.

    The bins divide [-1, 1]. If a score lies outside (the matcher's score is not a cosine), the bins divide the range
    that was found, and every block is scored a second time.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    groups = group_codes(image_groups, text_groups)
    sizes = (block, block) if isinstance(block, int) else block
    counts = _Counts(COSINES, bins)
    for scores, positive in _blocks(score_block, *groups, sizes):
        counts.add(scores, positive)
    counts.require_both()
    if counts.low < COSINES[0] - ROUNDING or counts.high > COSINES[1] + ROUNDING:
        counts = _Counts((counts.low, counts.high), bins)
        for scores, positive in _blocks(score_block, *groups, sizes):
            counts.add(scores, positive)
    return counts.result()


def split_similarities(
    members: Sequence[Member],
    split: Split,
    *,
    bins: int = BINS,
    block: int | tuple[int, int] = BLOCK,
    device: torch.device | str | None = None,
) -> Similarities:
    """`count_similarities` of one matcher, or of an ensemble, on a split that it has encoded."""
    with ExitStack() as modes:
        for member in members:
            modes.enter_context(evaluation_mode(member.matcher))
        scores = member_scores(members, device)
        sizes = blocks_of(members, block, device)
        return count_similarities(scores, split.image_groups, split.text_groups, bins=bins, block=sizes)


def _blocks(
    score_block: ScoreBlock, image_groups: np.ndarray, text_groups: np.ndarray, sizes: tuple[int, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (a, b) scores and (a, b) bool: whether the pair is positive."""
    for top in range(0, len(image_groups), sizes[0]):
        images = slice(top, min(top + sizes[0], len(image_groups)))
        for left in range(0, len(text_groups), sizes[1]):
            texts = slice(left, min(left + sizes[1], len(text_groups)))
            scores = score_block(images, texts).detach().float()
            positive = torch.from_numpy(image_groups[images][:, None] == text_groups[texts][None, :])
            yield scores, positive.to(scores.device)


class _Counts:
    """Histograms, sums and sums of squares of the positive pairs (row 0) and the negative pairs (row 1)."""

    def __init__(self, span: tuple[float, float], bins: int) -> None:
        self.span, self.bins = span, bins
        self.width = (span[1] - span[0]) / bins or 1.0  # if all scores are equal, any width will do
        self.histograms = np.zeros((2, bins), np.int64)
        self.sums, self.squares = np.zeros(2), np.zeros(2)
        self.low, self.high = math.inf, -math.inf

    def add(self, scores: Tensor, positive: Tensor) -> None:
        low, high = (float(edge) for edge in scores.aminmax())
        if not math.isfinite(low) or not math.isfinite(high):
            raise QuintetError("a score is NaN or infinite; look for it in the features or the weights")
        self.low, self.high = min(self.low, low), max(self.high, high)
        bins = ((scores.double() - self.span[0]) / self.width).floor().long().clamp_(0, self.bins - 1)
        for row, chosen in enumerate((positive, ~positive)):
            found = scores[chosen].double()
            self.histograms[row] += torch.bincount(bins[chosen], minlength=self.bins).cpu().numpy()
            self.sums[row] += float(found.sum())
            self.squares[row] += float(found.square().sum())

    def require_both(self) -> None:
        if not self.histograms.sum(axis=1).all():
            raise QuintetError(
                "distributions need at least one positive and one negative pair; check the groups of the split"
            )

    def result(self) -> Similarities:
        pairs = self.histograms.sum(axis=1)
        means = self.sums / pairs
        stds = np.sqrt(np.maximum(self.squares / pairs - means**2, 0.0))
        edges = self.span[0] + self.width * np.arange(self.bins + 1)
        (positive, negative), (p_mean, n_mean), (p_std, n_std) = self.histograms, means.tolist(), stds.tolist()
        return Similarities(edges, positive, negative, p_mean, p_std, n_mean, n_std)


# The figure

Densities = tuple[ArrayLike, ArrayLike, ArrayLike]  # edges (bins + 1,), P (bins,), Q (bins,)


@drawing
def draw_similarities(named: Mapping[str, Densities], title: str = "Scores of positive and negative pairs") -> Figure:
    """One panel per matcher: densities P of positive and Q of negative pairs, the overlap shaded, S in the title."""
    figure, panels = new_panels(title, len(named), below=3)
    for axes, (name, densities) in zip(panels, named.items(), strict=True):
        edges, positive, negative = (np.asarray(values) for values in densities)
        shared = np.minimum(positive, negative)
        axes.stairs(shared, edges, fill=True, color=GREY, alpha=0.5, label="overlap S")
        axes.stairs(positive, edges, color=BLUE, linewidth=1.6, label="positive pairs (P)")
        axes.stairs(negative, edges, color=VERMILION, linewidth=1.6, linestyle="--", label="negative pairs (Q)")
        axes.set(title=f"{name}: S = {overlap(edges, positive, negative):.4f}", xlabel="score", ylabel="density")
        axes.set_xlim(*_occupied(edges, positive + negative))
        legend_below(axes)
    return figure


def _occupied(edges: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The range of scores that occur, with a margin."""
    filled = np.flatnonzero(counts)
    low, high = float(edges[filled[0]]), float(edges[filled[-1] + 1])
    room = MARGIN * (high - low)
    return low - room, high + room


# The analysis


def distributions(subjects: Sequence[Subject], options: Options) -> Finding:
    """Score distributions of positive and negative pairs, and the overlap S (Dual-Path, Eq. 10)."""
    found = {
        subject.label: split_similarities(
            subject.members, subject.split, bins=options.bins, block=options.block, device=subject.device
        )
        for subject in subjects
    }
    figure = draw_similarities({label: (one.edges, *one.densities) for label, one in found.items()})
    return Finding({"runs": {label: one.to_json() for label, one in found.items()}}, {"distributions": figure})
