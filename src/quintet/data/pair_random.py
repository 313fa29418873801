"""Random numbers that belong to a pair and to nothing else, for a whole batch at once.

Each number is a hash of a row's seeds and of its place (SplitMix64's finaliser), so it does not depend on the batch,
the worker or the process that asks. A generator a row would give the same for a hundred times the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def pair_keys(seeds: Sequence[Sequence[int]], stream: int = 0) -> np.ndarray:
    """(n,) uint64: one key a row of seeds (n, any number); different streams have nothing in common.

    >>> a, b = pair_keys([(0, 1), (0, 2)])
    >>> bool(a != b), bool(a == pair_keys([(0, 1)])[0])
    (True, True)
    """
    columns = np.asarray(seeds, dtype=np.uint64).reshape(len(seeds), -1).T
    key = np.full(len(seeds), stream + 1, dtype=np.uint64)
    for column in columns:
        key = _mixed(key * _GOLDEN + column)
    return key


def uniform(keys: np.ndarray, places: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) for each key and place, broadcast against each other.

    >>> uniform(pair_keys([(3,), (4,)])[:, None], np.arange(5)).shape
    (2, 5)
    """
    bits = _mixed(keys + _GOLDEN * (places.astype(np.uint64) + np.uint64(1)))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mixed(values: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit given; unsigned arithmetic wraps, as it should here."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
