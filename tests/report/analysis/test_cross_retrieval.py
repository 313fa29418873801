"""Cross-retrieval ranks against a count over every pair."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quintet.errors import QuintetError
from quintet.evaluation.ranks import Ranks, ranks_of_matrix
from quintet.report.analysis import Subject, analyse
from quintet.report.analysis.cross_retrieval import (
    cross_retrieval_histogram,
    cross_retrieval_ranks,
    interval_names,
    recall_curve,
)


def plain_ranks(scores: np.ndarray, image_groups: list[int], text_groups: list[int]) -> list[int]:
    """Pair by pair, one wrong candidate at a time."""
    found = []
    for i, group in enumerate(image_groups):
        for t, other in enumerate(text_groups):
            if group != other:
                continue
            r_t = 1 + sum(scores[i, c] >= scores[i, t] for c, wrong in enumerate(text_groups) if wrong != group)
            r_i = 1 + sum(scores[c, t] >= scores[i, t] for c, wrong in enumerate(image_groups) if wrong != group)
            factor = len(text_groups) / len(image_groups)
            found.append(max(math.ceil(round(factor * (r_i - 1), 9)) + 1, r_t))
    return found


@settings(max_examples=60, deadline=None)
@given(
    image_groups=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    text_groups=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    seed=st.integers(0, 1000),
)
def test_equals_counting_pair_by_pair(image_groups: list[int], text_groups: list[int], seed: int) -> None:
    assume({*image_groups} & {*text_groups})
    # Few different scores, so that ties occur.
    scores = np.random.default_rng(seed).integers(0, 6, (len(image_groups), len(text_groups))).astype(np.float32)
    ranks = ranks_of_matrix(scores, image_groups, text_groups)
    assert cross_retrieval_ranks(ranks).tolist() == plain_ranks(scores, image_groups, text_groups)


def test_five_texts_an_image_is_the_formula_of_the_supplement() -> None:
    rng = np.random.default_rng(0)
    image_groups, text_groups = np.arange(30), np.repeat(np.arange(30), 5)
    ranks = ranks_of_matrix(rng.random((30, 150), np.float32), image_groups, text_groups)
    r_i, r_t = ranks.pair_t2i + 1, ranks.pair_i2t + 1
    np.testing.assert_array_equal(cross_retrieval_ranks(ranks), np.maximum(5 * r_i - 4, r_t))


def test_rank_one_means_first_from_both_sides_whatever_the_factor() -> None:
    rng = np.random.default_rng(1)
    for images, texts in ((9, 2), (7, 3), (3, 7)):  # less than one text an image, and more
        groups = rng.integers(0, 2, images), rng.integers(0, 2, texts)
        ranks = ranks_of_matrix(rng.random((images, texts), np.float32), *groups)
        first = (ranks.pair_t2i == 0) & (ranks.pair_i2t == 0)
        np.testing.assert_array_equal(cross_retrieval_ranks(ranks) == 1, first)


def known(values: list[int]) -> Ranks:
    """Pairs whose cross-retrieval rank is given: found at once from the text, at that rank from the image."""
    n = len(values)
    rows = np.arange(n)
    return Ranks(rows, rows, rows, rows, np.array(values) - 1, np.zeros(n, np.int64))


def test_histogram_by_interval_for_two_runs() -> None:
    before, after = known([1, 2, 5, 6, 200, 201, 900]), known([1, 1, 1, 6, 10, 11, 201])
    table = cross_retrieval_histogram({"online": before, "offline": after})
    assert table["intervals"] == ["1", "2-5", "6-10", "11-20", "21-50", "51-100", "101-200", ">200"]
    assert table["counts"] == {"online": [1, 2, 1, 0, 0, 0, 1, 2], "offline": [3, 0, 2, 1, 0, 0, 0, 1]}
    assert table["change"] == {"offline": [2, -2, 1, 1, 0, 0, -1, -1]}
    assert table["pairs"] == 7
    assert table["share"]["online"][0] == pytest.approx(100 / 7)
    folds = cross_retrieval_histogram({"both": [before, after]})
    assert folds["counts"]["both"] == [4, 2, 3, 1, 0, 0, 1, 3]
    assert folds["pairs"] == 14


def test_runs_on_different_pairs_are_refused() -> None:
    with pytest.raises(QuintetError, match="different pairs"):
        cross_retrieval_histogram({"a": known([1, 2]), "b": known([1, 2, 3])})
    with pytest.raises(QuintetError, match="different pairs"):
        cross_retrieval_histogram({"a": known([1, 2]), "b": [known([1]), known([2])]})


@pytest.mark.parametrize("edges", [(), (0, 5), (5, 1), (1, 1)])
def test_edges_must_rise(edges: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rising"):
        interval_names(edges)


def test_ranks_and_recalls(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects, tmp_path, ["ranks"])["ranks"]
    best = subjects[0].ranks.t2i.best
    curve = found["recalls"]["a, text to image"]
    assert curve["K"] == list(range(1, 7))  # there are six images
    assert curve["recall"][0] == pytest.approx(100 * (best < 1).mean())
    assert curve["recall"][-1] == 100.0
    assert sum(found["cross_retrieval"]["counts"]["b"]) == found["cross_retrieval"]["pairs"] == 12


def test_recalls_are_the_share_of_ranks_up_to_k() -> None:
    ranks = np.array([4, 1, 2, 2, 7])
    _, recalls = recall_curve(ranks, 8)
    assert recalls == pytest.approx([100 * np.mean(ranks <= k) for k in range(1, 9)])
