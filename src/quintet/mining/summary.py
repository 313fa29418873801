"""What was mined, in numbers: how high positives and negatives score, and what was left out."""

from __future__ import annotations

from typing import Any

import numpy as np

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
RANKS = (1, 10, 100)


def quantiles(values: np.ndarray) -> list[float] | None:
    """The values at `QUANTILES` (of the sorted values, no interpolation); None of nothing."""
    values = np.sort(values)
    if not len(values):
        return None
    return [float(values[round(q * (len(values) - 1))]) for q in QUANTILES]


def summarise(positives: np.ndarray, text_scores: np.ndarray, image_scores: np.ndarray) -> dict[str, Any]:
    """Score quantiles of the positive pairs, and over all anchors of the negatives at ranks 1, 10, 100 and last."""
    return {
        "at": list(QUANTILES),
        "positives": quantiles(positives),
        "texts": _by_rank(text_scores),
        "images": _by_rank(image_scores),
    }


def _by_rank(scores: np.ndarray) -> dict[str, list[float] | None]:
    real = {str(rank): scores[:, rank - 1] for rank in RANKS if rank <= scores.shape[1]}
    counts = (scores[:, -1] > -np.inf) * scores.shape[1]
    short = np.flatnonzero(counts == 0)
    counts[short] = (scores[short] > -np.inf).sum(axis=1)
    filled = np.flatnonzero(counts)
    found = {rank: quantiles(column[column > -np.inf]) for rank, column in real.items()}
    return found | {"last": quantiles(scores[filled, counts[filled] - 1])}


def list_counts(rows: np.ndarray) -> dict[str, int]:
    """How many anchors there are, and how many have a list that is not full, or nothing at all."""
    short = rows[:, -1] < 0
    return {"anchors": len(rows), "not_full": int(short.sum()), "empty": int((rows[:, 0] < 0).sum())}
