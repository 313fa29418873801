"""Which results are weak: those whose scores texts of random words reach as well.

Random texts are made of the run's own words and scored with the images of the index at hand. A text's scores are taken
from their mean, because some texts score higher than others with every image: single nouns more than captions.
benchmarks/measure/weak_line.py measures how many right and wrong results lie above the line.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from quintet.search import StaleIndex

TEXTS = 100
BY_CHANCE = 0.1  # of the results above the line, at most this share would be there for random words
TAIL = 0.01  # of the scores; above them the chance falls exponentially, as of any sum of many parts
FEW_ITEMS = 20  # of fewer, nothing is said
FEW_SAMPLED = 5  # so few of a sample say little about all items
FEW_WORDS = 10  # of a vocabulary


def random_texts(words: Sequence[str]) -> list[str]:
    """Texts as short as queries, each of two words; none where the vocabulary has too few.

    >>> random_texts([])
    []
    """
    if len(words) < FEW_WORDS:
        return []
    pairs = np.random.default_rng(0).choice(len(words), (TEXTS, 2))
    return [f"a {words[one]} and a {words[other]}" for one, other in pairs]


class ChanceScores:
    """The scores that random texts have with images of an index, each less the mean of its text."""

    def __init__(self, texts: np.ndarray, sample: np.ndarray) -> None:
        """`texts`: (t, dim), vectors of random texts; `sample`: (m, dim), vectors of items."""
        scores = (sample @ texts.T).astype(np.float64)  # (m, t)
        self._scores = np.sort((scores - scores.mean(0)).ravel())
        tail = self._scores[int(len(self._scores) * (1 - TAIL)) :]
        self._tail = float(tail[0])
        self._least = float(self._scores[math.ceil(len(self._scores) * (1 - BY_CHANCE)) - 1])  # more reach it by chance
        self._excess = max(float(tail.mean() - tail[0]), 1e-12)

    def share_above(self, scores: np.ndarray) -> np.ndarray:
        """The chance that a random text scores at least so much above its mean with an image."""
        counted = 1 - np.searchsorted(self._scores, scores, "left") / len(self._scores)
        beyond = TAIL * np.exp(-np.maximum(scores - self._tail, 0) / self._excess)
        return np.where(scores > self._tail, beyond, counted)

    def line(self, sample: np.ndarray, best: np.ndarray, items: int) -> float:
        """The lowest score that is not weak; infinity where all are.

        `sample`: (m,), scores of a query with a sample of the `items`; `best`: its highest scores, best first. At a
        score that r of all items reach, chance explains the share of random texts that reach it times `items`, of r.
        """
        first = 0 if len(sample) == items else FEW_SAMPLED
        mean = sample.mean(dtype=np.float64)
        top = np.sort(sample[sample > mean + self._least])[::-1][first:]  # of the others none is strong
        reached = np.arange(first + 1, first + 1 + len(top)) * (items / len(sample))
        reached = np.concatenate([reached, np.arange(1, len(best) + 1)])
        scores = np.concatenate([top, best]).astype(np.float64)
        strong = items * self.share_above(scores - mean) <= BY_CHANCE * reached
        return float(scores[strong].min(initial=np.inf))


def packed(vectors: np.ndarray) -> dict[str, Any]:
    """As an index keeps the vectors of its random texts."""
    return {"dim": vectors.shape[1], "float32": base64.b64encode(vectors.astype("<f4").tobytes()).decode()}


def unpacked(value: Any, dim: int) -> np.ndarray:
    """(t, dim)."""
    try:
        if value["dim"] == dim:
            return np.frombuffer(base64.b64decode(value["float32"], validate=True), "<f4").reshape(-1, dim)
    except (ValueError, TypeError, KeyError):
        pass
    raise StaleIndex("the index is damaged: it keeps no random texts of its runs; build it again")
