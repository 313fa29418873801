"""Curves: metrics, losses and errors by epoch; recalls by how many candidates are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import drawing, new_panels, plain_numbers, series_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Mapping[str, tuple[Any, Any]]  # name -> (x, y); NaN leaves a gap
FEW = 40  # with more points than this, marks would cover the line


@drawing
def draw_curves(panels: Mapping[str, Lines], title: str, x: str = "epoch", *, log: bool = False) -> Figure:
    """Panels of lines over a common kind of x: training curves, loss curves, error curves.

    `panels` maps the name of a y axis to its lines; `log` draws y on a logarithmic scale.
    """
    figure, axes = new_panels(title, len(panels), columns=2)
    for place, (name, lines) in zip(axes, panels.items(), strict=True):
        for (label, (at, values)), (colour, dashes, marker) in zip(lines.items(), series_styles(), strict=False):
            shape = marker if len(at) <= FEW else ""
            place.plot(at, values, label=label, color=colour, linestyle=dashes, marker=shape, markersize=4)
        place.set(xlabel=x, ylabel=name)
        if log:
            place.set_yscale("log")
            plain_numbers(place.yaxis)
        place.legend()
    return figure


@drawing
def draw_recalls(named: Lines, title: str = "Recall by the number of candidates looked at") -> Figure:
    """R@K in per cent over K, with K on a logarithmic scale: each line is (K, recalls)."""
    figure, (axes,) = new_panels(title)
    for (label, (cuts, recalls)), (colour, dashes, _) in zip(named.items(), series_styles(), strict=False):
        axes.plot(cuts, recalls, label=label, color=colour, linestyle=dashes)
    axes.set(xlabel="K", ylabel="R@K, per cent", ylim=(0, 102))
    axes.set_xscale("log")
    cuts = [cut for cut in (1, 5, 10, 50, 100, 500, 1000) if cut <= max(np.max(at) for at, _ in named.values())]
    axes.set_xticks(cuts, [str(cut) for cut in cuts])
    axes.minorticks_off()
    axes.legend()
    return figure
