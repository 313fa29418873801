"""Similarity distributions and correlation maps (Dual-Path, Fig. 5 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.evaluation.distributions import overlap
from quintet.report.figures.style import BLUE, GREY, VERMILION, drawing, legend_below, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Densities = tuple[Any, Any, Any]  # edges (bins + 1,), P (bins,), Q (bins,)
MARGIN = 0.05  # of the range of scores, left and right of the distributions


@drawing
def draw_similarities(named: Mapping[str, Densities], title: str = "Similarity of right and wrong pairs") -> Figure:
    """One panel per matcher: the densities P of right and Q of wrong pairs, their overlap shaded, S in the title."""
    figure, panels = new_panels(title, len(named), below=3)
    for axes, (name, (edges, positive, negative)) in zip(panels, named.items(), strict=True):
        both = np.minimum(positive, negative)
        axes.stairs(both, edges, fill=True, color=GREY, alpha=0.5, label="overlap S")
        axes.stairs(positive, edges, color=BLUE, linewidth=1.6, label="right pairs (P)")
        axes.stairs(negative, edges, color=VERMILION, linewidth=1.6, linestyle="--", label="wrong pairs (Q)")
        axes.set(title=f"{name}: S = {overlap(edges, positive, negative):.4f}", xlabel="score", ylabel="density")
        axes.set_xlim(*_occupied(np.asarray(edges), np.asarray(positive) + np.asarray(negative)))
        legend_below(axes)
    return figure


@drawing
def draw_correlations(maps: Mapping[str, Any], title: str = "Correlation of image features") -> Figure:
    """One map (n, n) a panel, all on the colours of -1 to 1; below it the mean over different images."""
    figure, panels = new_panels(title, len(maps), size=(5.6, 5.0))
    shown = None
    for axes, (name, values) in zip(panels, maps.items(), strict=True):
        correlations = np.asarray(values)
        others = correlations[~np.eye(len(correlations), dtype=bool)]
        shown = axes.imshow(correlations, cmap="PuOr", vmin=-1, vmax=1, interpolation="nearest")
        axes.set(title=f"{name}: mean {others.mean():.3f}", xlabel="picture", ylabel="picture")
        axes.grid(visible=False)
    if shown is not None:
        figure.colorbar(shown, ax=panels, label="Pearson's correlation", shrink=0.8)
    return figure


def _occupied(edges: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The range of scores that occur, with some room."""
    filled = np.flatnonzero(counts)
    low, high = float(edges[filled[0]]), float(edges[filled[-1] + 1])
    room = MARGIN * (high - low)
    return low - room, high + room
