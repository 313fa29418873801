from __future__ import annotations

from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.mining import sweep
from quintet.mining.sweep import TopLists, ordered


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    keep=st.integers(1, 6),
    length=st.integers(1, 8),
    lines=st.integers(1, 5),
    candidates=st.integers(1, 20),
    width=st.integers(1, 7),
    single=st.booleans(),
    room=st.integers(0, 6),
    capped=st.booleans(),
)
def test_blocks_and_entries_give_what_sorting_gives(
    seed: int, keep: int, length: int, lines: int, candidates: int, width: int, single: bool, room: int, capped: bool
) -> None:
    """Distinct scores: which of equal ones stay at the edge is left open here. Caps anywhere among the scores, so that
    often more candidates of a block are above them than there is room for.
    """
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.permutation(lines * candidates).reshape(lines, candidates).astype(np.float32))
    scores[torch.from_numpy(rng.random((lines, candidates)) < 0.2)] = -torch.inf
    caps = scores[torch.arange(lines), torch.from_numpy(rng.integers(candidates, size=lines))]
    if not capped:
        caps = torch.full((lines,), torch.inf)
    lists, above = TopLists(lines, keep), torch.zeros(lines, dtype=torch.int64)
    for start in range(0, candidates, width):
        block = scores[:, start : start + width]
        before = block.clone()
        into = TopLists(lines, keep) if single else lists
        with patch.object(sweep, "ROOM", room):
            above += into.add_block(slice(0, lines), block, caps, start)
        assert torch.equal(block, before), "the other direction reads the block too"
        if single:  # as a journal holds them: the best of a stripe, line by line
            real = into.scores > -torch.inf
            lists.add_entries(real.nonzero()[:, 0], into.rows[real], into.scores[real])
    assert above.tolist() == (scores > caps[:, None]).sum(dim=1).tolist()
    scores[scores > caps[:, None]] = -torch.inf
    rows, values = ordered(lists.rows, lists.scores, length)
    for line in range(lines):
        real = [row for row in range(candidates) if scores[line, row] > -np.inf]
        order = sorted(real, key=lambda row: -scores[line, row])[: min(keep, length)]
        padding = length - len(order)
        assert rows[line].tolist() == order + [-1] * padding
        assert values[line].tolist() == [*scores[line, order].tolist(), *[-np.inf] * padding]


def test_units_count() -> None:
    lists = TopLists(1, 2)
    lists.add_block(
        slice(0, 1), torch.tensor([[4.0, 8.0, -8.0]], dtype=torch.float16), torch.tensor([torch.inf]), 5, unit=0.25
    )
    rows, scores = ordered(lists.rows, lists.scores, 2)
    assert (rows.tolist(), scores.tolist()) == ([[6, 5]], [[2.0, 1.0]])


def test_ties_are_ordered_by_row_and_zeros_are_equal() -> None:
    rows, scores = ordered(torch.tensor([[9, 2, 5, 1]]), torch.tensor([[0.0, -0.0, 0.0, -1.0]]), 3)
    assert rows.tolist() == [[2, 5, 9]]
    assert scores.tolist() == [[0.0, 0.0, 0.0]]
