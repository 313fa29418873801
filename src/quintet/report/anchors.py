"""Anchors of the training split with their positives, online and offline hard negatives (AOQ, Figure 3).

The pairs are those of the first batch of a stage that trained on mined negatives, and their offline negatives the ones
that this batch drew. Their online negatives are the hardest of the same batch by the scores of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from quintet.data.corpus import Split
from quintet.data.negatives import NegativeLists, draw_offline
from quintet.errors import RunError
from quintet.report.analysis import Subject
from quintet.report.analysis.hard_negatives import first_epoch, recipe_of
from quintet.report.gallery import Direction, Showing
from quintet.training.inputs import open_data
from quintet.training.loop import DRAWING


@dataclass(frozen=True)
class Shown:
    """What an anchor is compared with: a row of the other modality, and the run's score of the two."""

    kind: str  # "positive", "online" or "offline"
    row: int
    score: float
    rank: int | None = None  # offline: its rank in the anchor's list, from 1


@dataclass(frozen=True)
class Anchor:
    direction: Direction  # i2t: an image with texts
    row: int
    shown: tuple[Shown, ...]


@dataclass(frozen=True)
class Anchors:
    """The anchors of one stage; rows are those of the split that it trained on."""

    stage: str
    batch_size: int
    split: Split
    found: tuple[Anchor, ...]


def anchors_of(subject: Subject, count: int) -> Anchors:
    """`count` images and as many texts of different groups, from the first batch of the first stage with negatives."""
    recipe = recipe_of(subject.run.folder)
    data = open_data(recipe, lambda _: None)
    for number, stage in enumerate(recipe.stages):
        folder = subject.run.folder / "stages" / stage.name / "negatives"
        if stage.negatives is not None and (folder / "manifest.json").is_file():
            lists = NegativeLists.open(folder)
            lists.check(data.train)
            pairs, rng = next(iter(first_epoch(recipe, number, data)))
            settings = stage.negatives.model_dump(include=DRAWING)
            drawn = draw_offline(lists, data.train, pairs, rng, **settings)
            images = _side(subject, data.train, count, "i2t", pairs, drawn.off_text, drawn.text_rank)
            texts = _side(subject, data.train, count, "t2i", pairs[:, ::-1], drawn.off_image, drawn.image_rank)
            return Anchors(stage.name, len(pairs), data.train, (*images, *texts))
    raise RunError(f"no stage of {subject.label} trained with mined negatives")


def _side(
    subject: Subject,
    split: Split,
    count: int,
    direction: Direction,
    pairs: np.ndarray,
    offline: np.ndarray,
    ranks: np.ndarray,
) -> list[Anchor]:
    """Anchors of one side; `pairs` (B, 2) are rows of anchors and their positives."""
    own, other = split.image_groups, split.text_groups
    if direction == "t2i":
        own, other = other, own
    _, first = np.unique(own[pairs[:, 0]], return_index=True)
    chosen = np.sort(first)[:count]
    scores = _scores(subject, split, direction, pairs[chosen, 0], np.concatenate([pairs[:, 1], offline[chosen]]))
    found = []
    for number, index in enumerate(chosen.tolist()):
        anchor, positive = pairs[index].tolist()
        batch = scores[number, : len(pairs)]
        shown = [Shown("positive", positive, float(batch[index]))]
        wrong = np.where(other[pairs[:, 1]] != own[anchor], batch, -np.inf)
        if np.isfinite(wrong).any():
            shown.append(Shown("online", int(pairs[wrong.argmax(), 1]), float(wrong.max())))
        score = float(scores[number, len(pairs) + number])
        shown.append(Shown("offline", int(offline[index]), score, int(ranks[index]) + 1))
        found.append(Anchor(direction, anchor, tuple(shown)))
    return found


def _scores(
    subject: Subject, split: Split, direction: Direction, anchors: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """(anchors, others)"""
    run = subject.run
    images, texts = (anchors, others) if direction == "i2t" else (others, anchors)
    image_batches = run.image_batches(subject.corpus, [split.images[row] for row in images], subject.batch_size)
    text_batches = run.text_batches([split.texts[row] for row in texts], subject.batch_size)
    scores = run.score(run.encode_images(image_batches), run.encode_texts(text_batches)).numpy()
    return scores if direction == "i2t" else scores.T


def anchors_html(anchors: Sequence[Anchor], showing: Showing) -> str:
    """Images with texts as tables, texts with images as cards, the positive first."""
    parts = []
    for direction, heading in (("i2t", "Images as anchors"), ("t2i", "Texts as anchors")):
        chosen = [anchor for anchor in anchors if anchor.direction == direction]
        if chosen:
            parts.append(f"<h3>{heading}</h3>" + "\n".join(_anchor_html(anchor, showing) for anchor in chosen))
    return "\n".join(parts)


def _anchor_html(anchor: Anchor, showing: Showing) -> str:
    if anchor.direction == "t2i":
        cards = "".join(
            f"<li{_right(one)}><figure>{showing.image(one.row)}<figcaption><span class=facts><b>{_name(one)}</b> "
            f"{one.score:.3f}</span></figcaption></figure></li>"
            for one in anchor.shown
        )
        return f'<section class="query"><h3>{showing.text(anchor.row)}</h3><ol>{cards}</ol></section>'
    lines = "".join(
        f"<tr{_right(one)}><th>{_name(one)}</th><td>{one.score:.3f}</td><td>{showing.text(one.row)}</td></tr>"
        for one in anchor.shown
    )
    return (
        f'<section class="query beside kinds"><figure>{showing.image(anchor.row)}</figure>'
        f"<div><table>{lines}</table></div></section>"
    )


def _right(one: Shown) -> str:
    return ' class="right"' if one.kind == "positive" else ""


def _name(one: Shown) -> str:
    return escape(one.kind if one.rank is None else f"{one.kind}, rank {one.rank}")
