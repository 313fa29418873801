"""Queries of several parts, weak results and near-duplicates, against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import quintet
from quintet.data.vocabulary import WordVocabulary
from quintet.data.wordpiece import WordPiece
from quintet.search import SearchError
from quintet.search.queries import NEAR, PAIRS, Spread, combined, near_distance, near_duplicates, strange_words
from quintet.search.searcher import Searcher

RNG = np.random.default_rng(0)


def test_scores_are_deviations_from_the_mean_of_the_sample() -> None:
    sample, query = RNG.normal(size=(50, 4)).astype(np.float32), RNG.normal(size=4).astype(np.float32)
    scores = [sum(float(a) * float(b) for a, b in zip(row, query, strict=True)) for row in sample]
    mean = sum(scores) / 50
    std = (sum((score - mean) ** 2 for score in scores) / 50) ** 0.5
    spread = Spread.of(query, sample)
    assert (scores[3] - spread.mean) / spread.std == pytest.approx((scores[3] - mean) / std)


def test_parts_count_by_their_deviations_and_not_by_the_size_of_their_scores() -> None:
    sample = RNG.normal(size=(200, 5)).astype(np.float32)
    one, other = RNG.normal(size=(2, 5)).astype(np.float32)
    vector, offset = combined([(1.0, one), (-0.5, 100 * other)], sample)
    for row in sample[:9]:
        expected = 0.0
        for weight, query in ((1.0, one), (-0.5, other)):
            spread = Spread.of(query, sample)
            expected += weight * (float(row @ query) - spread.mean) / spread.std
        assert float(row @ vector) - offset == pytest.approx(expected, abs=1e-4)


def test_near_duplicates_belong_to_the_best_of_them() -> None:
    rows = RNG.normal(size=(40, 3))
    rows[7], rows[20], rows[33] = rows[2] + 1e-3, rows[2], rows[5]
    distance = near_distance(rows)
    pairs = [((a - b) ** 2).sum() for a in rows for b in rows]
    assert distance == pytest.approx(NEAR * np.mean(pairs))
    expected, kept = [], list[int]()
    for number, row in enumerate(rows):
        same = [first for first in kept if ((rows[first] - row) ** 2).sum() <= distance]
        kept += [] if same else [number]
        expected.append(same[0] if same else number)
    assert near_duplicates(rows, distance) == expected
    assert (expected[7], expected[20], expected[33]) == (2, 2, 5)


def test_a_run_that_tells_few_images_apart_hides_only_the_nearest_pairs() -> None:
    rows = np.concatenate([RNG.normal(size=(60, 3)) * 1e-3, 5 + RNG.normal(size=(60, 3)) * 1e-3])
    pairs = sorted(float(((rows[a] - rows[b]) ** 2).sum()) for a in range(120) for b in range(a))
    limit = near_distance(rows)
    assert limit == pytest.approx(pairs[PAIRS * 120])
    assert limit < NEAR * np.mean(pairs)
    copies = np.repeat(rows[:6], 20, axis=0)
    assert near_duplicates(copies, near_distance(copies)) == [20 * (row // 20) for row in range(120)]


def test_words_that_a_tokenizer_has_only_in_pieces_are_strange() -> None:
    words = WordVocabulary.build(["a dog runs"], min_count=1)
    pieces = WordPiece.train(["a dog runs", "the dog"] * 3, size=60)
    for tokenizer in (words, pieces):
        assert strange_words("a dog", tokenizer) == []
        assert strange_words("a dog runs yonder", tokenizer) == []  # one rare word among others
        assert strange_words("ein hund", tokenizer) == ["ein", "hund"]
        assert strange_words("собака", tokenizer) == ["собака"]


def test_another_language_is_told_by_its_small_words_where_pieces_have_all_of_them_whole() -> None:
    english = ["the dog on a red ball"] * 3
    pieces = WordPiece.train([*english, *["un chien dans la neige le chat noir der rote"] * 3], size=200)
    for text in ("un chien dans la neige", "le chat noir", "der rote ball"):
        assert len(strange_words(text, pieces)) >= 2, text
    assert strange_words("the red dog on la", pieces) == []
    german = WordPiece.train(["ein hund mit dem ball"] * 3, size=100)
    assert strange_words("ein hund mit dem ball", german) == []  # a run that learned from German captions


def test_words_of_any_script_are_known_to_the_vocabulary_that_has_them() -> None:
    words = WordVocabulary.build(["собака бежит", "一只狗在雪地里"], min_count=1)
    assert strange_words("собака бежит", words) == []
    assert strange_words("雪地里一只大狗", words) == []  # one rare word among others
    assert strange_words("猫と鳥", words) == ["猫", "と", "鳥"]


@pytest.fixture(scope="module")
def searcher(vse: Path, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """An index of 30 images, of which two are saved again."""
    folder = tmp_path_factory.mktemp("queries")
    (folder / "photos").mkdir()
    for number in range(30):
        pixels = np.random.default_rng(number).integers(0, 256, (3, 4, 3), np.uint8)
        image = Image.fromarray(pixels).resize((60, 45), Image.Resampling.NEAREST)
        image.save(folder / f"photos/{number:02}.png")
        if number < 2:
            image.save(folder / f"photos/{number:02} again.jpg", quality=98, subsampling=0)
    quintet.build_index(vse, folder / "photos", folder / "index", device="cpu")
    return Searcher.open(folder / "index", device="cpu")


def test_near_duplicates_collapse_into_the_better_result(searcher: Searcher) -> None:
    every = searcher.search("a red thing", k=50, duplicates=True)
    assert len(every) == 32
    for k in (1, 5, 50):
        hits = searcher.search("a red thing", k=k)
        assert len(hits) == min(k, len(searcher.search("a red thing", k=50)))
        shown = [path for hit in hits for path in (hit.path, *(each.path for each in hit.duplicates))]
        assert len(set(shown)) == len(shown)
    collapsed = searcher.search("a red thing", k=50)
    assert {path for hit in collapsed for path in (hit.path, *(each.path for each in hit.duplicates))} == {
        hit.path for hit in every
    }
    for name in ("00", "01"):
        (of,) = [hit for hit in collapsed if hit.path and hit.path.name.startswith(name)]
        assert any(each.path and each.path.name.startswith(name) for each in of.duplicates)
    assert [hit.score for hit in collapsed] == sorted((hit.score for hit in collapsed), reverse=True)


def test_an_image_and_a_text_and_what_not(searcher: Searcher) -> None:
    image = searcher.search("a red thing", k=50)[7].path
    assert image is not None
    score_of = {}
    for name, query in (("text", "a red thing"), ("image", image), ("not", "an old dog")):
        hits = searcher.search(query, k=50, duplicates=True)
        scores = np.array([hit.score for hit in hits])
        score_of[name] = {hit.item.id: (hit.score - scores.mean()) / scores.std() for hit in hits}
    found = searcher.search("a red thing", image=image, exclude="an old dog", k=50, duplicates=True)
    expected = {
        id_: score_of["text"][id_] + score_of["image"][id_] - 0.5 * score_of["not"][id_] for id_ in score_of["text"]
    }
    assert {hit.item.id: hit.score for hit in found} == pytest.approx(expected, abs=1e-4)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert searcher.search(image=image, k=3) == searcher.search(image, k=3)
    with pytest.raises(SearchError, match="one part"):
        searcher.search("a", image=image, rerank=3)
    with pytest.raises(SearchError, match="NoneType"):
        searcher.search()
