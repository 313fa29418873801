"""Closed forms against enumeration and simulation; measured ranks against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from quintet.data.corpus import Split
from quintet.data.negatives import NegativeLists, draw_offline
from quintet.report.analysis import Ensemble, Options, Subject, analyse, hard_negatives
from quintet.report.analysis.hard_negatives import (
    _random_batches,
    chance_of_top,
    expected_online_rank,
    measure_online_ranks,
    measure_top_share,
    ranks_of_draws,
    replay_draws,
)


@pytest.mark.parametrize(("candidates", "batch_size"), [(1, 2), (6, 2), (6, 4), (7, 8), (9, 5)])
def test_closed_forms_equal_enumeration(candidates: int, batch_size: int) -> None:
    best = [min(drawn) for drawn in combinations(range(1, candidates + 1), batch_size - 1)]
    assert expected_online_rank(candidates, batch_size) == pytest.approx(np.mean(best))
    for k in range(candidates + 2):
        assert chance_of_top(candidates, batch_size, k) == pytest.approx(np.mean([rank <= k for rank in best]))


def test_the_papers_numbers() -> None:
    assert 3900 < expected_online_rank(500_000, 128) < 4000
    assert 100 * chance_of_top(566_430, 128, 100) == pytest.approx(2.2, abs=0.05)
    with pytest.raises(ValueError, match="cannot be made"):
        expected_online_rank(3, 5)


def lists_of_matrix(scores: np.ndarray, image_groups: np.ndarray, text_groups: np.ndarray) -> NegativeLists:
    """Complete lists, by sorting."""

    def side(matrix: np.ndarray, own: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        masked = np.where(own[:, None] == other[None, :], -np.inf, matrix)
        order = np.argsort(-masked, axis=1, kind="stable")
        values = np.take_along_axis(masked, order, axis=1)
        return np.where(np.isinf(values), -1, order), values

    return NegativeLists(*side(scores, image_groups, text_groups), *side(scores.T, text_groups, image_groups))


@pytest.fixture
def measured() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((150, 150), np.float32), np.arange(150), np.arange(150)


def test_measured_ranks_agree_with_the_closed_form(measured: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    found = measure_online_ranks(*measured, 16, batches=400, rng=rng)
    for direction in ("i2t", "t2i"):
        ranks = found[direction]
        assert len(ranks) == 400 * 16
        assert ranks.min() >= 1
        assert ranks.mean() == pytest.approx(expected_online_rank(149, 16), rel=0.05)
        assert (ranks <= 10).mean() == pytest.approx(chance_of_top(149, 16, 10), abs=0.03)
    share = measure_top_share(lists_of_matrix(*measured), *measured[1:], 16, 10, batches=400, rng=rng)
    for direction in ("i2t", "t2i"):
        assert share[direction] == pytest.approx(chance_of_top(149, 16, 10), abs=0.03)


def plain_rank(scores: np.ndarray, own: np.ndarray, other: np.ndarray, anchor: int, batch: list[int]) -> int | None:
    """Sort all wrong candidates of the anchor and look where the first one that is in the batch stands."""
    wrong = [row for row in range(len(other)) if other[row] != own[anchor]]
    ordered = sorted(wrong, key=lambda row: -scores[anchor, row])
    return next((place for place, row in enumerate(ordered, 1) if row in batch), None)


def test_measured_ranks_equal_plain_loops_with_several_texts_a_group() -> None:
    rng = np.random.default_rng(2)
    image_groups, text_groups = np.array([0, 0, 1, 2, 2]), np.array([0, 0, 0, 1, 1, 2, 2, 2])
    scores = rng.random((5, 8)).astype(np.float32)
    found = measure_online_ranks(scores, image_groups, text_groups, 4, batches=30, rng=np.random.default_rng(9))
    expected: dict[str, list[int]] = {"i2t": [], "t2i": []}
    batches = _random_batches(image_groups, text_groups, 4, 30, np.random.default_rng(9))
    for images, texts in (map(np.ndarray.tolist, batch) for batch in batches):
        assert len(set(texts)) == 4
        assert [image_groups[image] for image in images] == [text_groups[text] for text in texts]
        i2t = [plain_rank(scores, image_groups, text_groups, image, texts) for image in images]
        t2i = [plain_rank(scores.T, text_groups, image_groups, text, images) for text in texts]
        expected["i2t"] += [rank for rank in i2t if rank is not None]
        expected["t2i"] += [rank for rank in t2i if rank is not None]
    for direction in ("i2t", "t2i"):
        assert found[direction].tolist() == expected[direction]
    with pytest.raises(ValueError, match="cannot be drawn"):
        measure_online_ranks(scores, image_groups, text_groups, 9, batches=1, rng=rng)


@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_ranks_do_not_depend_on_the_blocks(block: int) -> None:
    rng = np.random.default_rng(3)
    image_groups, text_groups = np.arange(9) // 2, rng.permutation(np.arange(20) % 5)
    scores = rng.integers(0, 6, (9, 20)).astype(np.float32)  # with ties
    settings = {"batches": 12, "block": block}
    found = measure_online_ranks(scores, image_groups, text_groups, 5, rng=np.random.default_rng(4), **settings)
    drawn = list(_random_batches(image_groups, text_groups, 5, 12, np.random.default_rng(4)))
    dense = {
        "i2t": np.concatenate([dense_ranks(scores, image_groups, text_groups, *batch) for batch in drawn]),
        "t2i": np.concatenate([dense_ranks(scores.T, text_groups, image_groups, *batch[::-1]) for batch in drawn]),
    }
    for direction, ranks in dense.items():
        np.testing.assert_array_equal(found[direction], ranks)


def dense_ranks(
    matrix: np.ndarray, own: np.ndarray, other: np.ndarray, anchors: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """The twin on a whole matrix."""
    wrong = own[anchors][:, None] != other[candidates][None, :]
    hardest = np.where(wrong, matrix[np.ix_(anchors, candidates)], -np.inf).max(axis=1)
    anchors, hardest = anchors[wrong.any(axis=1)], hardest[wrong.any(axis=1)]
    better = matrix[anchors] > hardest[:, None]
    return (better & (own[anchors][:, None] != other[None, :])).sum(axis=1) + 1


class Watched:
    """A source that says how much was taken and scored at once."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix, self.largest = matrix, 0

    def take(self, side: str, rows: np.ndarray) -> np.ndarray:
        self.largest = max(self.largest, len(rows))
        return rows

    def score(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        self.largest = max(self.largest, len(images) * len(texts))
        return self.matrix[np.ix_(images, texts)]


def test_the_memory_does_not_grow_with_the_split() -> None:
    sizes = []
    for groups in (40, 400):
        source = Watched(np.random.default_rng(0).random((groups, groups)))
        rows = np.arange(groups)
        measure_online_ranks(source, rows, rows, 8, batches=4, rng=np.random.default_rng(1), block=16)
        sizes.append(source.largest)
    assert sizes == [16 * 16, 16 * 16]


def test_a_split_whose_codes_are_not_kept_has_the_same_ranks(
    subjects: list[Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = [*subjects, Ensemble(subjects)]
    options = Options(batch_size=4, batches=9, block=64)
    kept = analyse(team, tmp_path, ["negatives"], options=options)["negatives"]
    monkeypatch.setattr(hard_negatives, "KEPT_SCORES", 0)
    monkeypatch.setattr(Subject, "member", property(lambda subject: pytest.fail("the whole split was encoded")))
    assert analyse(team, tmp_path, ["negatives"], options=options)["negatives"]["runs"] == kept["runs"]
    scores = np.mean([one.run.score(*one.run.encode_split(one.corpus, one.split)).numpy() for one in subjects], axis=0)
    groups = subjects[0].split.image_groups, subjects[0].split.text_groups
    dense = measure_online_ranks(scores, *groups, 4, batches=9, rng=np.random.default_rng(0))
    for way, ranks in dense.items():
        assert kept["runs"][team[-1].label][way]["mean_rank"] == pytest.approx(ranks.mean())


def test_top_share_ignores_padding_and_short_lists() -> None:
    texts, images = np.full((2, 3), -1), np.array([[1], [0]])
    lists = NegativeLists(texts, np.full((2, 3), -np.inf), images, np.zeros((2, 1)))
    rng = np.random.default_rng(0)
    assert measure_top_share(lists, [0, 1], [0, 1], 2, 1, batches=3, rng=rng) == {"i2t": 0.0, "t2i": 1.0}
    assert measure_top_share(lists, [0, 1], [0, 1], 2, 3, batches=3, rng=rng) == {"i2t": 0.0}
    with pytest.raises(ValueError, match="have no top 4"):
        measure_top_share(lists, [0, 1], [0, 1], 2, 4, batches=3, rng=rng)


def test_replayed_draws_are_the_draws(make_split: Callable[..., Split]) -> None:
    split = make_split(range(20), np.repeat(range(20), 3).tolist())
    scores = np.random.default_rng(0).random((20, 60), np.float32)
    lists = lists_of_matrix(scores, split.image_groups, split.text_groups)
    pairs = np.stack([np.repeat(np.arange(20), 3), np.arange(60)], axis=1)
    options = {"top_texts": 12, "top_images": 5}
    batches = [(pairs[:30], np.random.default_rng(5)), (pairs[30:], np.random.default_rng(6))]
    summary = replay_draws(lists, split, batches, **options)
    drawn = [
        draw_offline(lists, split, part, np.random.default_rng(seed), **options)
        for part, seed in ((pairs[:30], 5), (pairs[30:], 6))
    ]
    text_ranks = np.concatenate([rows.text_rank for rows in drawn]) + 1
    assert summary["text_rank"] == pytest.approx(text_ranks.mean())
    off_text = np.concatenate([rows.off_text for rows in drawn])
    off_image = np.concatenate([rows.off_image for rows in drawn])
    assert summary["text_score"] == pytest.approx(scores[pairs[:, 0], off_text].mean())
    assert summary["image_score"] == pytest.approx(scores[off_image, pairs[:, 1]].mean())
    assert summary["corresponding"] == 0.0
    assert summary["pairs"] == 60
    # Under the scores that the lists were mined with, a draw stands where its list has it.
    now = ranks_of_draws(scores, split.image_groups, split.text_groups, pairs[:30], drawn[0])
    np.testing.assert_array_equal(now["i2t"], drawn[0].text_rank + 1)
    np.testing.assert_array_equal(now["t2i"], drawn[0].image_rank + 1)
    with pytest.raises(ValueError, match="no batches"):
        replay_draws(lists, split, [])


def test_online_negatives_have_the_rank_that_is_expected(subjects: list[Subject], tmp_path: Path) -> None:
    options = Options(batch_size=4, batches=400, seed=1)
    found = analyse(subjects, tmp_path, ["negatives"], options=options)["negatives"]
    assert found["candidates"] == {"i2t": 10, "t2i": 5}
    assert found["expected_rank"]["i2t"] == pytest.approx(11 / 4)
    # Batches hold two texts of a group now and then, so an anchor may have one negative less.
    assert found["runs"]["a"]["i2t"]["mean_rank"] == pytest.approx(11 / 4, rel=0.15)


def test_what_was_mined_and_drawn(subjects: list[Subject], tmp_path: Path, few: Options) -> None:
    found = analyse(subjects[:1], tmp_path, ["mined"], options=few)["mined"]["stages"]
    assert list(found) == ["a: offline"]
    assert 0 <= found["a: offline"]["online"]["top1"]["i2t"] <= 1
    assert 1 <= found["a: offline"]["drawn"]["text_rank"] <= 4
    assert found["a: offline"]["drawn"]["pairs"] == 24
