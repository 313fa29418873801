"""Accuracy against speed: how many pairs a matcher scores in a second, and the figure of rsum over it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from quintet.evaluation.scoring import TILE, Member
from quintet.report.figures import drawing, legend_below, legend_lines, new_panels, plain_numbers, series_styles
from quintet.runs.devices import full_precision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_SECONDS = 0.2  # of timed scoring


@torch.no_grad()
def pairs_per_second(member: Member, device: torch.device, least: float = LEAST_SECONDS) -> float:
    """Time scoring alone, on codes that are already computed, in tiles of the size that evaluation uses.

    The first tile warms up and is not timed.
    """
    images, texts = member.image_codes[: TILE[0]].to(device), member.text_codes[: TILE[1]].to(device)
    scored, began = -1, 0.0
    with full_precision(device):
        while True:
            member.matcher.score(images, texts)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            scored += 1
            if scored == 0:
                began = time.perf_counter()
            elif time.perf_counter() - began >= least:
                return scored * len(images) * len(texts) / (time.perf_counter() - began)


@drawing
def draw_accuracy_against_speed(
    names: Sequence[str],
    speed: ArrayLike,
    accuracy: ArrayLike,
    intervals: ArrayLike | None = None,
    *,
    title: str = "Accuracy against speed",
    x: str = "pairs per second",
    y: str = "rsum",
) -> Figure:
    """One point per matcher, the most accurate first in the legend; speed on a logarithmic scale.

    `intervals` (n, 2) are drawn as vertical bars.
    """
    speeds, values = np.asarray(speed, float), np.asarray(accuracy, float)
    figure, (axes,) = new_panels(title, below=legend_lines(names))
    order = np.argsort(-values, kind="stable").tolist()
    for row, (colour, _, marker) in zip(order, series_styles(), strict=False):
        bar = None
        if intervals is not None:
            low, high = np.asarray(intervals, float)[row]
            bar = [[values[row] - low], [high - values[row]]]
        point = [speeds[row]], [values[row]]
        axes.errorbar(*point, yerr=bar, label=names[row], color=colour, marker=marker, capsize=3, linestyle="none")
    axes.set(xlabel=x, ylabel=y)
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)
    axes.margins(x=0.1, y=0.1)
    legend_below(axes)
    return figure
