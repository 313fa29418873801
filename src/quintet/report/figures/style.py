"""What all figures share: colours that the colour-blind can tell apart, titles, and how a figure becomes a file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import count
from pathlib import Path
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from quintet.errors import QuintetError, suggest
from quintet.files import atomic_write

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
FORMATS = ("svg", "png")
DPI = 150
LINE, LABEL = 0.2, 0.5  # inches: a line of a legend; from an axis to below its label
LETTERS = 36  # of a line of a legend: no wider than a panel
EDGE = 0.08  # inches around a panel that stands by itself
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
    """For functions that draw: the style holds inside them, and it is told how to get matplotlib where it is absent."""

    @wraps(function)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            import matplotlib
        except ModuleNotFoundError:
            raise QuintetError(
                "figures need the package matplotlib; install it with `pip install 'quintet[report]'`"
            ) from None
        with matplotlib.rc_context(STYLE):
            return function(*args, **kwargs)

    return styled


def new_panels(
    title: str, panels: int = 1, *, columns: int = 3, size: tuple[float, float] = (5.6, 3.6), below: int = 0
) -> Any:
    """A figure and its panels, `columns` beside each other; a single panel is larger. No window, no global state.

    `below`: lines for which there is room under each panel (`legend_lines`).
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


def series_styles() -> Any:
    """Endless styles: colour, dashes and marker change together, so that no line is told by colour alone. 28 of them
    differ in colour or dashes, 49 in colour or marker."""
    for number in count():
        turn = number // len(COLOURS)
        yield COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], MARKERS[(number + turn) % len(MARKERS)]


def legend_lines(labels: Iterable[str]) -> int:
    """How many lines `legend_below` takes for these labels.

    >>> legend_lines(["short", "a-name-with-so-many-words-in-it-that-it-takes-two-lines"])
    3
    """
    return sum(len(wrap(label, LETTERS)) for label in labels)


def legend_below(axes: Axes) -> None:
    """A legend under the panel, where it covers no line; long labels are wrapped, so that it is no wider."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.get_figure(root=True)
    assert figure is not None
    under = axes.transAxes + ScaledTranslation(0, -LABEL, figure.dpi_scale_trans)
    handles, labels = axes.get_legend_handles_labels()
    shown = [fill(label, LETTERS) for label in labels]
    axes.legend(handles, shown, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=under, borderaxespad=0)


def plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis 10, 100, 1000; matplotlib would write formulas."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(lambda _value, _place: "")


@drawing
def panel_images(figure: Figure) -> list[tuple[str, bytes]]:
    """Each panel by itself, its name and its SVG, without the figure's title.

    A page can put them beside or below each other, as wide as a screen is. The figure is of no use afterwards: its
    title and most of its panels are hidden.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # places stand, whatever is hidden now
    for part in (*figure.texts, *figure.axes):
        part.set_visible(False)
    found = []
    for axes in figure.axes:
        axes.set_visible(True)
        found.append((axes.get_title(loc="left") or axes.get_ylabel(), _cropped(figure, axes)))
        axes.set_visible(False)
    return found


def _cropped(figure: Figure, axes: Axes) -> bytes:
    """What a panel takes of a figure, and nothing around it."""
    box = axes.get_tightbbox()
    assert box is not None
    inches = box.transformed(figure.dpi_scale_trans.inverted()).padded(EDGE)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches=inches, metadata={"Date": None})
    return buffer.getvalue()


@drawing
def save_figure(figure: Figure, path: Path | str, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """Write `path` once per format, as path.svg and so on; each file is complete or absent."""
    written = []
    for form in formats:
        if form not in FORMATS:
            raise QuintetError(f"figures cannot be written as {form!r}; {suggest(form, FORMATS)}")
        target = Path(path).with_name(f"{Path(path).name}.{form}")
        # Without the date the same figure is the same file.
        facts: dict[str, Any] = {"Title": figure.get_suptitle()} | ({"Date": None} if form == "svg" else {})
        with atomic_write(target) as temporary:
            figure.savefig(temporary, format=form, dpi=DPI, metadata=facts)
        written.append(target)
    return written
