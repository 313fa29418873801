from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.mining.toplists import TopLists, best_of_block, rising


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    keep=st.integers(1, 6),
    lines=st.integers(1, 5),
    candidates=st.integers(0, 20),
    cuts=st.integers(1, 4),
    entries=st.sampled_from([1, 7, 2**62]),
)
def test_merging_in_any_order_is_sorting(
    seed: int, keep: int, lines: int, candidates: int, cuts: int, entries: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.choice(np.array([-1.5, -0.0, 0.0, 0.25, 3.0], np.float32), (lines, candidates))
    pairs = [(line, row) for line in range(lines) for row in range(candidates)]
    rng.shuffle(pairs)
    lists = TopLists(lines, keep)
    for part in np.array_split(np.array(pairs, dtype=np.int64).reshape(-1, 2), cuts):
        line, row = torch.from_numpy(part.T.copy())
        lists.merge(line, row, torch.from_numpy(scores[part[:, 0], part[:, 1]]), entries)
    for line in range(lines):
        order = sorted(range(candidates), key=lambda row: (-scores[line, row], row))[:keep]
        padding = keep - len(order)
        assert lists.rows[line].tolist() == order + [-1] * padding
        assert lists.scores[line].tolist() == [*scores[line, order], *[-np.inf] * padding]


def test_a_part_is_in_the_whole() -> None:
    lists = TopLists(4, 2)
    lists.part(slice(1, 3)).merge(torch.tensor([1]), torch.tensor([7]), torch.tensor([0.5]))
    assert lists.rows[:, 0].tolist() == [-1, -1, 7, -1]
    assert lists.last.tolist() == [-np.inf] * 4


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=20))
def test_rising_keeps_the_order_of_floats(values: list[float]) -> None:
    scores = torch.tensor(values, dtype=torch.float32)
    keys = rising(scores)
    assert ((scores[:, None] < scores) == (keys[:, None] < keys)).all()


def test_the_best_of_a_block_has_ties_in_order_and_no_excluded() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, -torch.inf], [-torch.inf, -torch.inf, 0.0, -torch.inf]])
    line, place, value = best_of_block(scores, 2)
    found = sorted(zip(line.tolist(), place.tolist(), value.tolist(), strict=True))
    assert found == [(0, 1, 2.0), (0, 2, 2.0), (1, 2, 0.0)]
    line, place, _ = best_of_block(torch.zeros(1, 9), 3)
    assert sorted(place.tolist()) == [0, 1, 2]
