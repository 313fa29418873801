"""Cross-retrieval ranks: is a pair found from both sides? (AOQ supplement, its figure of rank frequencies.)

A pair may do well for its text and badly for its image. Its cross-retrieval rank is the worse of the two, both counted
on the scale of the texts: max(5 r_i - 4, r_t) where each image has five texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quintet.errors import QuintetError
from quintet.evaluation.ranks import Ranks

# Upper ends of the intervals. The supplement's text names the first (rank 1) and the last (above 200); the ones between
# are ours, as its figure gives them no numbers in words.
EDGES = (1, 5, 10, 20, 50, 100, 200)


def cross_retrieval_ranks(ranks: Ranks) -> np.ndarray:
    """(P,) int64: for each positive pair max(c (r_i - 1) + 1, r_t), where c is the number of texts an image has.

    r_i is the pair's rank, from 1, against the wrong images of its text, r_t against the wrong texts of its image.
    c = n_texts / n_images makes ranks in lists of different length comparable; with c = 5 this is 5 r_i - 4. Where c is
    not whole the product is rounded up, so that rank 1 still means first from both sides.

    >>> from quintet.evaluation.ranks import ranks_of_matrix
    >>> scores = [[0.9, 0.8, 0.2, 0.1], [0.1, 0.85, 0.9, 0.8]]  # the second text prefers the wrong image
    >>> cross_retrieval_ranks(ranks_of_matrix(scores, [0, 1], [0, 0, 1, 1])).tolist()
    [1, 3, 1, 2]
    """
    images, texts = len(ranks.image_groups), len(ranks.text_groups)
    from_text = -(-ranks.pair_t2i.astype(np.int64) * texts // images) + 1  # ceil without leaving the integers
    return np.maximum(from_text, ranks.pair_i2t.astype(np.int64) + 1)


def interval_names(edges: Sequence[int] = EDGES) -> list[str]:
    """The intervals that `edges` end, and what lies above.

    >>> interval_names((1, 5, 200))
    ['1', '2-5', '6-200', '>200']
    """
    if not edges or list(edges) != sorted({*edges}) or edges[0] < 1:
        raise ValueError(f"edges must be rising whole numbers from 1, got {tuple(edges)}")
    starts = [1, *(edge + 1 for edge in edges[:-1])]
    named = [f"{start}-{end}" if start < end else str(end) for start, end in zip(starts, edges, strict=True)]
    return [*named, f">{edges[-1]}"]


def cross_retrieval_histogram(
    runs: Mapping[str, Ranks | Sequence[Ranks]], edges: Sequence[int] = EDGES
) -> dict[str, Any]:
    """How many positive pairs have their cross-retrieval rank in which interval, for each of some runs on one split.

    Returns `intervals` (names), `pairs` (how many), `counts` and `share` (per cent) by run, and `change`: of the
    counts, from the first run to each later one. Folds (a sequence of Ranks) are counted together.
    """
    names = interval_names(edges)
    folds = {run: [found] if isinstance(found, Ranks) else list(found) for run, found in runs.items()}
    _refuse_other_pairs(folds)
    counts = {run: _count(parts, edges) for run, parts in folds.items()}
    first = next(iter(counts.values()), np.zeros(len(names), np.int64))
    pairs = int(first.sum())
    return {
        "intervals": names,
        "pairs": pairs,
        "counts": {run: found.tolist() for run, found in counts.items()},
        "share": {run: (100.0 * found / max(pairs, 1)).tolist() for run, found in counts.items()},
        "change": {run: (found - first).tolist() for run, found in list(counts.items())[1:]},
    }


def _count(folds: Sequence[Ranks], edges: Sequence[int]) -> np.ndarray:
    found = np.concatenate([cross_retrieval_ranks(ranks) for ranks in folds])
    return np.bincount(np.searchsorted(edges, found, side="left"), minlength=len(edges) + 1)


def _refuse_other_pairs(folds: Mapping[str, Sequence[Ranks]]) -> None:
    runs = list(folds)
    for run in runs[1:]:
        first, other = folds[runs[0]], folds[run]
        same = len(first) == len(other) and all(
            np.array_equal(a.image_groups, b.image_groups) and np.array_equal(a.text_groups, b.text_groups)
            for a, b in zip(first, other, strict=True)
        )
        if not same:
            raise QuintetError(
                f"{runs[0]!r} and {run!r} were measured on different pairs; "
                "evaluate both on the same split and protocol"
            )
