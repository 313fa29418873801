"""Every figure: titles and labels on all axes, text that stays text, files that are the same each time."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from quintet.errors import QuintetError
from quintet.report.analysis.correlation import draw_correlations
from quintet.report.analysis.cross_retrieval import draw_rank_intervals, draw_recalls
from quintet.report.analysis.discriminative_words import WordDrops, draw_word_drops, draw_word_means
from quintet.report.analysis.distributions import draw_similarities
from quintet.report.analysis.speed import draw_accuracy_against_speed
from quintet.report.analysis.training_curves import draw_curves
from quintet.report.figures import (
    COLOURS,
    draw_rank_histogram,
    panel_images,
    rank_edges,
    save_figure,
    series_styles,
)

pytest.importorskip("matplotlib")


def word_drops(words: str, *drops: float) -> WordDrops:
    return WordDrops(tuple(words.split()), 0.0, np.array(drops))


EDGES = np.linspace(-1, 1, 5)
EPOCHS = [1, 2, 3]
FIGURES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "similarities": (
        lambda: draw_similarities(
            {"one": (EDGES, [0, 0, 1, 1], [0, 1, 1, 0]), "two": (EDGES, [0, 0, 0, 2], [2, 0, 0, 0])}
        ),
        ["one: S = 0.5000", "two: S = 0.0000", "positive pairs (P)", "negative pairs (Q)"],
    ),
    "correlations": (
        lambda: draw_correlations({"before": np.array([[1.0, 0.5], [0.5, 1.0]]), "after": np.eye(2)}),
        ["before: mean 0.500", "after: mean 0.000", "Pearson's correlation"],
    ),
    "words": (
        lambda: draw_word_drops([word_drops("a red $5 ball", 0.0, 0.2, -0.3, 0.1)], top=1),
        ["a", "* red", "$5", "ball"],
    ),
    "word means": (lambda: draw_word_means(["red", "with"], [0.2, -0.1], [4, 9]), ["red (4)", "with (9)"]),
    "curves": (
        lambda: draw_curves(
            {"R@1": {"a": (EPOCHS, [1, 2, 3])}, "rsum": {"a": (EPOCHS, [1, float("nan"), 9])}}, "Training"
        ),
        ["Training", "R@1", "rsum", "epoch", "a"],
    ),
    "logarithmic losses": (
        lambda: draw_curves({"loss": {"a": (np.arange(99), np.geomspace(1, 100, 99))}}, "Losses", log=True),
        ["10", "100"],
    ),
    "recalls": (
        lambda: draw_recalls({"image to text": {"a": (np.arange(1, 51), np.linspace(10, 90, 50))}}),
        ["image to text", "a", "K", "50"],
    ),
    "ranks": (
        lambda: draw_rank_histogram({"image to text": {"a": [1, 1, 3, 200], "b": [2, 2, 2, 2]}}),
        ["image to text", "rank", "10", "100", "b"],
    ),
    "intervals": (
        lambda: draw_rank_intervals(["1", "2-5", ">5"], {"a": [50, 30, 20], "b": [60, 20, 20]}),
        ["2-5", ">5", "a", "b"],
    ),
    "speed": (
        lambda: draw_accuracy_against_speed(["fast", "good"], [1e6, 1e3], [250, 300], [(240, 260), (290, 305)]),
        ["fast", "good", "pairs per second", "rsum"],
    ),
}


def texts_of(path: Path) -> list[str]:
    return [
        " ".join(node.itertext()).strip() for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.mark.parametrize("name", FIGURES)
def test_text_stays_text_and_axes_have_names(name: str, tmp_path: Path) -> None:
    draw, expected = FIGURES[name]
    figure = draw()
    (path,) = save_figure(figure, tmp_path / "figure")
    found = texts_of(path)
    assert figure.get_suptitle() in found
    assert [text for text in expected if text not in found] == []
    assert not [text for text in found if "mathdefault" in text]
    for axes in figure.axes:
        assert axes.get_ylabel()
        assert axes.get_xlabel() or axes.get_label() == "<colorbar>"


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_figure_is_the_same_file(name: str, tmp_path: Path) -> None:
    draw, _ = FIGURES[name]
    files = [save_figure(draw(), tmp_path / f"figure{number}")[0].read_bytes() for number in range(2)]
    assert files[0] == files[1]


def test_panels_by_themselves_hold_their_own_text_and_no_other(tmp_path: Path) -> None:
    draw, _ = FIGURES["similarities"]
    images = panel_images(draw())
    assert [name for name, _ in images] == ["one: S = 0.5000", "two: S = 0.0000"]
    for number, (name, content) in enumerate(images):
        (tmp_path / "panel.svg").write_bytes(content)
        found = texts_of(tmp_path / "panel.svg")
        assert name in found
        assert images[1 - number][0] not in found
        assert draw().get_suptitle() not in found


def test_a_panel_by_itself_is_no_wider_than_its_part_of_the_figure() -> None:
    draw, _ = FIGURES["curves"]
    figure = draw()
    for _, content in panel_images(figure):
        width = float(ElementTree.fromstring(content).attrib["width"].removesuffix("pt")) / 72
        assert width < figure.get_figwidth() / 2 + 0.2


@pytest.mark.parametrize("name", ["curves", "recalls", "ranks", "intervals", "similarities"])
def test_legends_stand_below_their_panels(name: str) -> None:
    draw, _ = FIGURES[name]
    figure = draw()
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y1 < axes.xaxis.get_label().get_window_extent().y0
        assert axes.get_legend().get_window_extent().y0 >= 0


def test_long_names_of_runs_leave_panels_their_size() -> None:
    def panels(label: str) -> list[Any]:
        lines = {label: (EPOCHS, [1, 2, 3]), f"{label}-again": (EPOCHS, [3, 2, 1])}
        figure = draw_curves(dict.fromkeys(("R@1", "R@5", "rsum"), lines), "Training")
        figure.draw_without_rendering()
        return figure.axes

    for short, long in zip(
        panels("a"), panels("bfan-equal-seen-adap-off-quin-seed0-on-a-second-tower: offline"), strict=True
    ):
        assert long.get_window_extent().width > 0.9 * short.get_window_extent().width
        assert long.get_window_extent().height > 0.9 * short.get_window_extent().height
        assert long.get_legend().get_window_extent().x1 <= long.get_window_extent().x1
    first, _, third = panels("a")
    assert first.get_legend().get_window_extent().y0 > third.get_window_extent().y1  # the row below


def test_a_run_looks_the_same_in_all_panels() -> None:
    lines = {label: (EPOCHS, [1, 2, 3]) for label in "abc"}
    figure = draw_curves({"all": lines, "one": {"c": lines["c"]}}, "Training")
    first, second = figure.axes
    assert second.lines[0].get_color() == first.lines[2].get_color() != first.lines[0].get_color()


def test_only_words_that_cost_something_are_marked(tmp_path: Path) -> None:
    figure = draw_word_drops([word_drops("a red ball", -0.1, 0.0, 0.2)], top=3)
    (path,) = save_figure(figure, tmp_path / "figure")
    assert [text for text in texts_of(path) if text.startswith("* ")] == ["* ball"]


def test_formats(tmp_path: Path) -> None:
    figure = draw_word_means(["red"], [0.2], [4])
    paths = save_figure(figure, tmp_path / "deep" / "words.of.a", ("svg", "png"))
    assert [path.name for path in paths] == ["words.of.a.svg", "words.of.a.png"]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(QuintetError, match=r"'pgn'.*'png'"):
        save_figure(figure, tmp_path / "words", ("pgn",))


def test_colours_differ_for_the_colour_blind() -> None:
    """Under the three kinds of colour-blindness no two lines of a figure get nearly the same colour."""
    # Machado, Oliveira and Fernandes 2009, severity 1: protanopia, deuteranopia, tritanopia.
    kinds = np.array(
        [
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
        ]
    )
    colours = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in COLOURS])
    for kind in kinds:
        seen = colours @ kind.T
        distances = np.linalg.norm(seen[:, None] - seen, axis=-1)[np.triu_indices(len(seen), 1)]
        assert distances.min() > 0.1


def test_nothing_is_left_behind_in_matplotlib() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_word_means(["red"], [0.2], [4])
    assert dict(matplotlib.rcParams) == before


def test_rank_one_stands_alone_and_every_rank_has_a_bin() -> None:
    edges = rank_edges(5000)
    assert edges[:2].tolist() == [0.5, 1.5]
    assert edges[-1] == 5000.5
    assert (np.diff(edges) >= 1).all()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(QuintetError, match=r"quintet-retrieval\[report\]"):
        draw_word_means(["red"], [0.2], [4])


def test_styles_come_back_late() -> None:
    styles = list(itertools.islice(series_styles(), 49))
    assert len({(colour, marker) for colour, _, marker in styles}) == 49
    assert len({(colour, dashes) for colour, dashes, _ in styles}) == 28


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_figure_replaces_a_figure_and_nothing_of_somebody_else(tmp_path: Path, form: str) -> None:
    figure = draw_word_means(["red"], [0.2], [4])
    for _ in range(2):
        (path,) = save_figure(figure, tmp_path / "figure", (form,))
    path.write_bytes(b"<svg/>")
    with pytest.raises(QuintetError, match="is in the way"):
        save_figure(figure, tmp_path / "figure", (form,))
    assert path.read_bytes() == b"<svg/>"
