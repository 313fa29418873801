"""What accuracy costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import drawing, new_panels, plain_numbers, series_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]  # left, bottom, right, top
FONT, WIDTH, HEIGHT = 9, 7.5, 15.0  # points; pixels of a letter and of a line at a figure's 100 pixels an inch
POINT = 4.0  # half a marker
# Beside the point first, then further up and down.
OFFSETS = tuple((side, up) for up in (5.0, -18.0, 21.0, -34.0, 37.0, -50.0) for side in (8.0, -8.0))


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
    places = axes.transData.transform(np.stack([np.asarray(speed, float), np.asarray(accuracy, float)], axis=1))
    for name, fast, good, offset in zip(names, speed, accuracy, label_offsets(names, places), strict=True):
        side = "left" if offset[0] > 0 else "right"
        axes.annotate(name, (fast, good), xytext=offset, textcoords="offset pixels", fontsize=FONT, ha=side)
    return figure


def label_offsets(names: Sequence[str], places: np.ndarray) -> list[tuple[float, float]]:
    """Where each label starts, in pixels from its point: the nearest place where it covers no other label and no point.

    Labels left of their point end there. What finds no free place lies over others.

    >>> label_offsets(["one", "two"], np.array([[0.0, 0.0], [1.0, 1.0]]))
    [(8.0, 5.0), (-8.0, 5.0)]
    """
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in places]
    found = []
    for number, (name, (x, y)) in enumerate(zip(names, places, strict=True)):
        boxes = {offset: _label_box(name, x, y, offset) for offset in OFFSETS}
        others = taken[:number] + taken[number + 1 :]
        free = [offset for offset, box in boxes.items() if not any(_overlap(box, other) for other in others)]
        found.append(free[0] if free else OFFSETS[0])
        taken.append(boxes[found[-1]])
    return found


def _label_box(name: str, x: float, y: float, offset: tuple[float, float]) -> Box:
    width = WIDTH * len(name)
    left = x + offset[0] - (width if offset[0] < 0 else 0)
    return (left, y + offset[1], left + width, y + offset[1] + HEIGHT)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
