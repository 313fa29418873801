"""Curves: metrics, losses and errors by epoch; recalls by how many candidates are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.report.figures.style import drawing, legend_below, legend_lines, new_panels, plain_numbers, series_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Mapping[str, tuple[Any, Any]]  # name -> (x, y); NaN leaves a gap
FEW = 40  # with more points than this, marks would cover the line


@drawing
def draw_curves(panels: Mapping[str, Lines], title: str, x: str = "epoch", *, log: bool = False) -> Figure:
    """Panels of lines over a common kind of x: training curves, loss curves, error curves.

    `panels` maps the name of a y axis to its lines; `log` draws y on a logarithmic scale.
    """
    labels = dict.fromkeys(label for lines in panels.values() for label in lines)
    styles = dict(zip(labels, series_styles(), strict=False))  # a run looks the same in all panels
    figure, axes = new_panels(title, len(panels), columns=2, below=max(map(legend_lines, panels.values())))
    for place, (name, lines) in zip(axes, panels.items(), strict=True):
        for label, (at, values) in lines.items():
            colour, dashes, marker = styles[label]
            shape = marker if len(at) <= FEW else ""
            place.plot(at, values, label=label, color=colour, linestyle=dashes, marker=shape, markersize=4)
        place.set(xlabel=x, ylabel=name)
        if log:
            place.set_yscale("log")
            plain_numbers(place.yaxis)
        legend_below(place)
    return figure


@drawing
def draw_recalls(panels: Mapping[str, Lines], title: str = "Recall by the number of candidates looked at") -> Figure:
    """A panel a direction: R@K in per cent over K, with K on a logarithmic scale; each line is (K, recalls)."""
    figure, places = new_panels(title, len(panels), columns=2, below=max(map(legend_lines, panels.values())))
    for axes, (name, lines) in zip(places, panels.items(), strict=True):
        for (label, (cuts, recalls)), (colour, dashes, _) in zip(lines.items(), series_styles(), strict=False):
            axes.plot(cuts, recalls, label=label, color=colour, linestyle=dashes)
        axes.set(title=name, xlabel="K", ylabel="R@K, per cent", ylim=(0, 102))
        axes.set_xscale("log")
        cuts = [cut for cut in (1, 5, 10, 50, 100, 500, 1000) if cut <= max(np.max(at) for at, _ in lines.values())]
        axes.set_xticks(cuts, [str(cut) for cut in cuts])
        axes.minorticks_off()
        legend_below(axes)
    return figure
