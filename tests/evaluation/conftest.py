"""Fixtures: the plain twin of the metrics (sort every list, pessimistic ties, pure Python)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import pytest


def sorted_relevance(scores: Sequence[float], relevant: Sequence[bool]) -> list[bool]:
    """Best first; among equal scores the wrong ones first."""
    order = sorted(range(len(scores)), key=lambda c: (-scores[c], relevant[c]))
    return [relevant[c] for c in order]


def plain_direction(
    matrix: Sequence[Sequence[float]], queries: Sequence[int], candidates: Sequence[int]
) -> dict[str, float]:
    best, precisions = [], []
    for q, group in enumerate(queries):
        relevant = [candidate == group for candidate in candidates]
        if not any(relevant):
            continue
        ordered = sorted_relevance(matrix[q], relevant)
        best.append(ordered.index(True))
        r = sum(relevant)
        precisions.append(sum(sum(ordered[: k + 1]) / (k + 1) for k in range(r) if ordered[k]) / r)
    result = {f"r{k}": 100.0 * sum(rank < k for rank in best) / len(best) for k in (1, 5, 10)}
    result["medr"] = math.floor(statistics.median(best)) + 1
    result["meanr"] = sum(best) / len(best) + 1
    result["map_at_r"] = 100.0 * sum(precisions) / len(precisions)
    return result


def plain_metrics(
    matrix: Sequence[Sequence[float]], image_groups: Sequence[int], text_groups: Sequence[int]
) -> dict[str, float]:
    transposed = [list(column) for column in zip(*matrix, strict=True)]
    i2t = plain_direction(matrix, image_groups, text_groups)
    t2i = plain_direction(transposed, text_groups, image_groups)
    metrics = {f"i2t_{name}": value for name, value in i2t.items()} | {f"t2i_{name}": v for name, v in t2i.items()}
    metrics["rsum"] = sum(metrics[f"{direction}_r{k}"] for direction in ("i2t", "t2i") for k in (1, 5, 10))
    return metrics


@pytest.fixture(scope="session")
def plain() -> Callable[..., dict[str, float]]:
    return plain_metrics
