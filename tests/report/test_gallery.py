from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.evaluation.ranks import Ranks, ranks_of_matrix
from quintet.report.gallery import (
    Candidate,
    Direction,
    Retrieval,
    Showing,
    choose_differences,
    choose_examples,
    choose_failures,
    galleries_html,
    overlays_html,
    retrieve,
)
from quintet.report.overlays import Overlay

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


def test_only_correct_results_are_marked(corpus: Corpus) -> None:
    html = galleries_html(FOUND, Showing(corpus, corpus.split("test"), photographs=True))
    cards = html.split("<li")[1:3]
    assert "✓ correct" not in cards[0]
    assert "✓ correct" in cards[1]
    assert "at rank 2" in html


def test_without_photographs_ids_stand_for_images_and_texts(corpus: Corpus) -> None:
    html = galleries_html(FOUND, Showing(corpus, corpus.split("test"), photographs=False))
    assert "dog" not in html
    assert "<img" not in html
    assert "image 1.png" in html
    assert "caption 0#0" in html


def test_words_of_overlays_are_numbered_where_texts_are_not_shown() -> None:
    assert ">word 2<" in overlays_html("pair", [Overlay(None, "data:,"), Overlay(None, "data:,")])
    assert ">&lt;x&gt;<" in overlays_html("pair", [Overlay("<x>", "data:,")])


GROUPS, TEXTS = 8, 3


@pytest.fixture
def split() -> Split:
    images = [Image(f"i{group}", str(group)) for group in range(GROUPS)]
    texts = [Text(f"t{group}-{k}", str(group), "words") for group in range(GROUPS) for k in range(TEXTS)]
    return Corpus("small", images, texts, {"test": [str(group) for group in range(GROUPS)]}).split("test")


@pytest.fixture
def scores() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.integers(0, 4, (GROUPS, GROUPS * TEXTS)).astype(np.float32)  # with many ties


@pytest.fixture
def ranks(scores: np.ndarray, split: Split) -> Ranks:
    return ranks_of_matrix(scores, split.image_groups, split.text_groups)


@pytest.mark.parametrize("way", ["i2t", "t2i"])
def test_candidates_stand_where_the_ranks_say(scores: np.ndarray, split: Split, ranks: Ranks, way: Direction) -> None:
    matrix = torch.from_numpy(scores)
    queries = getattr(ranks, way)
    found = retrieve(lambda images, texts: matrix[images, texts], split, ranks, way, queries.rows.tolist(), count=3)
    for retrieval, best in zip(found, queries.best, strict=True):
        own = scores[retrieval.row] if way == "i2t" else scores[:, retrieval.row]
        assert retrieval.best_correct == best + 1
        assert [candidate.rank for candidate in retrieval.candidates][:3] == [1, 2, 3]
        assert all(candidate.score == own[candidate.row] for candidate in retrieval.candidates)
        first = next(candidate for candidate in retrieval.candidates if candidate.correct)
        assert first.rank == retrieval.best_correct
        groups = split.text_groups if way == "i2t" else split.image_groups
        query = split.image_groups if way == "i2t" else split.text_groups
        assert all(c.correct == (groups[c.row] == query[retrieval.row]) for c in retrieval.candidates)


def test_failures_are_the_worst_queries_of_different_groups(ranks: Ranks) -> None:
    rows = choose_failures(ranks, "t2i", 4)
    place = {int(row): number for number, row in enumerate(ranks.t2i.rows)}
    found = [int(ranks.t2i.best[place[row]]) for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[0] == ranks.t2i.best.max()
    assert len({int(ranks.t2i.groups[place[row]]) for row in rows}) == len(rows) == 4


def test_queries_that_are_answered_first_are_no_failures(split: Split) -> None:
    right = (split.image_groups[:, None] == split.text_groups[None, :]).astype(np.float32)
    perfect = ranks_of_matrix(right, split.image_groups, split.text_groups)
    assert choose_failures(perfect, "i2t", 5) == []
    assert len(choose_examples(perfect, "i2t", 5)) == 5


def test_examples_are_drawn_by_the_seed_one_a_group(ranks: Ranks) -> None:
    assert choose_examples(ranks, "t2i", 5, seed=1) == choose_examples(ranks, "t2i", 5, seed=1)
    assert choose_examples(ranks, "t2i", 5, seed=1) != choose_examples(ranks, "t2i", 5, seed=2)
    assert len({row // TEXTS for row in choose_examples(ranks, "t2i", 50)}) == GROUPS


def test_queries_that_differ_most_come_first_and_equal_ones_not_at_all() -> None:
    groups = np.array([0, 1, 2, 3])
    one = ranks_of_matrix(np.eye(4), groups, groups)
    worse = np.eye(4)
    worse[1, 1], worse[3, 3], worse[3, 0] = -1.0, 0.5, 0.9  # ranks 4 and 2 of image 1 and 3
    other = ranks_of_matrix(worse, groups, groups)
    assert choose_differences(one, other, "i2t", 9) == choose_differences(other, one, "i2t", 9) == [1, 3]
    assert choose_differences(one, other, "i2t", 1) == [1]
    assert choose_differences(one, one, "i2t", 9) == []
