"""What accuracy costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import drawing, legend_below, legend_lines, new_panels, plain_numbers, series_styles

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
    """A point per matcher, the most accurate first in the legend; speed on a logarithmic scale; `intervals` (n, 2) as
    vertical bars."""
    figure, (axes,) = new_panels(title, below=legend_lines(names))
    order = np.argsort(-np.asarray(accuracy, float), kind="stable").tolist()
    for row, (colour, _, marker) in zip(order, series_styles(), strict=False):
        bar = None
        if intervals is not None:
            low, high = intervals[row]
            bar = [[accuracy[row] - low], [high - accuracy[row]]]
        look = {"color": colour, "marker": marker, "capsize": 3, "linestyle": "none"}
        axes.errorbar([speed[row]], [accuracy[row]], yerr=bar, label=names[row], **look)
    axes.set(xlabel=x, ylabel=y)
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)
    axes.margins(x=0.1, y=0.1)
    legend_below(axes)
    return figure
