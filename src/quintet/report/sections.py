"""The parts of the report page, each from the material to HTML. A part that a run has nothing for says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

from quintet.errors import QuintetError
from quintet.evaluation.human_agreement import Agreement
from quintet.report.analysis import ANALYSES
from quintet.report.document import data_address
from quintet.report.figures import draw_accuracy_against_speed, panel_images, save_figure
from quintet.report.gallery import Showing, galleries_html, overlays_html
from quintet.report.measure import Material
from quintet.report.overlays import can_attend, draw_overlays
from quintet.report.page import metrics_table_html
from quintet.report.results_table import WORDS, results_html
from quintet.report.retrievals import Retrieval, choose_examples, choose_failures, retrieve

TEXTS = "words"  # figures whose names start so show whole texts of the corpus
OVERLAID = 4  # pairs whose attention is drawn


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    html: str


def figures_html(figures: Mapping[str, Any], folder: Path, photographs: bool) -> str:
    """Figures as files; inside the page their panels, which make room for each other on a phone."""
    parts = []
    for name, figure in figures.items():
        if name.startswith(TEXTS) and not photographs:
            continue
        (path,) = save_figure(figure, folder / name)
        title = escape(figure.get_suptitle())
        images = "".join(
            f'<img src="{data_address("image/svg+xml", content)}" alt="{title}: {escape(panel)}">'
            for panel, content in panel_images(figure)
        )
        parts.append(
            f'<figure class="chart"><div class="panels">{images}</div>'
            f"<figcaption>{title} <code>figures/{escape(path.name)}</code></figcaption></figure>"
        )
    return "\n".join(parts)


def analysis(kind: str, explanation: str) -> Callable[[Material, Path], str]:
    """A part that is an analysis of `quintet analyse`."""

    def html(material: Material, folder: Path) -> str:
        finding = ANALYSES.builder(kind)(material.subjects, material.settings.analysis)
        return f"<p>{explanation}</p>" + figures_html(finding.figures, folder, material.settings.photographs)

    return html


def results(material: Material, folder: Path) -> str:
    parts = [
        results_html(material.singles, "Single models", _of(material.people, material.singles)),
        results_html(
            material.together, "Ensembles: the mean of the members' scores", _of(material.people, material.together)
        ),
        "<p>Per cent of queries with a right answer among the first 1, 5 and 10, and their sum; below each number its "
        "95 % interval over test queries, drawn by group. Intervals say nothing of another training seed.</p>",
    ]
    if material.people:
        found = next(iter(material.people.values()))
        parts.append(
            f"<p>tau-c: Kendall's agreement of the scores with {found.judgements:,} expert judgements of "
            f"{found.pairs:,} pairs ({found.own_excluded} pairs of an image and its own caption left out, as "
            "CLIPScore does; CLIPScore publishes 0.512).</p>"
        )
    return "\n".join(filter(None, parts))


def _of(people: Mapping[str, Agreement], results: Mapping[str, Any]) -> dict[str, Agreement]:
    return {name: found for name, found in people.items() if name in results}


def speed(material: Material, folder: Path) -> str:
    names = list(material.singles)
    found = [material.singles[name] for name in names]
    intervals = [result.intervals["rsum"] for result in found] if material.settings.bootstrap else None
    rates = [material.speeds[name] for name in names]
    figure = draw_accuracy_against_speed(names, rates, [result.metrics["rsum"] for result in found], intervals)
    where = f"{material.first.device.type.upper()}, codes of both sides computed before"
    return f"<p>Pairs scored in a second ({where}), against rsum.</p>" + figures_html({"speed": figure}, folder, True)


def special(material: Material, folder: Path) -> str:
    rows = [
        {
            "queries": f"{row['samples']} {row['percent']} %",
            "run": row["run"],
            **{words: row[f"{way}_r1"] for way, words in WORDS.items()},
        }
        for row in material.special
    ]
    return (
        f"<p>R@1 on the queries that {escape(material.first.label)} finds most like their wrong candidates (hard) and "
        "least like them (infrequent), after HREM's Table 4.</p>" + metrics_table_html(rows, "R@1, per cent")
    )


def gallery(material: Material, folder: Path) -> str:
    rows = {way: choose_examples(material.first.ranks, way, material.settings.examples) for way in ("t2i", "i2t")}
    return "<p>Queries drawn at random.</p>" + _galleries(material, rows)


def failures(material: Material, folder: Path) -> str:
    rows = {way: choose_failures(material.first.ranks, way, material.settings.examples) for way in ("t2i", "i2t")}
    if not any(rows.values()):
        return "<p>Every query has a right answer at rank 1.</p>"
    return "<p>The queries whose first right answer stands last.</p>" + _galleries(material, rows)


def _galleries(material: Material, rows: Mapping[Any, list[int]]) -> str:
    subject = material.first
    found: list[Retrieval] = []
    for way, chosen in rows.items():
        found += retrieve(subject_scores(material), material.split, subject.ranks, way, chosen)
    note = "" if material.settings.photographs else _HIDDEN
    return note + galleries_html(found, Showing(material.corpus, material.split, material.settings.photographs))


_HIDDEN = (
    '<p class="soft">Images and texts are not shown here; <code>quintet report --photographs</code> shows them, '
    "for your own eyes.</p>"
)


def subject_scores(material: Material) -> Callable[[slice, slice], Any]:
    """Scores of the first run without filling up tiles: a gallery asks for single rows."""
    member, device = material.first.member, material.first.device

    @torch.no_grad()
    def score(images: slice, texts: slice) -> Any:
        return member.matcher.score(member.image_codes[images].to(device), member.text_codes[texts].to(device))

    return score


def attention(material: Material, folder: Path) -> str:
    subject = next((one for one in material.subjects if can_attend(one)), None)
    if subject is None:
        raise QuintetError("none of these matchers attends from words to regions")
    photographs = material.settings.photographs
    showing = Showing(material.corpus, material.split, photographs)
    parts = [] if photographs else [_HIDDEN]
    for text in choose_examples(subject.ranks, "t2i", OVERLAID):
        image = int(material.split.images_of_text[text][0])
        parts.append(overlays_html(showing.text(text), draw_overlays(subject, image, text, photographs)))
    return f"<p>Where the words look, {escape(subject.label)}: bright is attended to.</p>" + "\n".join(parts)


PARTS: tuple[tuple[str, str, Callable[[Material, Path], str]], ...] = (
    ("results", "Results", results),
    ("training", "Training", analysis("curves", "Validation metrics and losses by epoch.")),
    ("ranks", "Recalls and ranks", analysis("ranks", "How deep one has to look; and whether a pair is found from both "
     "sides: the worse of its two ranks, on the scale of the texts (AOQ supplement).")),
    ("distributions", "Right and wrong pairs", analysis("distributions", "Scores of all pairs. S is the area both "
     "share (Dual-Path, Eq. 10); 0 would be perfect.")),
    ("speed", "Accuracy against speed", speed),
    ("special", "Hard and infrequent samples", special),
    ("gallery", "Searches", gallery),
    ("failures", "Failures", failures),
    ("attention", "Attention", attention),
    ("words", "Discriminative words", analysis("words", "How much of the score is lost without a word (Dual-Path, "
     "Fig. 11).")),
)  # fmt: skip
