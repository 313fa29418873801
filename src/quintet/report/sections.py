"""The sections of the report page, each made from the material. A section that does not apply says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quintet.errors import QuintetError
from quintet.evaluation.human_agreement import Agreement
from quintet.evaluation.metrics import DIRECTIONS, RECALLS
from quintet.evaluation.ranks import ScoreBlock
from quintet.evaluation.result import Result
from quintet.protocols import ShowsJointAttention
from quintet.report.analysis import ANALYSES, Ensemble, Subject
from quintet.report.analysis.speed import draw_accuracy_against_speed
from quintet.report.anchors import anchors_html, anchors_of
from quintet.report.figures import DIRECTION_NAMES, panel_images, save_figure
from quintet.report.gallery import (
    Direction,
    Retrieval,
    Showing,
    choose_differences,
    choose_examples,
    choose_failures,
    compared_html,
    galleries_html,
    overlays_html,
    retrieve,
)
from quintet.report.html_page import data_address, metrics_table_html
from quintet.report.material import Material
from quintet.report.overlays import can_attend, draw_overlays

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXTS = "words"  # figures whose names start so show whole texts of the corpus
OVERLAID = 4  # pairs whose attention is drawn
GALLERIES: tuple[Direction, ...] = ("t2i", "i2t")
HEADINGS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "MedR"}
COLUMNS = [f"{direction}_{name}" for direction in DIRECTIONS for name in HEADINGS]


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    html: str


def figures_html(figures: Mapping[str, Figure], folder: Path, photographs: bool) -> str:
    """Save the figures as files, and show their panels on the page, where they wrap on a narrow screen."""
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
    """A section that is an analysis of `quintet analyse`."""

    def html(material: Material, folder: Path) -> str:
        finding = ANALYSES.builder(kind)(material.subjects, material.settings.analysis)
        return f"<p>{explanation}</p>" + figures_html(finding.figures, folder, material.settings.photographs)

    return html


def results(material: Material, folder: Path) -> str:
    """Tables of the single models and of the ensembles."""
    agreements = material.agreements
    parts = [
        results_html(material.single_results, "Single models", agreements),
        results_html(material.ensemble_results, "Ensembles: the mean of the members' scores", agreements),
        "<p>R@K: per cent of queries with a correct result among the first K; rsum: the sum of the six recalls; MedR: "
        "median rank of the best correct result. Below each number its 95 % bootstrap interval over test queries, "
        "resampled by group. Intervals do not include the variance over training seeds.</p>",
    ]
    if agreements:
        found = next(iter(agreements.values()))
        parts.append(
            f"<p>tau-c: Kendall's agreement of the scores with {found.judgements:,} expert judgements of "
            f"{found.pairs:,} pairs, without the {found.own_excluded} pairs of an image and its own caption, as in "
            "CLIPScore, which publishes 0.512.</p>"
        )
    return "\n".join(filter(None, parts))


def results_html(results: Mapping[str, Result], caption: str, agreements: Mapping[str, Agreement] | None = None) -> str:
    """One table, the best recalls in bold; with `agreements` a column of tau-c. Empty without results."""
    if not results:
        return ""
    best = {name: max(result.metrics[name] for result in results.values()) for name in (*RECALLS, "rsum")}
    ways = "".join(f'<th scope="colgroup" colspan="{len(HEADINGS)}">{DIRECTION_NAMES[way]}</th>' for way in DIRECTIONS)
    heads = [*HEADINGS.values(), *HEADINGS.values(), "rsum", *(["tau-c"] if agreements else [])]
    columns = "".join(f'<th scope="col">{heading}</th>' for heading in heads)
    rows = []
    for name, result in results.items():
        cells = [_cell(result, column, best) for column in (*COLUMNS, "rsum")]
        rows.append(_row(escape(name), [*cells, *([_agreement(agreements.get(name))] if agreements else [])]))
    chance = next(iter(results.values())).chance
    last = [_number(column, chance[column]) for column in (*COLUMNS, "rsum")]
    rows.append(_row("chance", [*last, *(["0.000"] if agreements else [])], "soft"))
    extra = "<td></td>" if agreements else ""
    return (
        f'<div class="wide results" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr><td></td>{ways}<td></td>{extra}</tr>"
        f"<tr><td></td>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(heading: str, cells: list[str], kind: str = "") -> str:
    return f'<tr class="{kind}"><th scope="row">{heading}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _cell(result: Result, name: str, best: Mapping[str, float]) -> str:
    number = _number(name, result.metrics[name])
    shown = f"<b>{number}</b>" if result.metrics[name] == best.get(name) else number
    interval = result.intervals.get(name)
    return shown + ("" if interval is None else _small(f"{interval[0]:.1f} to {interval[1]:.1f}"))


def _number(name: str, value: float) -> str:
    return f"{value:g}" if name.endswith("medr") else f"{value:.1f}"


def _agreement(found: Agreement | None) -> str:
    if found is None:
        return ""
    interval = "" if found.interval is None else _small(f"{found.interval[0]:.3f} to {found.interval[1]:.3f}")
    return f"{found.tau_c:.3f}{interval}"


def _small(text: str) -> str:
    return f'<br><span class="soft">{text}</span>'


def speed(material: Material, folder: Path) -> str:
    names = list(material.single_results)
    found = [material.single_results[name] for name in names]
    intervals = [result.intervals["rsum"] for result in found] if material.settings.bootstrap else None
    rates = [material.speeds[name] for name in names]
    figure = draw_accuracy_against_speed(names, rates, [result.metrics["rsum"] for result in found], intervals)
    where = f"{material.first.device.type.upper()}, from codes computed before"
    return f"<p>rsum over the number of pairs scored per second ({where}).</p>" + figures_html(
        {"speed": figure}, folder, True
    )


def special(material: Material, folder: Path) -> str:
    rows = [
        {
            "queries": f"{row['samples']} {row['percent']} %",
            "run": row["run"],
            **{name: row[f"{direction}_r1"] for direction, name in DIRECTION_NAMES.items()},
        }
        for row in material.special
    ]
    return (
        f"<p>R@1 on the queries with the highest (hard) and the lowest (infrequent) mean score with their negatives "
        f"under {escape(material.first.label)}, as in HREM's Table 4.</p>" + metrics_table_html(rows, "R@1 (%)")
    )


def gallery(material: Material, folder: Path) -> str:
    rows = {way: choose_examples(material.first.ranks, way, material.settings.examples) for way in GALLERIES}
    return "<p>Random queries.</p>" + _galleries(material, rows)


def failures(material: Material, folder: Path) -> str:
    rows = {way: choose_failures(material.first.ranks, way, material.settings.examples) for way in GALLERIES}
    if not any(rows.values()):
        return "<p>Every query has a correct result at rank 1.</p>"
    return "<p>The queries whose best correct result has the worst rank.</p>" + _galleries(material, rows)


def _galleries(material: Material, rows: Mapping[Direction, list[int]]) -> str:
    subject = material.first
    found: list[Retrieval] = []
    for way, chosen in rows.items():
        found += retrieve(run_scores(subject), material.split, subject.ranks, way, chosen)
    note = "" if material.settings.photographs else _HIDDEN
    return note + galleries_html(found, Showing(material.corpus, material.split, material.settings.photographs))


_HIDDEN = (
    '<p class="soft">Images and texts are not shown here; <code>quintet report --photographs</code> shows them, '
    "for private use.</p>"
)


def run_scores(subject: Subject) -> ScoreBlock:
    """Scores of a run, or the mean of an ensemble's, without filling up tiles: a gallery needs single rows."""

    def scores(rows: slice, columns: slice) -> Tensor:
        found = [one.run.score(one.member.image_codes[rows], one.member.text_codes[columns]) for one in subject.parts]
        return torch.stack(found).mean(dim=0)

    return scores


# How many candidates are shown beside each other, as in AOQ's Figures 5, 7 and 8.
COMPARED: tuple[tuple[Direction, int, str], ...] = (("i2t", 5, "Image to text"), ("t2i", 3, "Text to image"))


def differences(material: Material, folder: Path) -> str:
    """The first run beside each other run, and the first ensemble beside each other one, on the same queries."""
    teams = [Ensemble(team) for team in material.ensembles.values()]
    pairs = [(one[0], other) for one in (list(material.subjects), teams) for other in one[1:]]
    if not pairs:
        raise QuintetError("there is one run; name a second one, such as its baseline")
    showing = Showing(material.corpus, material.split, material.settings.photographs)
    parts = [
        "<p>Queries whose best correct results stand furthest apart in the two rankings, whichever is better: the five "
        "best texts of an image and the three best images of a text, as in AOQ's Figures 5, 7 and 8.</p>"
    ]
    parts += [] if material.settings.photographs else [_HIDDEN]
    for one, other in pairs:
        parts.append(f"<h3>{escape(one.label)} and {escape(other.label)}</h3>")
        for direction, count, heading in COMPARED:
            rows = choose_differences(one.ranks, other.ranks, direction, material.settings.examples)
            if not rows:
                parts.append(f"<p>{heading}: no query differs in the rank of its best correct result.</p>")
            found = [
                retrieve(run_scores(each), material.split, each.ranks, direction, rows, count) for each in (one, other)
            ]
            for both in zip(*found, strict=True):
                parts.append(compared_html(list(zip((one.label, other.label), both, strict=True)), showing))
    return "\n".join(parts)


def training_negatives(material: Material, folder: Path) -> str:
    """Anchors with their online and offline negatives (AOQ, Figure 3), of the first run that trained with lists."""
    reasons = []
    for subject in material.subjects:
        try:
            found = anchors_of(subject, material.settings.examples)
        except QuintetError as error:
            reasons.append(str(error))
            continue
        photographs = material.settings.photographs
        intro = (
            f"<p>Anchors of the first batch of {found.batch_size} pairs of stage {escape(found.stage)} of "
            f"{escape(subject.label)}, with their positives, the hardest negatives of that batch (online) and the ones "
            "drawn from the mined lists (offline, with their ranks there), as in AOQ's Figure 3. Scores are the "
            "run's.</p>"
        )
        return (
            intro
            + ("" if photographs else _HIDDEN)
            + anchors_html(found.found, Showing(material.corpus, found.split, photographs))
        )
    raise QuintetError("; ".join(dict.fromkeys(reasons)))


def attention(material: Material, folder: Path) -> str:
    subject = next((one for one in material.subjects if can_attend(one)), None)
    if subject is None:
        raise QuintetError("none of these matchers has attention from words to regions")
    photographs = material.settings.photographs
    showing = Showing(material.corpus, material.split, photographs)
    parts = [] if photographs else [_HIDDEN]
    for text in choose_examples(subject.ranks, "t2i", OVERLAID):
        image = int(material.split.images_of_text[text][0])
        parts.append(overlays_html(showing.text(text), draw_overlays(subject, image, text, photographs)))
    if isinstance(subject.run.matcher, ShowsJointAttention):
        explanation = "Attention across and within the modalities (MMCA, Fig. 1): rows look at columns."
        parts.append(analysis("attention", explanation)(material, folder))
    return f"<p>Attention of each word ({escape(subject.label)}): bright regions have large weights.</p>" + "\n".join(
        parts
    )


PARTS: tuple[tuple[str, str, Callable[[Material, Path], str]], ...] = (
    ("results", "Results", results),
    ("training", "Training", analysis("curves", "Validation metrics and losses by epoch.")),
    ("ranks", "Recalls and ranks", analysis("ranks", "Recall at K, ranks of the best positive, and cross-retrieval "
     "ranks: the worse of the two ranks of a pair, on the scale of the texts (AOQ supplement).")),
    ("distributions", "Positive and negative pairs", analysis("distributions", "Score distributions of all pairs. S is "
     "the overlap of the two densities (Dual-Path, Eq. 10); lower is better.")),
    ("speed", "Accuracy against speed", speed),
    ("special", "Hard and infrequent samples", special),
    ("gallery", "Searches", gallery),
    ("failures", "Failures", failures),
    ("differences", "Side by side", differences),
    ("negatives", "Online and offline negatives", training_negatives),
    ("attention", "Attention", attention),
    ("words", "Discriminative words", analysis("words", "Drop of the score without a word (Dual-Path, Fig. 11).")),
)  # fmt: skip
