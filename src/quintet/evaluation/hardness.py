"""How hard negatives are: what a random batch can offer (AOQ section 1), and what is drawn from mined lists.

Batches are as training makes them: texts without replacement, each with an image of its group. All ranks start from 1
and are among the wrong candidates of an anchor in the whole set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from quintet.data.corpus import Split, rows_by_group
from quintet.data.negatives import NegativeLists, OfflineRows, draw_offline


def expected_online_rank(candidates: int, batch_size: int) -> float:
    """The rank, on average, of the hardest of the batch_size - 1 negatives of an anchor among all its `candidates`.

    The smallest of n numbers drawn from 1..M without replacement is (M + 1) / (n + 1) on average. The paper's example,
    500K texts and batches of 128, where it says "about 4000":

    >>> round(expected_online_rank(500_000, 128))
    3906
    """
    _check(candidates, batch_size)
    return (candidates + 1) / batch_size


def chance_of_top(candidates: int, batch_size: int, k: int) -> float:
    """How likely the hardest negative in a batch is among the anchor's k hardest of all: 1 - C(M-k, n) / C(M, n).

    The paper says 2.2 % for the top 100 on MS-COCO. That is the value for its 566,435 training texts; the round 500K it
    also names would give 2.5 %.

    >>> round(100 * chance_of_top(566_430, 128, 100), 1), round(100 * chance_of_top(500_000, 128, 100), 1)
    (2.2, 2.5)
    """
    _check(candidates, batch_size)
    drawn = np.arange(batch_size - 1)
    missed = np.maximum(candidates - k - drawn, 0) / (candidates - drawn)
    return float(1.0 - np.prod(missed))


def _check(candidates: int, batch_size: int) -> None:
    if not 2 <= batch_size <= candidates + 1:
        raise ValueError(
            f"a batch of {batch_size} pairs cannot be made from {candidates} wrong candidates and one right"
        )


def measure_online_ranks(
    scores: Any, image_groups: Any, text_groups: Any, batch_size: int, *, batches: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """The ranks of the hardest negatives of random batches under a whole score matrix (n_images, n_texts).

    `i2t`: of the hardest wrong text of each image, among all wrong texts; `t2i`: the other way round. An anchor without
    a negative in its batch is left out. Means and shares of these are the counterparts of the two functions above.
    """
    matrix, image_groups, text_groups = (np.asarray(values) for values in (scores, image_groups, text_groups))
    found: dict[str, list[np.ndarray]] = {"i2t": [], "t2i": []}
    for images, texts in _random_batches(image_groups, text_groups, batch_size, batches, rng):
        found["i2t"].append(_hardest_ranks(matrix, image_groups, text_groups, images, texts))
        found["t2i"].append(_hardest_ranks(matrix.T, text_groups, image_groups, texts, images))
    return {direction: np.concatenate(parts) for direction, parts in found.items()}


def measure_top_share(
    lists: NegativeLists,
    image_groups: Any,
    text_groups: Any,
    batch_size: int,
    k: int,
    *,
    batches: int,
    rng: np.random.Generator,
) -> dict[str, float]:
    """How often a random batch holds one of the anchor's k hardest negatives: from mined lists, without scores.

    A direction whose lists are shorter than k cannot be measured and is left out.
    """
    image_groups, text_groups = np.asarray(image_groups), np.asarray(text_groups)
    long_enough = {"i2t": lists.texts.shape[1] >= k, "t2i": lists.images.shape[1] >= k}
    hits: dict[str, list[np.ndarray]] = {direction: [] for direction, measured in long_enough.items() if measured}
    if not hits:
        raise ValueError(f"lists of {lists.texts.shape[1]} texts and {lists.images.shape[1]} images have no top {k}")
    for images, texts in _random_batches(image_groups, text_groups, batch_size, batches, rng):
        if "i2t" in hits:
            hits["i2t"].append(_holds_any(lists.texts[images, :k], texts, len(text_groups)))
        if "t2i" in hits:
            hits["t2i"].append(_holds_any(lists.images[texts, :k], images, len(image_groups)))
    return {direction: float(np.concatenate(parts).mean()) for direction, parts in hits.items()}


def ranks_of_draws(
    scores: Any, image_groups: Any, text_groups: Any, pairs: np.ndarray, rows: OfflineRows
) -> dict[str, np.ndarray]:
    """(n,) by direction: where the drawn negatives stand under the scores of now, e.g. of a later epoch."""
    matrix, image_groups, text_groups = (np.asarray(values) for values in (scores, image_groups, text_groups))
    images, texts = pairs[:, 0], pairs[:, 1]
    return {
        "i2t": _ranks(matrix, image_groups, text_groups, images, matrix[images, rows.off_text]),
        "t2i": _ranks(matrix.T, text_groups, image_groups, texts, matrix[rows.off_image, texts]),
    }


def replay_draws(
    lists: NegativeLists, split: Split, batches: Iterable[tuple[np.ndarray, np.random.Generator]], **options: Any
) -> dict[str, float]:
    """Draw again what training drew, and say how hard it was: mean rank and mean mined score of both sides.

    `batches`: the pairs (n, 2) of each batch with the generator its draws start from; `options` as in `draw_offline`.
    """
    sums = dict.fromkeys(("text_rank", "image_rank", "text_score", "image_score", "corresponding"), 0.0)
    count = 0
    for pairs, rng in batches:
        rows = draw_offline(lists, split, pairs, rng, **options)
        sums["text_rank"] += float((rows.text_rank + 1).sum())
        sums["image_rank"] += float((rows.image_rank + 1).sum())
        sums["text_score"] += float(lists.text_scores[pairs[:, 0], rows.text_rank].sum(dtype=np.float64))
        sums["image_score"] += float(lists.image_scores[pairs[:, 1], rows.image_rank].sum(dtype=np.float64))
        sums["corresponding"] += float(rows.corresponding.sum())
        count += len(rows)
    if not count:
        raise ValueError("there are no batches to replay")
    return {name: total / count for name, total in sums.items()} | {"pairs": float(count)}


def _random_batches(
    image_groups: np.ndarray, text_groups: np.ndarray, batch_size: int, batches: int, rng: np.random.Generator
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    of_group = rows_by_group(image_groups, int(max(image_groups.max(), text_groups.max())) + 1)
    paired = np.flatnonzero([len(of_group[group]) > 0 for group in text_groups])
    if not 2 <= batch_size <= len(paired):
        raise ValueError(f"a batch of {batch_size} pairs cannot be drawn from {len(paired)} texts")
    for _ in range(batches):
        texts = rng.choice(paired, batch_size, replace=False)
        yield np.array([rng.choice(of_group[group]) for group in text_groups[texts]]), texts


def _hardest_ranks(
    matrix: np.ndarray, own: np.ndarray, other: np.ndarray, anchors: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """(m,) the rank of the hardest negative of each anchor that has one among `candidates`."""
    wrong = own[anchors][:, None] != other[candidates][None, :]  # (B, B)
    hardest = np.where(wrong, matrix[np.ix_(anchors, candidates)], -np.inf).max(axis=1)
    has = wrong.any(axis=1)
    return _ranks(matrix, own, other, anchors[has], hardest[has])


def _ranks(
    matrix: np.ndarray, own: np.ndarray, other: np.ndarray, anchors: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """(m,) the rank that a score has among the wrong candidates of its anchor: one more than there are better ones."""
    better = matrix[anchors] > scores[:, None]  # (m, candidates)
    return (better & (own[anchors][:, None] != other[None, :])).sum(axis=1) + 1


def _holds_any(wanted: np.ndarray, present: np.ndarray, total: int) -> np.ndarray:
    """(n,) bool: is any of each row of `wanted` (n, k), -1 for none, in the batch?"""
    is_present = np.zeros(total, bool)
    is_present[present] = True
    return (is_present[wanted] & (wanted >= 0)).any(axis=1)
