"""The page of `quintet demo`: results, what mining found, searches that work, one that fails and why, attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from quintet.data.corpus import Image, Text
from quintet.data.scenes import captions
from quintet.evaluation.result import Result
from quintet.files import write_text
from quintet.report.analysis import Subject
from quintet.report.anchors import anchors_html, anchors_of
from quintet.report.gallery import (
    Retrieval,
    Showing,
    choose_examples,
    choose_failures,
    overlays_html,
    retrieval_html,
    retrieve,
)
from quintet.report.html_page import STYLE, document
from quintet.report.html_report import REPORT_STYLE
from quintet.report.overlays import can_attend, draw_overlays
from quintet.report.sections import results_html, run_scores

WORKING, SHOWN, ANCHORS = 3, 5, 2
TELLING = 9  # words of a text that describes most of its scene
# The words for each attribute of a scene, by its value.
_WORDS: dict[str, Mapping[str, tuple[str, ...]]] = {
    "shape": {shape: tuple(word for both in names for word in both) for shape, names in captions.NOUNS.items()},
    "colour": captions.COLOURS,
    "size": captions.SIZES,
    "texture": captions.TEXTURES,
}


def choose_searches(subject: Subject) -> tuple[list[Retrieval], Retrieval | None]:
    """Some texts that find their image first, and the one whose image has the worst rank, if any fails."""
    ranks, split = subject.ranks, subject.split
    best = dict(zip(ranks.t2i.rows.tolist(), ranks.t2i.best.tolist(), strict=True))
    order = [row for row in choose_examples(ranks, "t2i", len(split.groups)) if not best[row]]
    telling = [row for row in order if len(split.texts[row].text.split()) >= TELLING]
    rows = [*(telling or order)[:WORKING], *choose_failures(ranks, "t2i", 1)]
    found = retrieve(run_scores(subject), split, ranks, "t2i", rows, SHOWN)
    return [one for one in found if one.best_correct == 1], next((one for one in found if one.best_correct > 1), None)


def why_wrong(text: Text, wanted: Image, found: Image) -> str:
    """Why a search put another scene first, by what is known of both."""
    different = [name for name in (*_WORDS, "background") if _values(wanted, name) != _values(found, name)]
    if not different:
        return "The first result holds the same kinds of things; only their number or arrangement differs."
    said = [name for name in different if _says(text.text, name, _values(wanted, name))]
    kin = "of the same family " if wanted.extra["family"] == found.extra["family"] else ""
    if not said:
        unsaid = " and ".join(different)
        return f"The first result is another scene {kin}with a different {unsaid}, of which the text says nothing."
    differ = "; ".join(f"{name}: {_listed(wanted, name)} wanted, {_listed(found, name)} found" for name in said)
    return f"The first result is another scene {kin}that the matcher does not tell apart ({differ})."


def _values(image: Image, name: str) -> set[str]:
    if name == "background":
        return {image.extra["background"]}
    return {one["label" if name == "shape" else name] for one in image.extra["objects"]}


def _says(text: str, name: str, values: set[str]) -> bool:
    words = captions.BACKGROUNDS if name == "background" else _WORDS[name]
    padded = f" {text.lower().replace(',', ' ').replace('.', ' ')} "
    return any(word and f" {word} " in padded for value in values for word in words[value])


def _listed(image: Image, name: str) -> str:
    return ", ".join(sorted(_values(image, name)))


def write_demo_page(
    path: Path, subjects: Sequence[Subject], results: Mapping[str, Result], photos: Sequence[str]
) -> tuple[list[Retrieval], Retrieval | None]:
    """Write the page of the stages of one run, first to last; `photos` are the commands for one's own photos.

    Returns the searches that it shows: those that work, and the one that fails.
    """
    last = subjects[-1]
    split, showing = last.split, Showing(last.corpus, last.split, photographs=True)
    working, failing = choose_searches(last)
    first = (last.ranks.t2i.best == 0).mean()
    intro = (
        f"A matcher was trained on {len(last.corpus.splits['train']):,} generated scenes and searches the "
        f"{len(split.images)} scenes of split {split.name}, which it has not seen. Scenes come in families that differ "
        "in a colour, a number or a texture, so a search has to tell near-duplicates apart."
    )
    parts = [f'<p class="intro">{escape(intro)}</p>', results_html(results, f"On split {split.name}")]
    if len(subjects) > 1:
        parts.append(_part("What mining found", _mining(subjects, results)))
    searches = f"<p>{first:.0%} of the texts find their image first. Three of them:</p>"
    parts.append(_part("Searches that work", searches + "".join(retrieval_html(one, showing) for one in working)))
    if failing is not None:
        wanted, found = split.images[int(split.images_of_text[failing.row][0])], split.images[failing.candidates[0].row]
        why = why_wrong(split.texts[failing.row], wanted, found)
        html = f"<p>The text whose image has the worst rank. {escape(why)}</p>"
        parts.append(_part("A search that fails", html + retrieval_html(failing, showing)))
    if can_attend(last) and working:
        text, image = working[0].row, working[0].candidates[0].row
        drawn = overlays_html(showing.text(text), draw_overlays(last, image, text, photographs=True))
        parts.append(_part("Where each word looks", "<p>Bright regions have large weights for the word.</p>" + drawn))
    commands = "".join(f"<p><code>{escape(line)}</code></p>" for line in photos)
    parts.append(_part("Your own photos", commands))
    write_text(path, document("Quintet demo", "\n".join(parts), STYLE + REPORT_STYLE))
    return working, failing


def _mining(subjects: Sequence[Subject], results: Mapping[str, Result]) -> str:
    (one, before), (other, after) = ((name, results[name].metrics["rsum"]) for name in (*results,)[:: len(results) - 1])
    found = anchors_of(subjects[-1], ANCHORS)
    return (
        f"<p>Stage {escape(one)} learns from the hardest negatives of its batches of {found.batch_size} pairs. Then "
        f"every image is scored against every text of the training split, and stage {escape(other)} learns from the "
        f"hardest of all: rsum {before:.1f} before, {after:.1f} after, one seed. Below, some anchors with the hardest "
        "negative of their batch (online) and a mined one (offline, with its rank in the whole training split).</p>"
        + anchors_html(found.found, Showing(subjects[-1].corpus, found.split, photographs=True))
    )


def _part(title: str, html: str) -> str:
    return f'<section class="part"><h2>{escape(title)}</h2>\n{html}\n</section>'
