"""Queries worth looking at, with what was found for them, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quintet.data.corpus import Split
from quintet.evaluation.ranks import Ranks, ScoreBlock

Way = Literal["i2t", "t2i"]


@dataclass(frozen=True)
class Candidate:
    row: int  # of a text (i2t) or of an image (t2i)
    rank: int  # from 1
    score: float
    right: bool


@dataclass(frozen=True)
class Retrieval:
    """A query, its best candidates, and the best right one where it is not among them."""

    way: Way
    row: int
    best_right: int  # its rank among the wrong ones, from 1: what recalls count
    candidates: tuple[Candidate, ...]


def choose_examples(ranks: Ranks, way: Way, count: int, seed: int = 0) -> list[int]:
    """Rows of queries drawn at random, not more than one of a group."""
    queries = getattr(ranks, way)
    order = np.random.default_rng(seed).permutation(len(queries))
    return _one_a_group(queries.rows[order], queries.groups[order], count)


def choose_failures(ranks: Ranks, way: Way, count: int) -> list[int]:
    """Rows of the queries whose first right answer stands last, not more than one of a group, the worst first."""
    queries = getattr(ranks, way)
    order = np.argsort(-queries.best, kind="stable")
    order = order[queries.best[order] > 0]
    return _one_a_group(queries.rows[order], queries.groups[order], count)


def _one_a_group(rows: np.ndarray, groups: np.ndarray, count: int) -> list[int]:
    _, first = np.unique(groups, return_index=True)
    return rows[np.sort(first)[:count]].tolist()


def retrieve(
    score_block: ScoreBlock, split: Split, ranks: Ranks, way: Way, rows: Sequence[int], count: int = 5
) -> list[Retrieval]:
    """The `count` best candidates of each query, and its best right one."""
    queries = getattr(ranks, way)
    best = dict(zip(queries.rows.tolist(), (queries.best + 1).tolist(), strict=True))
    return [_retrieve(score_block, split, way, row, best[row], count) for row in rows]


def _retrieve(score_block: ScoreBlock, split: Split, way: Way, row: int, best: int, count: int) -> Retrieval:
    if way == "i2t":
        scores = score_block(slice(row, row + 1), slice(0, len(split.texts)))[0]
        right = split.text_groups == split.image_groups[row]
    else:
        scores = score_block(slice(0, len(split.images)), slice(row, row + 1))[:, 0]
        right = split.image_groups == split.text_groups[row]
    values = scores.float().cpu().numpy()
    order = np.lexsort((right, -values))  # a wrong candidate that ties goes first, as in the ranks
    shown = list(range(min(count, len(order))))
    place = int(np.argmax(right[order]))
    shown += [place] if place not in shown else []
    found = tuple(Candidate(int(order[k]), k + 1, float(values[order[k]]), bool(right[order[k]])) for k in shown)
    return Retrieval(way, row, best, found)
