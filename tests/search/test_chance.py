"""The line before weak results, against plain loops and against scores whose chance is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import quintet
from quintet.search import StaleIndex
from quintet.search.chance import BY_CHANCE, TAIL, ChanceScores, packed, random_texts, unpacked
from quintet.search.items import ItemDatabase
from quintet.search.searcher import Searcher


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def chance() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_share_of_random_texts_that_reach_a_score(chance: np.random.Generator) -> None:
    texts, items = unit(chance.normal(size=(40, 16))), unit(chance.normal(size=(50, 16)))
    mean = [sum(float(text @ item) for item in items) / len(items) for text in texts]
    scores = sorted(float(text @ item) - mean[number] for number, text in enumerate(texts) for item in items)
    start = int(len(scores) * (1 - TAIL))
    excess = np.mean([score - scores[start] for score in scores[start:]])
    found = ChanceScores(texts, items)
    for score in (-1.0, 0.0, 0.3, scores[start], scores[-1] + 0.1):
        counted = sum(other >= score for other in scores) / len(scores)
        expected = TAIL * np.exp(-(score - scores[start]) / excess) if score > scores[start] else counted
        assert found.share_above(np.array([score]))[0] == pytest.approx(expected)


def test_above_the_line_chance_explains_a_tenth_at_most(chance: np.random.Generator) -> None:
    texts, items = unit(chance.normal(size=(100, 32))), unit(chance.normal(size=(300, 32)))
    found = ChanceScores(texts, items)
    for _ in range(20):
        query = unit(chance.normal(size=(1, 32)) + items[:1] * chance.uniform(0, 8))[0]
        scores = np.sort(items @ query)[::-1]
        expected = np.inf
        for reached, score in enumerate(scores, 1):
            if len(items) * found.share_above(score[None] - scores.mean())[0] <= BY_CHANCE * reached:
                expected = score
        assert found.line(items @ query, scores[:20], len(items)) == pytest.approx(expected)


def test_random_queries_find_nothing_and_subjects_that_are_common_are_found(chance: np.random.Generator) -> None:
    """Of 400 images half show one subject, three another; a query for a third subject stands out nowhere."""
    dim = 64
    subjects = unit(chance.normal(size=(3, dim)))
    of = np.array([0] * 200 + [1] * 3 + [-1] * 197)
    noise = unit(chance.normal(size=(400, dim)))
    items = unit(np.where(of[:, None] >= 0, subjects[of] * 1.2, 0) + noise)
    found = ChanceScores(unit(chance.normal(size=(100, dim))), items)

    def strong(query: np.ndarray) -> set[int]:
        scores = items @ query
        return set(np.flatnonzero(scores >= found.line(scores, np.sort(scores)[::-1][:20], len(items))).tolist())

    assert len(strong(subjects[0]) & set(range(200))) > 190
    assert {200, 201, 202} <= strong(subjects[1])
    assert len(strong(subjects[1])) < 10
    empty = [strong(query) for query in unit(chance.normal(size=(100, dim)))]
    assert sum(bool(each) for each in empty) <= 35


def test_a_text_that_scores_higher_with_every_image_has_no_more_results(chance: np.random.Generator) -> None:
    items = np.append(unit(chance.normal(size=(300, 32))), np.ones((300, 1)), axis=1)  # the last: the same in all
    texts = np.append(unit(chance.normal(size=(100, 32))), chance.uniform(-3, 3, (100, 1)), axis=1)
    found = ChanceScores(texts, items)
    query = items[0] * 1.5

    def strong(offset: float) -> list[int]:
        scores = items @ np.append(query[:-1], offset)
        return np.flatnonzero(scores >= found.line(scores, np.sort(scores)[::-1][:20], len(items))).tolist()

    assert 0 in strong(0.0)
    assert strong(0.0) == strong(-2.0) == strong(5.0)


def test_a_rare_photo_of_a_large_index_is_above_the_line(chance: np.random.Generator) -> None:
    texts, sample = unit(chance.normal(size=(100, 64))), unit(chance.normal(size=(512, 64)))
    query = unit(chance.normal(size=(1, 64)))[0]
    found = ChanceScores(texts, sample)
    assert found.line(sample @ query, np.array([0.95, 0.4]), 100_000) == 0.95
    assert found.line(sample @ query, np.array([0.45, 0.4]), 100_000) == np.inf


def test_random_texts_are_of_the_vocabulary_and_always_the_same() -> None:
    words = [f"word{number}" for number in range(50)]
    texts = random_texts(words)
    assert texts == random_texts(words)
    assert {word for text in texts for word in text.split()} <= {*words, "a", "and"}
    assert random_texts(words[:5]) == []


def test_an_index_keeps_its_random_texts_and_makes_them_where_it_has_none(vse: Path, tmp_path: Path) -> None:
    from PIL import Image

    for number in range(25):
        pixels = np.random.default_rng(number).integers(0, 256, (3, 4, 3), np.uint8)
        Image.fromarray(pixels).resize((60, 45)).save(tmp_path / f"{number}.png")
    quintet.build_index(vse, [*tmp_path.glob("*.png")], tmp_path / "index", device="cpu")
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        kept = searcher.search("a red thing", k=25)
        sample = searcher._opened.sample("image")
        texts = searcher.encoder.random_texts((0,))
        query = searcher.encoder.encode_texts(["a red thing"])[0].embedding
        assert query is not None
        scores = sample @ query.numpy()[0]
        line = ChanceScores(texts, sample).line(scores, np.array([hit.score for hit in kept]), 25)
        assert [hit.weak for hit in kept] == [hit.score < line for hit in kept]
        by_image = searcher.search(tmp_path / "3.png", k=25)
        assert not any(hit.weak for hit in by_image)
    database = ItemDatabase.open_writer(tmp_path / "index/items.sqlite")
    with database.transaction():
        database.change("DELETE FROM head WHERE name = ?", [("random texts",)])
    database.close()
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        assert searcher.search("a red thing", k=25) == kept


def test_texts_of_another_size_are_damage() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_array_equal(unpacked(packed(vectors), 3), vectors)
    for value in (packed(vectors) | {"dim": 2}, {"dim": 3}, None, packed(vectors) | {"float32": "?"}):
        with pytest.raises(StaleIndex, match="random texts"):
            unpacked(value, 3)
