"""What accuracy costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import drawing, new_panels, plain_numbers, series_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]  # left, bottom, right, top
POINTS = 72  # in an inch
FONT, WIDTH, HEIGHT = 9, 5.4, 11.0  # a label's letters and lines, in points
POINT = 3.0  # half a marker
# Beside the point first, then further up and down.
OFFSETS = tuple((side, up) for up in (4.0, -13.0, 16.0, -25.0, 28.0, -37.0) for side in (6.0, -6.0))


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
    points = zip(np.asarray(speed, float), np.asarray(accuracy, float), series_styles(), strict=False)
    for number, (fast, good, (colour, _, marker)) in enumerate(points):
        bar = None
        if intervals is not None:
            low, high = intervals[number]
            bar = [[good - low], [high - good]]
        axes.errorbar([fast], [good], yerr=bar, color=colour, marker=marker, capsize=3, linestyle="none")
    axes.set(xlabel=x, ylabel=y)
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)
    axes.margins(x=0.25, y=0.15)
    figure.draw_without_rendering()  # so that places are known
    pixels = axes.transData.transform(np.stack([np.asarray(speed, float), np.asarray(accuracy, float)], axis=1))
    places = pixels * POINTS / figure.dpi
    for name, fast, good, offset in zip(names, speed, accuracy, label_offsets(names, places), strict=True):
        side = "left" if offset[0] > 0 else "right"
        axes.annotate(name, (fast, good), xytext=offset, textcoords="offset points", fontsize=FONT, ha=side)
    return figure


def label_offsets(names: Sequence[str], places: np.ndarray) -> list[tuple[float, float]]:
    """Where each label starts, in points from its point: the nearest place where it covers no other label and no point.

    Labels left of their point end there. What finds no free place goes where it covers least.

    >>> label_offsets(["one", "two"], np.array([[0.0, 0.0], [1.0, 1.0]]))
    [(6.0, 4.0), (-6.0, 4.0)]
    """
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in places]
    found = []
    for number, (name, (x, y)) in enumerate(zip(names, places, strict=True)):
        boxes = {offset: _label_box(name, x, y, offset) for offset in OFFSETS}
        others = taken[:number] + taken[number + 1 :]
        found.append(min(OFFSETS, key=lambda offset: sum(_overlap(boxes[offset], other) for other in others)))
        taken.append(boxes[found[-1]])
    return found


def _label_box(name: str, x: float, y: float, offset: tuple[float, float]) -> Box:
    width = WIDTH * len(name)
    left = x + offset[0] - (width if offset[0] < 0 else 0)
    return (left, y + offset[1], left + width, y + offset[1] + HEIGHT)


def _overlap(a: Box, b: Box) -> float:
    """The area that two boxes share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
