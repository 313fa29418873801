"""Galleries as HTML. Without photographs neither images nor texts are shown, only their ids."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from quintet.data.corpus import Corpus, Split
from quintet.report.document import thumbnail
from quintet.report.overlays import Overlay
from quintet.report.retrievals import Candidate, Retrieval


class Showing:
    """How images and texts of a split appear on the page."""

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
    """A query with its candidates, best first, right ones marked."""
    note = f"First right answer at rank {found.best_right}."
    if found.way == "t2i":
        cards = "".join(_card(candidate, showing.image(candidate.row)) for candidate in found.candidates)
        return f'<section class="query"><h3>{showing.text(found.row)}</h3><p>{note}</p><ol>{cards}</ol></section>'
    lines = "".join(_line(candidate, showing.text(candidate.row)) for candidate in found.candidates)
    return (
        f'<section class="query beside"><figure>{showing.image(found.row)}</figure>'
        f"<div><p>{note}</p><table>{lines}</table></div></section>"
    )


def _card(candidate: Candidate, shown: str) -> str:
    facts = f'<figcaption><span class="facts">{_facts(candidate)}</span></figcaption>'
    return f"<li{' class=right' if candidate.right else ''}><figure>{shown}{facts}</figure></li>"


def _line(candidate: Candidate, shown: str) -> str:
    kind = ' class="right"' if candidate.right else ""
    mark = '<span class="mark">✓ right</span>' if candidate.right else ""
    return f"<tr{kind}><th>{candidate.rank}</th><td>{candidate.score:.3f}</td><td>{shown} {mark}</td></tr>"


def _facts(candidate: Candidate) -> str:
    mark = '<span class="mark">✓ right</span>' if candidate.right else ""
    return f"<b>{candidate.rank}</b> {candidate.score:.3f}{mark}"


def galleries_html(found: Sequence[Retrieval], showing: Showing) -> str:
    parts = []
    for way, words in (("t2i", "From text to images"), ("i2t", "From image to texts")):
        of_way = [retrieval for retrieval in found if retrieval.way == way]
        if of_way:
            parts.append(f"<h3>{words}</h3>" + "\n".join(retrieval_html(one, showing) for one in of_way))
    return "\n".join(parts)


def overlays_html(title: str, overlays: Sequence[Overlay]) -> str:
    """The drawings of one pair, a word each."""
    cards = ""
    for number, overlay in enumerate(overlays, 1):
        word = f"word {number}" if overlay.word is None else escape(overlay.word)
        drawing = f'<img src="{overlay.address}" alt="where word {number} looks">'
        cards += f"<li><figure>{drawing}<figcaption>{word}</figcaption></figure></li>"
    return f'<section class="query"><h3>{title}</h3><ol class="small">{cards}</ol></section>'
