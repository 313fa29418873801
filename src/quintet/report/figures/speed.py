"""What accuracy costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import drawing, new_panels, plain_numbers, series_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@drawing
def draw_accuracy_against_speed(
    names: Sequence[str],
    speed: Any,
    accuracy: Any,
    intervals: Any | None = None,
    *,
    title: str = "Accuracy against speed",
    x: str = "pairs per second",
    y: str = "rsum",
) -> Figure:
    """A point per matcher, each with its name; speed on a logarithmic scale; `intervals` (n, 2) as vertical bars."""
    figure, (axes,) = new_panels(title)
    points = zip(names, np.asarray(speed, float), np.asarray(accuracy, float), series_styles(), strict=False)
    for number, (name, fast, good, (colour, _, marker)) in enumerate(points):
        bar = None
        if intervals is not None:
            low, high = intervals[number]
            bar = [[good - low], [high - good]]
        axes.errorbar([fast], [good], yerr=bar, color=colour, marker=marker, capsize=3, linestyle="none")
        axes.annotate(name, (fast, good), xytext=(6, 4), textcoords="offset points", fontsize=9)
    axes.set(xlabel=x, ylabel=y)
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)
    axes.margins(x=0.2, y=0.15)
    return figure
