"""From ranks to recalls, median and mean rank, mAP@R and rsum; their chance level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quintet.evaluation.ranks import BLOCK, Queries, Ranks, group_codes, positive_pairs, ranks_of_matrix

DIRECTIONS = ("i2t", "t2i")
CUTS = (1, 5, 10)
RECALLS = tuple(f"{direction}_r{cut}" for direction in DIRECTIONS for cut in CUTS)
Metrics = dict[str, float]


def retrieval_metrics(
    scores: Any, image_groups: Any, text_groups: Any, block: int | tuple[int, int] = BLOCK
) -> Metrics:
    """Recall at 1, 5, 10, median and mean rank, mAP@R of both directions, and rsum, the sum of the six recalls.

    `scores` is (n_images, n_texts), numpy or torch, any float type; larger is better. Ranks are decided on the scores
    as float32, so float64 scores that round to the same float32 number are tied. Relevance is *same group*; groups are
    integers, or names as a corpus has them. A query is a hit at K when one of its positives is among the
    first K; a negative that ties is ranked first. Recalls and mAP@R are in per cent, ranks start from 1.

    >>> metrics = retrieval_metrics([[0.9, 0.8, 0.1], [0.3, 0.7, 0.5]], [0, 1], [0, 0, 1])
    >>> metrics["i2t_r1"], metrics["t2i_r1"], metrics["i2t_meanr"]
    (50.0, 100.0, 1.5)
    """
    return metrics_of_ranks(ranks_of_matrix(scores, image_groups, text_groups, block))


def metrics_of_ranks(ranks: Ranks) -> Metrics:
    """All numbers of one set of ranks, by name."""
    metrics: Metrics = {}
    for direction in DIRECTIONS:
        queries: Queries = getattr(ranks, direction)
        means = {name: float(values.mean()) for name, values in query_values(queries).items()}
        # The field's median: the lower whole rank where the number of queries is even and the two middle ones differ.
        medr = float(np.floor(np.median(queries.best)) + 1)
        named = {**{f"r{cut}": means[f"r{cut}"] for cut in CUTS}, "medr": medr, **means}
        metrics |= {f"{direction}_{name}": value for name, value in named.items()}
    return with_rsum(metrics)


def query_values(queries: Queries) -> dict[str, np.ndarray]:
    """Per query the quantities whose means are metrics: hits at each cut and mAP@R in per cent, rank from 1."""
    values = {f"r{cut}": 100.0 * (queries.best < cut) for cut in CUTS}
    return {**values, "meanr": queries.best + 1.0, "map_at_r": 100.0 * average_precision_at_r(queries)}


def average_precision_at_r(queries: Queries) -> np.ndarray:
    """(q,) of (1/R) sum over the first R positions of hit x precision, where R is the number of positives.

    The j-th best positive is at position w + j, with w negatives before it (tied ones included).
    """
    query = np.repeat(np.arange(len(queries)), queries.positives)  # (P,)
    negatives = queries.pair_ranks[np.lexsort((queries.pair_ranks, query))]
    j = np.arange(len(negatives)) - queries.starts[query] + 1
    position = negatives + j
    gained = np.where(position <= queries.positives[query], j / position, 0.0)
    return np.add.reduceat(gained, queries.starts) / queries.positives


def average_metrics(parts: Sequence[Metrics]) -> Metrics:
    """The mean over folds of every number; rsum is the sum of the averaged recalls."""
    return with_rsum({name: float(np.mean([part[name] for part in parts])) for name in parts[0] if name != "rsum"})


def with_rsum(metrics: Metrics) -> Metrics:
    return {**metrics, "rsum": sum(metrics[name] for name in RECALLS)}


def chance_level(image_groups: Any, text_groups: Any) -> Metrics:
    """The metrics of random scores without ties, on average, in closed form, under the names of `retrieval_metrics`.

    A query with R positives among N candidates has none of them in its first K with the hypergeometric probability
    C(N-R, K) / C(N, K); the best positive's rank is (N+1)/(R+1) on average. The median is that of the rank's
    distribution over all queries.

    >>> chance = chance_level(range(1000), [image for image in range(1000) for _ in range(5)])
    >>> round(chance["i2t_r1"], 6), round(chance["t2i_r10"], 6), chance["t2i_medr"]
    (0.1, 1.0, 500.0)
    """
    image_groups, text_groups = group_codes(image_groups, text_groups)
    pair_image, pair_text = positive_pairs(image_groups, text_groups)
    chance: Metrics = {}
    for direction, query, candidates in (("i2t", pair_image, len(text_groups)), ("t2i", pair_text, len(image_groups))):
        _, positives = np.unique(query, return_counts=True)
        expected = _chance_of_direction(positives, candidates)
        chance |= {f"{direction}_{name}": value for name, value in expected.items()}
    return with_rsum(chance)


def _chance_of_direction(positives: np.ndarray, candidates: int) -> Metrics:
    kinds, counts = np.unique(positives, return_counts=True)  # queries with equally many positives are alike
    weights = counts / counts.sum()
    positions = np.arange(candidates)
    missed = np.zeros(candidates)  # [k]: probability that no positive is among the first k + 1 candidates
    for kind, weight in zip(kinds, weights, strict=True):
        missed += weight * np.cumprod(np.maximum(candidates - kind - positions, 0) / (candidates - positions))
    recalls = {f"r{cut}": 100.0 * (1.0 - missed[min(cut, candidates) - 1]) for cut in CUTS}
    medr = int(np.argmax(missed <= 0.5 + 1e-9)) + 1  # the tolerance absorbs the rounding of the product
    meanr = weights @ ((candidates + 1) / (kinds + 1))
    map_at_r = 100.0 * weights @ np.array([_chance_of_map(kind, candidates) for kind in kinds.tolist()])
    named = {**recalls, "medr": medr, "meanr": meanr, "map_at_r": map_at_r}
    return {name: float(value) for name, value in named.items()}


def _chance_of_map(positives: int, candidates: int) -> float:
    """E[hit at r x precision at r] = (R/N) (1 + (r-1)(R-1)/(N-1)) / r, averaged over r = 1..R."""
    r = np.arange(1, positives + 1)
    also_positive = (positives - 1) / max(candidates - 1, 1)  # another position holds one too, given that this one does
    return float(np.mean(positives / candidates * (1.0 + (r - 1) * also_positive) / r))
