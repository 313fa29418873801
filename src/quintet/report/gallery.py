"""Galleries: queries chosen at random or by failure, their best candidates in both directions, and these as HTML.

Without photographs neither images nor texts are shown, only their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np

from quintet.data.corpus import Corpus, Split
from quintet.evaluation.ranks import Ranks, ScoreBlock
from quintet.report.html_page import thumbnail
from quintet.report.overlays import Overlay

Direction = Literal["i2t", "t2i"]


@dataclass(frozen=True)
class Candidate:
    row: int  # of a text (i2t) or of an image (t2i)
    rank: int  # from 1
    score: float
    correct: bool


@dataclass(frozen=True)
class Retrieval:
    """A query with its best candidates, and the best correct one if it is not among them."""

    direction: Direction
    row: int
    best_correct: int  # rank of the best correct candidate among the wrong ones, from 1, as recalls count it
    candidates: tuple[Candidate, ...]


def choose_examples(ranks: Ranks, direction: Direction, count: int, seed: int = 0) -> list[int]:
    """Rows of random queries, at most one per group."""
    queries = getattr(ranks, direction)
    order = np.random.default_rng(seed).permutation(len(queries))
    return _one_per_group(queries.rows[order], queries.groups[order], count)


def choose_failures(ranks: Ranks, direction: Direction, count: int) -> list[int]:
    """Rows of the queries whose best correct candidate has the worst rank, worst first, at most one per group."""
    queries = getattr(ranks, direction)
    order = np.argsort(-queries.best, kind="stable")
    order = order[queries.best[order] > 0]
    return _one_per_group(queries.rows[order], queries.groups[order], count)


def choose_differences(one: Ranks, other: Ranks, direction: Direction, count: int) -> list[int]:
    """Rows of the queries whose best correct candidates stand furthest apart in two rankings, at most one per group.

    Distances are ratios: rank 1 against 10 is as far as 10 against 100.
    """
    first, second = getattr(one, direction), getattr(other, direction)
    apart = np.abs(np.log((first.best + 1) / (second.best + 1)))
    order = np.argsort(-apart, kind="stable")
    order = order[apart[order] > 0]
    return _one_per_group(first.rows[order], first.groups[order], count)


def _one_per_group(rows: np.ndarray, groups: np.ndarray, count: int) -> list[int]:
    _, first = np.unique(groups, return_index=True)
    return rows[np.sort(first)[:count]].tolist()


def retrieve(
    score_block: ScoreBlock, split: Split, ranks: Ranks, direction: Direction, rows: Sequence[int], count: int = 5
) -> list[Retrieval]:
    """The `count` best candidates of each query, and its best correct one."""
    queries = getattr(ranks, direction)
    best = dict(zip(queries.rows.tolist(), (queries.best + 1).tolist(), strict=True))
    return [_retrieve(score_block, split, direction, row, best[row], count) for row in rows]


def _retrieve(
    score_block: ScoreBlock, split: Split, direction: Direction, row: int, best: int, count: int
) -> Retrieval:
    if direction == "i2t":
        scores = score_block(slice(row, row + 1), slice(0, len(split.texts)))[0]  # (n_texts,)
        correct = split.text_groups == split.image_groups[row]
    else:
        scores = score_block(slice(0, len(split.images)), slice(row, row + 1))[:, 0]  # (n_images,)
        correct = split.image_groups == split.text_groups[row]
    values = scores.float().cpu().numpy()
    order = np.lexsort((correct, -values))  # a wrong candidate that ties goes first, as in the ranks
    shown = list(range(min(count, len(order))))
    first = int(np.argmax(correct[order]))
    shown += [first] if first not in shown else []
    found = tuple(Candidate(int(order[k]), k + 1, float(values[order[k]]), bool(correct[order[k]])) for k in shown)
    return Retrieval(direction, row, best, found)


class Showing:
    """HTML of the images and texts of a split: themselves, or their ids if photographs are not shown."""

    def __init__(self, corpus: Corpus, split: Split, photographs: bool) -> None:
        self.corpus, self.split, self.photographs = corpus, split, photographs

    def image(self, row: int) -> str:
        image = self.split.images[row]
        if not self.photographs or image.path is None:
            return f'<span class="stand-in">image {escape(image.id)}</span>'
        address = thumbnail(Path(self.corpus.root) / image.path)
        return f'<img src="{address}" alt="image {escape(image.id)}">'

    def text(self, row: int) -> str:
        text = self.split.texts[row]
        return escape(text.text) if self.photographs else f'<span class="soft">caption {escape(text.id)}</span>'


def retrieval_html(found: Retrieval, showing: Showing) -> str:
    """A query with its candidates, best first, the correct ones marked."""
    note = f"First correct result at rank {found.best_correct}."
    if found.direction == "t2i":
        cards = "".join(_card(candidate, showing.image(candidate.row)) for candidate in found.candidates)
        return f'<section class="query"><h3>{showing.text(found.row)}</h3><p>{note}</p><ol>{cards}</ol></section>'
    lines = "".join(_line(candidate, showing.text(candidate.row)) for candidate in found.candidates)
    return (
        f'<section class="query beside"><figure>{showing.image(found.row)}</figure>'
        f"<div><p>{note}</p><table>{lines}</table></div></section>"
    )


def compared_html(found: Sequence[tuple[str, Retrieval]], showing: Showing) -> str:
    """One query with the candidates of several runs side by side, each under its name."""
    _, query = found[0]
    columns = []
    for name, retrieval in found:
        note = f"<h4>{escape(name)}</h4><p>First correct result at rank {retrieval.best_correct}.</p>"
        if query.direction == "t2i":
            cards = "".join(_card(one, showing.image(one.row)) for one in retrieval.candidates)
            columns.append(f'<div>{note}<ol class="small">{cards}</ol></div>')
        else:
            lines = "".join(_line(one, showing.text(one.row)) for one in retrieval.candidates)
            columns.append(f"<div>{note}<table>{lines}</table></div>")
    if query.direction == "t2i":
        head = f"<h3>{showing.text(query.row)}</h3>"
    else:
        head = f"<figure>{showing.image(query.row)}</figure>"
    return f'<section class="query">{head}<div class="versus beside">{"".join(columns)}</div></section>'


def _card(candidate: Candidate, shown: str) -> str:
    facts = f'<figcaption><span class="facts">{_facts(candidate)}</span></figcaption>'
    return f"<li{' class=right' if candidate.correct else ''}><figure>{shown}{facts}</figure></li>"


def _line(candidate: Candidate, shown: str) -> str:
    kind = ' class="right"' if candidate.correct else ""
    mark = '<span class="mark">✓ correct</span>' if candidate.correct else ""
    return f"<tr{kind}><th>{candidate.rank}</th><td>{candidate.score:.3f}</td><td>{shown} {mark}</td></tr>"


def _facts(candidate: Candidate) -> str:
    mark = '<span class="mark">✓ correct</span>' if candidate.correct else ""
    return f"<b>{candidate.rank}</b> {candidate.score:.3f}{mark}"


def galleries_html(found: Sequence[Retrieval], showing: Showing) -> str:
    """The retrievals under a heading for each direction."""
    parts = []
    for direction, heading in (("t2i", "Text to image"), ("i2t", "Image to text")):
        chosen = [retrieval for retrieval in found if retrieval.direction == direction]
        if chosen:
            parts.append(f"<h3>{heading}</h3>" + "\n".join(retrieval_html(one, showing) for one in chosen))
    return "\n".join(parts)


def overlays_html(title: str, overlays: Sequence[Overlay]) -> str:
    """The drawings of one pair, one per word; `title` is HTML."""
    cards = ""
    for number, overlay in enumerate(overlays, 1):
        word = f"word {number}" if overlay.word is None else escape(overlay.word)
        drawing = f'<img src="{overlay.address}" alt="attention of word {number}">'
        cards += f"<li><figure>{drawing}<figcaption>{word}</figcaption></figure></li>"
    return f'<section class="query"><h3>{title}</h3><ol class="small">{cards}</ol></section>'
