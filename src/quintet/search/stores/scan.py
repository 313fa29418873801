"""Every vector is compared: block by block, in torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK_BYTES = 64 << 20  # of scores at a time
GATHER = 0.25  # where less than this share of a block is allowed, its vectors are copied together first


def scan(
    vectors: np.ndarray, queries: np.ndarray, m: int, allowed: np.ndarray | None = None, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The m best rows of `vectors` for each query: scores (n, m) descending and rows (n, m), -inf and -1 at the end
    where there are fewer. `allowed` (rows,) bool leaves out rows; the scan starts at row `first`.
    """
    asked = torch.from_numpy(queries)
    best = asked.new_full((len(queries), m), -torch.inf), torch.full((len(queries), m), -1)
    step = max(1024, BLOCK_BYTES // (4 * max(1, len(queries))))
    for start in range(first, len(vectors), step):
        block = slice(start, start + step)
        best = _better(best, _score(vectors[block], asked, None if allowed is None else allowed[block], start), m)
    return best[0].numpy(), best[1].numpy()


def _score(block: np.ndarray, asked: Tensor, allowed: np.ndarray | None, start: int) -> tuple[Tensor, Tensor]:
    """Scores (n, b) of a block, or of its allowed rows, and their rows (b,)."""
    rows = torch.arange(start, start + len(block))
    if allowed is None:
        return asked @ torch.from_numpy(block).T, rows
    if allowed.mean() < GATHER:
        chosen = np.flatnonzero(allowed)
        return asked @ torch.from_numpy(block[chosen]).T, rows[chosen]
    scores = asked @ torch.from_numpy(block).T  # (n, b)
    return scores.masked_fill_(~torch.from_numpy(allowed), -torch.inf), rows


def _better(best: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], m: int) -> tuple[Tensor, Tensor]:
    scores, rows = block
    top, places = scores.topk(min(m, scores.shape[1]), dim=1)  # (n, <= m)
    found = torch.where(top.isneginf(), -1, rows[places])
    return merge(best, (top, found), m)


def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], m: int) -> tuple[Tensor, Tensor]:
    """The m best of two lists of scores and rows, each (n, any)."""
    scores, places = torch.cat([one[0], other[0]], dim=1).topk(m, dim=1)  # (n, m)
    return scores, torch.cat([one[1], other[1]], dim=1).gather(1, places)
