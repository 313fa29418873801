"""Random draws that give the same values with every version of numpy.

The bit stream of PCG64 is fixed for good; the methods of `Generator` that turn it into integers or permutations are
not. So everything here is made from `Generator.random`, which is a shift and a multiplication of that stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def generator(*keys: int) -> np.random.Generator:
    """A generator of its own for each tuple of keys.

    >>> float(generator(0, 1, 2).random()) == float(generator(0, 1, 2).random())
    True
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(keys)))


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def between(rng: np.random.Generator, low: float, high: float) -> float:
    return low + float(rng.random()) * (high - low)


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    return options[whole(rng, 0, len(options) - 1)]


def shuffled(rng: np.random.Generator, options: Sequence[T]) -> list[T]:
    """All of the options in random order (Fisher and Yates)."""
    items = list(options)
    for last in range(len(items) - 1, 0, -1):
        other = whole(rng, 0, last)
        items[last], items[other] = items[other], items[last]
    return items
