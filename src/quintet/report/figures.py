"""What all figures share: colour-blind-safe styles, panels with legends below, and saving.

The `draw_` functions of `quintet.report.analysis` take arrays and return a matplotlib figure; `save_figure` writes it.
matplotlib comes with the extra `report` and is imported when the first figure is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import count
from pathlib import Path
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from quintet.errors import QuintetError, suggest
from quintet.files import MARK, write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

# Okabe and Ito's palette without its yellow, which is too pale on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
GREY = "#8A8F94"
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "\\\\", "xx")
DIRECTION_NAMES = {"i2t": "image to text", "t2i": "text to image"}
STEPS = 24  # bins of a histogram over the logarithm of the rank
FORMATS = ("svg", "png")
DPI = 150
LINE, LABEL = 0.2, 0.5  # inches: height of a legend line; distance from an axis to below its label
LETTERS = 36  # in a legend line, so that a legend is no wider than a panel
EDGE = 0.08  # inches of margin around a panel that is saved alone
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E6E8",
    "legend.frameon": False,
    "text.parse_math": False,  # a caption may hold a dollar sign
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and copied
    "svg.hashsalt": "quintet",  # the same figure is the same file
}


def drawing(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of functions that draw: applies the style, and says how to install matplotlib where it is missing."""

    @wraps(function)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            import matplotlib
        except ModuleNotFoundError:
            raise QuintetError(
                "figures need the package matplotlib; install it with `pip install 'quintet-retrieval[report]'`"
            ) from None
        with matplotlib.rc_context(STYLE):
            return function(*args, **kwargs)

    return styled


def new_panels(
    title: str, panels: int = 1, *, columns: int = 3, size: tuple[float, float] = (5.6, 3.6), below: int = 0
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels in rows of `columns`; a single panel is larger. Opens no window, keeps no global state.

    `below`: the number of legend lines that each panel needs under it (`legend_lines`).
    """
    from matplotlib.figure import Figure

    wide = min(panels, columns)
    rows = -(-panels // wide)
    shrink = 1.0 if panels == 1 else 0.75
    height = size[1] * shrink + LINE * below
    figure = Figure(figsize=(size[0] * wide * shrink, height * rows), layout="constrained")
    axes = figure.subplots(rows, wide, squeeze=False).flatten()
    for spare in axes[panels:]:
        spare.remove()
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    return figure, list(axes[:panels])


def series_styles() -> Iterator[tuple[str, str, str]]:
    """Yield (colour, dashes, marker) without end; all three change together, so that colour alone never tells lines
    apart. 28 styles differ in colour or dashes, 49 in colour or marker."""
    for number in count():
        turn = number // len(COLOURS)
        yield COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], MARKERS[(number + turn) % len(MARKERS)]


def legend_lines(labels: Iterable[str]) -> int:
    """The number of lines that `legend_below` needs for these labels.

    >>> legend_lines(["short", "a-name-with-so-many-words-in-it-that-it-takes-two-lines"])
    3
    """
    return sum(len(wrap(label, LETTERS)) for label in labels)


def legend_below(axes: Axes) -> None:
    """Put the legend under the panel, where it covers no line; long labels are wrapped to the width of the panel."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None
    under = axes.transAxes + ScaledTranslation(0, -LABEL, figure.dpi_scale_trans)
    handles, labels = axes.get_legend_handles_labels()
    shown = [fill(label, LETTERS) for label in labels]
    axes.legend(handles, shown, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=under, borderaxespad=0)


def plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis 10, 100, 1000; matplotlib's default is powers of ten."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(lambda _value, _position: "")


@drawing
def draw_rank_histogram(
    panels: Mapping[str, Mapping[str, ArrayLike]], title: str = "Ranks of the best positive"
) -> Figure:
    """One panel per direction: the share of queries, in per cent, by rank (from 1, on a logarithmic scale)."""
    figure, all_axes = new_panels(title, len(panels), columns=2, below=max(map(legend_lines, panels.values())))
    for axes, (name, lines) in zip(all_axes, panels.items(), strict=True):
        edges = rank_edges(max(int(np.max(ranks)) for ranks in lines.values()))
        for (label, ranks), (colour, dashes, _) in zip(lines.items(), series_styles(), strict=False):
            counts, _ = np.histogram(ranks, edges)
            shares = 100 * counts / counts.sum()
            axes.stairs(shares, edges, label=label, color=colour, linestyle=dashes, linewidth=1.6)
        axes.set(title=name, xlabel="rank", ylabel="queries (%)")
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        legend_below(axes)
    return figure


def rank_edges(largest: int) -> np.ndarray:
    """Bin edges between whole ranks; the widths grow with the rank, and rank 1 has its own bin.

    >>> rank_edges(4).tolist()
    [0.5, 1.5, 2.5, 3.5, 4.5]
    """
    ends = np.unique(np.geomspace(1, max(largest, 2), STEPS).round())
    return np.concatenate([[0.5], ends + 0.5])


@drawing
def panel_images(figure: Figure) -> list[tuple[str, bytes]]:
    """Split a figure into its panels: (name, SVG) of each, without the title of the figure.

    A page can then arrange them for the width of the screen. Do not use the figure afterwards: its title and panels are
    hidden.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # keep the positions when parts are hidden
    for part in (*figure.texts, *figure.axes):
        part.set_visible(False)
    found = []
    for axes in figure.axes:
        axes.set_visible(True)
        found.append((axes.get_title(loc="left") or axes.get_ylabel(), _cropped(figure, axes)))
        axes.set_visible(False)
    return found


def _cropped(figure: Figure, axes: Axes) -> bytes:
    """The SVG of one panel, cropped to its bounding box."""
    box = axes.get_tightbbox()
    assert box is not None
    inches = box.transformed(figure.dpi_scale_trans.inverted()).padded(EDGE)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches=inches, metadata={"Date": None})
    return buffer.getvalue()


@drawing
def save_figure(figure: Figure, path: Path | str, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """Write PATH.svg, PATH.png, ... and return the paths; each write is atomic."""
    written = []
    for form in formats:
        if form not in FORMATS:
            raise QuintetError(f"figures cannot be written as {form!r}; {suggest(form, FORMATS)}")
        target = Path(path).with_name(f"{Path(path).name}.{form}")
        # Without the date the same figure is the same file.
        own: dict[str, Any] = {"Date": None, "Creator": MARK} if form == "svg" else {"Software": MARK}
        facts: dict[str, Any] = {"Title": figure.get_suptitle()} | own
        with write_output(target) as temporary:
            figure.savefig(temporary, format=form, dpi=DPI, metadata=facts)
        written.append(target)
    return written
