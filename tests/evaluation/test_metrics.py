from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import quintet.evaluation
from quintet.errors import QuintetError
from quintet.evaluation.metrics import average_metrics, chance_level, retrieval_metrics

Plain = Callable[..., dict[str, float]]
NAMES = [f"{d}_{m}" for d in ("i2t", "t2i") for m in ("r1", "r5", "r10", "medr", "meanr", "map_at_r")] + ["rsum"]


@settings(deadline=None, max_examples=60)
@given(
    captions=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    images_a_group=st.integers(1, 3),
    levels=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
    block=st.integers(1, 30),
)
def test_equals_sorting_with_pessimistic_ties(
    plain: Plain, captions: list[int], images_a_group: int, levels: int, seed: int, block: int
) -> None:
    rng = np.random.default_rng(seed)
    images = rng.permutation(np.repeat(np.arange(len(captions)), rng.integers(1, images_a_group + 1, len(captions))))
    texts = rng.permutation(np.repeat(np.arange(len(captions)), captions))
    scores = rng.integers(0, levels, (len(images), len(texts))).astype(np.float32)
    found = retrieval_metrics(scores, images, texts, block=block)
    expected = plain(scores.tolist(), images.tolist(), texts.tolist())
    assert list(found) == NAMES
    assert found == pytest.approx(expected, abs=1e-9)
    assert retrieval_metrics(torch.from_numpy(scores), images, texts) == found  # one block, torch: the same bits


def test_by_hand() -> None:
    # image 0 has texts 0 and 1, image 1 has text 2, image 2 has text 3
    scores = np.array([[0.9, 0.2, 0.5, 0.4], [0.8, 0.1, 0.8, 0.3], [0.7, 0.6, 0.1, 0.5]])
    metrics = retrieval_metrics(scores, [0, 1, 2], [0, 0, 1, 2])
    # best ranks i2t: 0; text 0 ties with text 2 -> 1; texts 0 and 1 before text 3 -> 2
    assert metrics["i2t_r1"] == pytest.approx(100 / 3)
    assert metrics["i2t_r5"] == 100.0
    assert metrics["i2t_medr"] == 2.0
    assert metrics["i2t_meanr"] == 2.0
    # image 0: order 0 2 3 1, R = 2: hit at place 1 only -> 1/2; the others miss their only place
    assert metrics["i2t_map_at_r"] == pytest.approx(100 * 0.5 / 3)
    # ranks t2i: 0; image 2 first -> 1; 0; 0
    assert metrics["t2i_r1"] == 75.0
    assert metrics["t2i_medr"] == 1.0
    assert metrics["t2i_meanr"] == 1.25
    assert metrics["t2i_map_at_r"] == 75.0
    assert metrics["rsum"] == pytest.approx(100 / 3 + 200 + 75 + 200)


def test_median_is_the_floor_of_the_middle_as_the_field_computes_it() -> None:
    # t2i best ranks 0 and 3: the middle is 1.5, its floor 1, so the median rank is 2
    scores = np.array([[1.0, 3.0], [0.0, 0.5], [0.0, 2.0], [0.0, 1.0]])
    assert retrieval_metrics(scores, [0, 1, 8, 9], [0, 1])["t2i_medr"] == np.floor(np.median([0, 3])) + 1 == 2.0


def test_perfect_scores_are_perfect() -> None:
    groups = np.repeat(np.arange(20), 5)
    scores = (np.arange(20)[:, None] == groups).astype(np.float32)
    metrics = retrieval_metrics(scores, np.arange(20), groups)
    assert metrics["rsum"] == 600.0
    assert metrics["i2t_map_at_r"] == metrics["t2i_map_at_r"] == 100.0
    assert metrics["i2t_medr"] == metrics["t2i_meanr"] == 1.0


def test_a_query_without_counterpart_is_left_out_but_stays_a_candidate() -> None:
    scores = np.array([[0.5, 0.9], [0.9, 0.1]])
    metrics = retrieval_metrics(scores, [0, 1], [0, 5])  # image 1 and text 1 have nobody
    assert metrics["i2t_r1"] == 0.0
    assert metrics["i2t_meanr"] == 2.0
    assert metrics["t2i_meanr"] == 2.0


def test_rsum_of_averaged_folds_is_the_sum_of_the_averaged_recalls() -> None:
    rng = np.random.default_rng(0)
    parts = [retrieval_metrics(rng.random((8, 24)), np.arange(8), np.repeat(np.arange(8), 3)) for _ in range(5)]
    mean = average_metrics(parts)
    assert mean["rsum"] == sum(mean[f"{d}_r{k}"] for d in ("i2t", "t2i") for k in (1, 5, 10))
    assert mean["i2t_medr"] == np.mean([part["i2t_medr"] for part in parts])
    assert mean["rsum"] == pytest.approx(np.mean([part["rsum"] for part in parts]))


def test_chance_level_agrees_with_simulation() -> None:
    rng = np.random.default_rng(1)
    images = np.repeat(np.arange(15), rng.integers(1, 4, 15))
    texts = np.repeat(np.arange(15), rng.integers(1, 8, 15))
    drawn = [retrieval_metrics(rng.random((len(images), len(texts))), images, texts) for _ in range(600)]
    chance = chance_level(images, texts)
    assert list(chance) == NAMES
    for name in NAMES:
        values = np.array([metrics[name] for metrics in drawn])
        slack = 4 * values.std() / np.sqrt(len(values))
        # The median of few queries is biased by its floor; everything else is an exact expectation.
        assert abs(chance[name] - values.mean()) <= slack + (1.0 if name.endswith("medr") else 0.0), name


def test_chance_of_the_flickr_protocol() -> None:
    chance = chance_level(np.arange(1000), np.repeat(np.arange(1000), 5))
    assert chance["i2t_r1"] == pytest.approx(0.1)
    assert chance["t2i_r5"] == pytest.approx(0.5)
    assert chance["t2i_medr"] == 500.0
    assert chance["t2i_meanr"] == pytest.approx(500.5)
    assert chance["i2t_meanr"] == pytest.approx(5001 / 6)


def test_chance_where_everything_is_right_or_there_is_one_candidate() -> None:
    assert chance_level([0, 0], [0, 0, 0])["rsum"] == pytest.approx(600.0)
    only = chance_level([0], [0])
    assert only["rsum"] == pytest.approx(600.0)
    assert only["i2t_map_at_r"] == pytest.approx(100.0)


def test_chance_without_any_pair_is_refused() -> None:
    with pytest.raises(QuintetError, match="nothing to rank"):
        chance_level([0], [1])


def test_groups_may_be_names() -> None:
    scores = np.random.default_rng(0).random((3, 5))
    named = retrieval_metrics(scores, ["dog", "cat", "bird"], ["cat", "cat", "dog", "bird", "dog"])
    assert named == retrieval_metrics(scores, [0, 1, 2], [1, 1, 0, 2, 0])
    with pytest.raises(QuintetError, match=r"image_groups .*integer"):
        retrieval_metrics(scores, ["dog", "cat", "bird"], [1, 1, 0, 2, 0])


def test_the_public_name() -> None:
    assert quintet.evaluation.retrieval_metrics is retrieval_metrics
