"""Histograms of ranks, and the intervals of cross-retrieval ranks (AOQ supplement)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import (
    COLOURS,
    drawing,
    legend_below,
    legend_lines,
    new_panels,
    plain_numbers,
    series_styles,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 24  # bins of a histogram over the logarithm of the rank
HATCHES = ("", "//", "..", "\\\\", "xx")


@drawing
def draw_rank_histogram(
    panels: Mapping[str, Mapping[str, Any]], title: str = "Ranks of the first right answer"
) -> Figure:
    """A panel a direction: how many queries, in per cent, have their first right answer at which rank (from 1,
    logarithmic)."""
    figure, places = new_panels(title, len(panels), columns=2, below=max(map(legend_lines, panels.values())))
    for axes, (name, lines) in zip(places, panels.items(), strict=True):
        edges = rank_edges(max(int(np.max(ranks)) for ranks in lines.values()))
        for (label, ranks), (colour, dashes, _) in zip(lines.items(), series_styles(), strict=False):
            counts, _ = np.histogram(ranks, edges)
            axes.stairs(100 * counts / len(ranks), edges, label=label, color=colour, linestyle=dashes, linewidth=1.6)
        axes.set(title=name, xlabel="rank", ylabel="queries, per cent")
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        legend_below(axes)
    return figure


@drawing
def draw_rank_intervals(
    intervals: Sequence[str], shares: Mapping[str, Any], title: str = "Cross-retrieval ranks"
) -> Figure:
    """Bars side by side: which share of the right pairs, in per cent, has its rank in which interval."""
    figure, (axes,) = new_panels(title, below=legend_lines(shares))
    places, width = np.arange(len(intervals)), 0.8 / max(len(shares), 1)
    for number, (name, values) in enumerate(shares.items()):
        shift = (number - (len(shares) - 1) / 2) * width
        look = {"color": COLOURS[number % len(COLOURS)], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "white"}
        axes.bar(places + shift, values, width, label=name, **look)
    axes.set_xticks(places, intervals)
    axes.set(xlabel="rank from both sides", ylabel="right pairs, per cent")
    axes.grid(visible=False, axis="x")
    legend_below(axes)
    return figure


def rank_edges(largest: int) -> np.ndarray:
    """Edges between whole ranks, the intervals growing like the ranks; rank 1 has its own.

    >>> rank_edges(4).tolist()
    [0.5, 1.5, 2.5, 3.5, 4.5]
    """
    ends = np.unique(np.geomspace(1, max(largest, 2), STEPS).round())
    return np.concatenate([[0.5], ends + 0.5])
