"""Recalls and ranks of a run, and cross-retrieval ranks: is a pair found in both directions? (AOQ supplement.)

A pair may do well for its text and badly for its image. Its cross-retrieval rank is the worse of the two, both counted
on the scale of the texts: max(5 r_i - 4, r_t) where each image has five texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from quintet.errors import QuintetError
from quintet.evaluation.ranks import Ranks
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.figures import (
    COLOURS,
    DIRECTION_NAMES,
    HATCHES,
    draw_rank_histogram,
    drawing,
    legend_below,
    legend_lines,
    new_panels,
    series_styles,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Upper ends of the intervals. The supplement's text names the first (rank 1) and the last (above 200); the ones between
# are ours, as its figure shows them without numbers.
EDGES = (1, 5, 10, 20, 50, 100, 200)
DEEPEST = 100  # K of the recall curves


# Numbers


def cross_retrieval_ranks(ranks: Ranks) -> np.ndarray:
    """(P,) int64: for each positive pair max(c (r_i - 1) + 1, r_t), where c is the number of texts an image has.

    Ranks start from 1: r_i is among the negative images of the pair's text, r_t among the negative texts of its image.
    c = n_texts / n_images makes ranks in lists of different length comparable; with c = 5 this is 5 r_i - 4. A product
    that is not whole is rounded up, so that rank 1 still means first in both directions.

    >>> from quintet.evaluation.ranks import ranks_of_matrix
    >>> scores = [[0.9, 0.8, 0.2, 0.1], [0.1, 0.85, 0.9, 0.8]]  # the second text prefers the wrong image
    >>> cross_retrieval_ranks(ranks_of_matrix(scores, [0, 1], [0, 0, 1, 1])).tolist()
    [1, 3, 1, 2]
    """
    images, texts = len(ranks.image_groups), len(ranks.text_groups)
    from_text = -(-ranks.pair_t2i.astype(np.int64) * texts // images) + 1  # ceil without leaving the integers
    return np.maximum(from_text, ranks.pair_i2t.astype(np.int64) + 1)


def interval_names(edges: Sequence[int] = EDGES) -> list[str]:
    """Names of the intervals that end at `edges`, and of the one above the last.

    >>> interval_names((1, 5, 200))
    ['1', '2-5', '6-200', '>200']
    """
    if not edges or list(edges) != sorted({*edges}) or edges[0] < 1:
        raise ValueError(f"edges must be rising whole numbers from 1, got {tuple(edges)}")
    starts = [1, *(edge + 1 for edge in edges[:-1])]
    named = [f"{start}-{end}" if start < end else str(end) for start, end in zip(starts, edges, strict=True)]
    return [*named, f">{edges[-1]}"]


def cross_retrieval_histogram(
    runs: Mapping[str, Ranks | Sequence[Ranks]], edges: Sequence[int] = EDGES
) -> dict[str, Any]:
    """Count the positive pairs by the interval of their cross-retrieval rank, for runs on one split.

    Returns `intervals` (names), `pairs` (how many), `counts` and `share` (per cent) by run, and `change`: the counts of
    each later run minus those of the first. Folds (a sequence of Ranks) are counted together.
    """
    names = interval_names(edges)
    folds = {run: [found] if isinstance(found, Ranks) else list(found) for run, found in runs.items()}
    _require_same_pairs(folds)
    counts = {run: _count(parts, edges) for run, parts in folds.items()}
    first = next(iter(counts.values()), np.zeros(len(names), np.int64))
    pairs = int(first.sum())
    return {
        "intervals": names,
        "pairs": pairs,
        "counts": {run: found.tolist() for run, found in counts.items()},
        "share": {run: (100.0 * found / max(pairs, 1)).tolist() for run, found in counts.items()},
        "change": {run: (found - first).tolist() for run, found in list(counts.items())[1:]},
    }


def _count(folds: Sequence[Ranks], edges: Sequence[int]) -> np.ndarray:
    found = np.concatenate([cross_retrieval_ranks(ranks) for ranks in folds])
    return np.bincount(np.searchsorted(edges, found, side="left"), minlength=len(edges) + 1)


def _require_same_pairs(folds: Mapping[str, Sequence[Ranks]]) -> None:
    runs = list(folds)
    for run in runs[1:]:
        first, other = folds[runs[0]], folds[run]
        same = len(first) == len(other) and all(
            np.array_equal(a.image_groups, b.image_groups) and np.array_equal(a.text_groups, b.text_groups)
            for a, b in zip(first, other, strict=True)
        )
        if not same:
            raise QuintetError(
                f"{runs[0]!r} and {run!r} were measured on different pairs; "
                "evaluate both on the same split and protocol"
            )


def recall_curve(found: np.ndarray, deepest: int) -> tuple[np.ndarray, np.ndarray]:
    """K = 1, 2, ... and R@K in per cent, from the ranks (from 1) of the best positive of each query.

    >>> [part.tolist() for part in recall_curve(np.array([1, 3, 3, 9]), 4)]
    [[1, 2, 3, 4], [25.0, 25.0, 75.0, 75.0]]
    """
    cuts = np.arange(1, deepest + 1)
    return cuts, 100.0 * np.searchsorted(np.sort(found), cuts, side="right") / len(found)


# Figures


@drawing
def draw_recalls(panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]], title: str = "Recall at K") -> Figure:
    """One panel per direction: R@K in per cent over K, with K on a logarithmic scale; each line is (K, recalls)."""
    figure, all_axes = new_panels(title, len(panels), columns=2, below=max(map(legend_lines, panels.values())))
    for axes, (name, lines) in zip(all_axes, panels.items(), strict=True):
        for (label, (cuts, recalls)), (colour, dashes, _) in zip(lines.items(), series_styles(), strict=False):
            axes.plot(cuts, recalls, label=label, color=colour, linestyle=dashes)
        axes.set(title=name, xlabel="K", ylabel="R@K (%)", ylim=(0, 102))
        axes.set_xscale("log")
        largest = max(np.max(cuts) for cuts, _ in lines.values())
        ticks = [cut for cut in (1, 5, 10, 50, 100, 500, 1000) if cut <= largest]
        axes.set_xticks(ticks, [str(cut) for cut in ticks])
        axes.minorticks_off()
        legend_below(axes)
    return figure


@drawing
def draw_rank_intervals(
    intervals: Sequence[str], shares: Mapping[str, ArrayLike], title: str = "Cross-retrieval ranks"
) -> Figure:
    """Bars side by side: the share of the positive pairs, in per cent, by interval of the cross-retrieval rank."""
    figure, (axes,) = new_panels(title, below=legend_lines(shares))
    positions, width = np.arange(len(intervals)), 0.8 / max(len(shares), 1)
    for number, (name, values) in enumerate(shares.items()):
        shift = (number - (len(shares) - 1) / 2) * width
        colour, hatch = COLOURS[number % len(COLOURS)], HATCHES[number % len(HATCHES)]
        axes.bar(positions + shift, values, width, label=name, color=colour, hatch=hatch, edgecolor="white")
    axes.set_xticks(positions, intervals)
    axes.set(xlabel="cross-retrieval rank", ylabel="positive pairs (%)")
    axes.grid(visible=False, axis="x")
    legend_below(axes)
    return figure


# The analysis


def ranks(subjects: Sequence[Subject], options: Options) -> Finding:
    """R@K curves, histograms of ranks, and cross-retrieval ranks (AOQ supplement)."""
    best = {
        name: {subject.label: getattr(subject.ranks, direction).best + 1 for subject in subjects}
        for direction, name in DIRECTION_NAMES.items()
    }
    deepest = min(DEEPEST, *(len(rows) for rows in (subjects[0].split.images, subjects[0].split.texts)))
    recalls = {
        name: {label: recall_curve(found, deepest) for label, found in runs.items()} for name, runs in best.items()
    }
    crossed = cross_retrieval_histogram({subject.label: subject.ranks for subject in subjects})
    figures = {
        "recalls": draw_recalls(recalls),
        "ranks": draw_rank_histogram(best),
        "cross-retrieval": draw_rank_intervals(crossed["intervals"], crossed["share"]),
    }
    curves = {
        f"{label}, {name}": {"K": cuts.tolist(), "recall": found.tolist()}
        for name, runs in recalls.items()
        for label, (cuts, found) in runs.items()
    }
    return Finding({"recalls": curves, "cross_retrieval": crossed}, figures)
