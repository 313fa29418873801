from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image as PILImage

from quintet.data.corpus import Corpus, Image, Text
from quintet.report.gallery import Showing, galleries_html, overlays_html
from quintet.report.overlays import Overlay
from quintet.report.retrievals import Candidate, Retrieval

TRICKY = 'a <b>dog</b> & a "cat"'
FOUND = [
    Retrieval("t2i", 0, 2, (Candidate(0, 1, 0.75, False), Candidate(1, 2, 0.5, True))),
    Retrieval("i2t", 1, 1, (Candidate(0, 1, 0.25, True),)),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    for name in ("0", "1"):
        PILImage.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    images = [Image(f"{name}.png", name, f"{name}.png") for name in ("0", "1")]
    texts = [Text(f"{name}#0", name, TRICKY) for name in ("0", "1")]
    return Corpus("small", images, texts, {"test": ["0", "1"]}, root=tmp_path)


def test_texts_are_text_not_html(corpus: Corpus) -> None:
    html = galleries_html(FOUND, Showing(corpus, corpus.split("test"), photographs=True))
    assert "a &lt;b&gt;dog&lt;/b&gt; &amp; a &quot;cat&quot;" in html
    assert "<b>dog" not in html
    assert html.count("<img") == 3


def test_only_right_answers_are_marked(corpus: Corpus) -> None:
    html = galleries_html(FOUND, Showing(corpus, corpus.split("test"), photographs=True))
    cards = html.split("<li")[1:3]
    assert "✓ right" not in cards[0]
    assert "✓ right" in cards[1]
    assert "First right answer at rank 2." in html


def test_without_photographs_ids_stand_for_images_and_texts(corpus: Corpus) -> None:
    html = galleries_html(FOUND, Showing(corpus, corpus.split("test"), photographs=False))
    assert "dog" not in html
    assert "<img" not in html
    assert "image 1.png" in html
    assert "caption 0#0" in html


def test_words_of_overlays_are_numbered_where_texts_are_not_shown() -> None:
    assert ">word 2<" in overlays_html("pair", [Overlay(None, "data:,"), Overlay(None, "data:,")])
    assert ">&lt;x&gt;<" in overlays_html("pair", [Overlay("<x>", "data:,")])
