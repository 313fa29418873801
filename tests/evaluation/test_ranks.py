from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.errors import QuintetError
from quintet.evaluation.ranks import Ranks, _count_block, _Plan, count_ranks, positive_pairs, ranks_of_matrix


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A small matrix full of ties, one to three images and one to seven captions a group, shuffled, with strays."""
    groups = draw(st.integers(1, 6))
    images = [g for g in range(groups) for _ in range(draw(st.integers(1, 3)))]
    texts = [g for g in range(groups) for _ in range(draw(st.integers(1, 7)))]
    images += [100] * draw(st.integers(0, 2))  # groups without a counterpart
    texts += [200] * draw(st.integers(0, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rng.shuffle(images)
    rng.shuffle(texts)
    scores = rng.integers(0, draw(st.integers(1, 8)), (len(images), len(texts))).astype(np.float32) / 4
    return scores, np.array(images), np.array(texts)


def plain_pair_ranks(
    scores: np.ndarray, images: np.ndarray, texts: np.ndarray
) -> dict[tuple[int, int], tuple[int, int]]:
    ranks = {}
    for i in range(len(images)):
        for t in range(len(texts)):
            if images[i] == texts[t]:
                i2t = sum(texts[c] != images[i] and scores[i, c] >= scores[i, t] for c in range(len(texts)))
                t2i = sum(images[c] != texts[t] and scores[c, t] >= scores[i, t] for c in range(len(images)))
                ranks[i, t] = (i2t, t2i)
    return ranks


@settings(deadline=None, max_examples=60)
@given(case=cases(), block=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_every_pair_rank_equals_the_double_loop_for_any_block(
    case: tuple[np.ndarray, np.ndarray, np.ndarray], block: tuple[int, int]
) -> None:
    scores, images, texts = case
    ranks = ranks_of_matrix(scores, images, texts, block=block)
    pairs = zip(ranks.pair_image.tolist(), ranks.pair_text.tolist(), strict=True)
    found = dict(zip(pairs, zip(ranks.pair_i2t.tolist(), ranks.pair_t2i.tolist(), strict=True), strict=True))
    expected = plain_pair_ranks(scores, images, texts)
    assert found == expected
    assert list(found) == sorted(expected)
    best_i2t = [min(r[0] for (i, _), r in expected.items() if i == row) for row in ranks.i2t.rows]
    best_t2i = [min(r[1] for (_, t), r in expected.items() if t == row) for row in ranks.t2i.rows]
    assert ranks.i2t.best.tolist() == best_i2t
    assert ranks.t2i.best.tolist() == best_t2i
    assert ranks.i2t.excluded == np.count_nonzero(images == 100)
    assert ranks.t2i.excluded == np.count_nonzero(texts == 200)


def asked_blocks(keep: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[int, int]], Ranks]:
    monkeypatch.setattr("quintet.evaluation.ranks.KEEP", keep)
    scores = torch.rand(10, 20, generator=torch.Generator().manual_seed(0))
    asked: list[tuple[int, int]] = []

    def score_block(images: slice, texts: slice) -> torch.Tensor:
        assert images.stop - images.start <= 3
        assert texts.stop - texts.start <= 4
        asked.append((images.start, texts.start))
        return scores[images, texts]

    return asked, count_ranks(score_block, np.arange(10), np.repeat(np.arange(10), 2), block=(3, 4))


def test_blocks_are_scored_once_where_there_is_room_and_twice_only_on_the_diagonal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = {(i, t) for i in range(0, 10, 3) for t in range(0, 20, 4)}
    with_positives = {(i, t) for i, t in every if any(i <= text // 2 < i + 3 for text in range(t, t + 4))}
    roomy, expected = asked_blocks(10**6, monkeypatch)
    assert sorted(roomy) == sorted(every)
    tight, found = asked_blocks(0, monkeypatch)
    assert sorted(tight) == sorted([*every, *with_positives])
    some, again = asked_blocks(30, monkeypatch)
    assert len(roomy) < len(some) < len(tight)
    for ranks in (found, again):
        assert np.array_equal(ranks.pair_i2t, expected.pair_i2t)
        assert np.array_equal(ranks.pair_t2i, expected.pair_t2i)


def test_all_equal_scores_put_every_right_candidate_last() -> None:
    ranks = ranks_of_matrix(np.zeros((3, 6)), [0, 1, 2], [0, 0, 1, 1, 2, 2])
    assert ranks.i2t.best.tolist() == [4, 4, 4]
    assert ranks.t2i.best.tolist() == [2] * 6


def test_the_callers_matrix_is_left_alone() -> None:
    scores = torch.rand(4, 4)
    before = scores.clone()
    ranks_of_matrix(scores, range(4), range(4), block=2)
    assert torch.equal(scores, before)


def test_infinite_scores_are_ordered() -> None:
    inf = np.inf
    ranks = ranks_of_matrix([[-inf, 0.0], [-inf, inf]], [0, 1], [0, 1])
    assert ranks.i2t.best.tolist() == [1, 0]
    assert ranks.t2i.best.tolist() == [1, 0]


def test_float64_is_decided_on_float32() -> None:
    scores = np.array([[1.0, 1.0 - 1e-12], [0.0, 1.0]])
    assert ranks_of_matrix(scores, [0, 1], [0, 1]).i2t.best.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_from_torch(dtype: torch.dtype) -> None:
    scores = torch.tensor([[0.5, 0.25], [0.75, 0.5]], dtype=dtype, requires_grad=True)
    ranks = ranks_of_matrix(scores, torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert ranks.i2t.best.tolist() == [0, 1]


def test_nan_is_refused_with_its_place() -> None:
    scores = np.zeros((3, 5), dtype=np.float32)
    scores[2, 4] = np.nan
    with pytest.raises(QuintetError, match=r"row 2 .*row 4"):
        ranks_of_matrix(scores, range(3), [0, 1, 2, 0, 1], block=2)


@pytest.mark.parametrize(
    ("images", "texts", "message"),
    [
        ([0, 1], [2, 3, 4], "no image shares a group"),
        ([0, 1, 2], [0, 1, 2], "shape"),
        ([0.5, 1.5], [0, 1, 2], "integer"),
        ([[0], [1]], [0, 1, 2], "integer"),
    ],
)
def test_input_that_makes_no_sense_is_refused(images: list[int], texts: list[int], message: str) -> None:
    with pytest.raises(QuintetError, match=message):
        ranks_of_matrix(np.zeros((2, 3)), images, texts)


def test_blocks_of_nothing_are_refused() -> None:
    with pytest.raises(QuintetError, match="at least one"):
        ranks_of_matrix(np.zeros((2, 2)), [0, 1], [0, 1], block=0)


def test_a_score_function_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(QuintetError, match=r"shape \(1, 1\)"):
        count_ranks(lambda images, texts: torch.zeros(1, 1), [0, 1], [0, 1])


def test_positive_pairs_of_uneven_groups() -> None:
    image, text = positive_pairs(np.array([5, 9, 5]), np.array([9, 5, 1, 5]))
    assert list(zip(image.tolist(), text.tolist(), strict=True)) == [(0, 1), (0, 3), (1, 0), (2, 1), (2, 3)]


@pytest.mark.parametrize("lowest", [0, 4], ids=["many reach the lowest floor", "few reach it"])
@pytest.mark.parametrize("shape", [(9, 300), (300, 9), (1, 40), (40, 1)])
def test_a_block_is_counted_as_a_loop_counts_it(shape: tuple[int, int], lowest: int) -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, shape).astype(np.float32)
    query = [np.sort(np.append(rng.integers(0, size, 40), np.repeat(size // 2, 20))) for size in shape]  # one has many
    query[0] = np.sort(np.append(query[0], np.arange(shape[0])))  # every image has a pair
    plans = _Plan(query[0], slice(0, shape[0])), _Plan(query[1], slice(0, shape[1]))
    floors = [rng.integers(lowest, 6, len(rows)).astype(np.float32) for rows in query]
    totals = [np.zeros(len(rows), int) for rows in query]
    for side, pairs, counts in _count_block(torch.from_numpy(scores), list(map(torch.from_numpy, floors)), plans):
        totals[side][pairs] += counts.long().numpy()
    for side, lines in enumerate((scores, scores.T)):
        expected = [sum(score >= floors[side][at] for score in lines[row]) for at, row in enumerate(query[side])]
        assert totals[side].tolist() == expected
