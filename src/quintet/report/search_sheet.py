"""A self-contained page of search results, with images and explanations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from quintet.data.images import open_image
from quintet.errors import ImageError
from quintet.files import output_text
from quintet.report.html_page import STYLE, document, image_address, thumbnail
from quintet.report.overlays import SIZE, highlight
from quintet.search.explain import Explanation


@dataclass(frozen=True)
class Result:
    """One image or text that was found."""

    score: float
    image: Path | None  # None: a text, or an image file that no longer exists
    caption: str
    explanation: Explanation | None = None


@dataclass(frozen=True)
class Answers:
    query: str  # the text, or the name of the query image
    results: Sequence[Result]  # best first
    image: Path | None = None  # the query image


def write_search_sheet(path: Path, answers: Sequence[Answers]) -> None:
    """Write the page to `path`; all texts are escaped, nothing is fetched."""
    output_text(path, document("Search results", "\n".join(map(_section, answers)), STYLE + _STYLE))


def _section(answers: Answers) -> str:
    asked = (
        ""
        if answers.image is None
        else f'<p><img class="asked" src="{thumbnail(answers.image)}" alt="query image"></p>'
    )
    cards = "\n".join(_card(rank, result) for rank, result in enumerate(answers.results, 1))
    found = f"<ol>\n{cards}\n</ol>" if answers.results else "<p>No results.</p>"
    return f"<section>\n<h2>{escape(answers.query[:300])}</h2>\n{asked}{found}\n</section>"


def _card(rank: int, result: Result) -> str:
    shown, image = "", result.image
    if image is not None:
        try:
            shown = f'<img src="{thumbnail(image)}" alt="{escape(result.caption)}">'
        except ImageError as error:  # removed or damaged after indexing: the other results are still valid
            shown, image = f"<p>{escape(str(error))}</p>", None
    facts = f'<span class="facts"><b>{rank}</b> <span class="score">{result.score:.3f}</span></span>'
    why = "" if result.explanation is None else _why(result.explanation, image)
    return (
        f"<li><figure>{shown}<figcaption>{facts}<span>{escape(result.caption)}</span>{why}</figcaption></figure></li>"
    )


def _why(explanation: Explanation, image: Path | None) -> str:
    """The words with an opacity by their weight, and the attention of each on the image."""
    top = max((abs(word.weight) for word in explanation.words), default=0) or 1
    words = " ".join(
        f'<span style="opacity:{0.35 + 0.65 * max(word.weight, 0) / top:.2f}" title="{word.weight:+.3f}">'
        f"{escape(word.word)}</span>"
        for word in explanation.words
    )
    if explanation.regions is None or image is None:
        return f'<p class="words">{words}</p>'
    background = open_image(image)
    background.thumbnail((SIZE, SIZE), Image.Resampling.LANCZOS)
    drawn = "".join(
        f'<figure><img src="{image_address(highlight(background, region.weights, region.boxes))}" alt="attention of '
        f'{escape(region.word)}"><figcaption>{escape(region.word)}</figcaption></figure>'
        for region in explanation.regions
    )
    return f'<p class="words">{words}</p><details><summary>attention of each word</summary><div>{drawn}</div></details>'


_STYLE = """
.asked { width: min(14rem, 60%); border-radius: 10px; }
.words { margin: .4rem 0 0; }
.words span { display: inline; }
section > p { max-width: none; }
ol { align-items: start; }
figure { height: auto; }
summary { cursor: pointer; color: var(--soft); }
details > div { display: grid; grid-template-columns: 1fr 1fr; gap: .4rem; margin-top: .4rem; }
"""
