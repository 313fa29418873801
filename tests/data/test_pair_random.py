from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, pearsonr

from quintet.data.augment import pair_keys, uniform

SEEDS = [(0, 0, epoch, image, text) for epoch in range(3) for image in range(20) for text in range(40)]


def test_numbers_are_uniform_and_neighbours_independent() -> None:
    drawn = uniform(pair_keys(SEEDS)[:, None], np.arange(36))  # (2400, 36)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    assert kstest(drawn[:, 0], "uniform").pvalue > 1e-3, "the same place of many pairs"
    shifted = {"text": drawn[1:], "image": drawn[40:], "epoch": drawn[800:], "place": drawn[:, 1:]}
    for what, near in shifted.items():
        first = drawn[: near.shape[0], : near.shape[1]]
        assert abs(pearsonr(near.ravel(), first.ravel())[0]) < 0.02, what


def test_keys_differ() -> None:
    assert len(set(pair_keys(SEEDS).tolist())) == len(SEEDS)
    assert not set(pair_keys(SEEDS).tolist()) & set(pair_keys(SEEDS, stream=1).tolist())


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 10**6)), min_size=1, max_size=5))
def test_a_key_is_of_its_own_row(seeds: list[tuple[int, int]]) -> None:
    together = pair_keys(seeds).tolist()
    assert together == [int(pair_keys([seed])[0]) for seed in seeds]
    assert all(int(pair_keys([(b, a)])[0]) != key for (a, b), key in zip(seeds, together, strict=True) if a != b)


@pytest.mark.parametrize("bits", [0, 20, 52])
def test_every_bit_of_a_number_is_used(bits: int) -> None:
    drawn = (uniform(pair_keys(SEEDS), np.array(0)) * 2**53).astype(np.uint64)
    assert abs(((drawn >> np.uint64(bits)) & np.uint64(1)).mean() - 0.5) < 0.05
