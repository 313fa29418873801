"""One state of a folder store, searched by any number of threads at once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

import numpy as np

from quintet.search.stores.store import StoreHit
from quintet.search.stores.table import Table
from quintet.search.stores.vectors import Vectors
from quintet.search.stores.where import Where

SPARE = 8  # candidates fetched beyond k, so that ties and rounding at the boundary are seen
QUERIES = 1024  # at a time
FILTERS = 16  # selections that are remembered: the same filter comes with every query of a visitor


class Engine(Protocol):
    def nearest(self, queries: np.ndarray, m: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Scores (n, m) descending and rows (n, m), among the allowed rows; the caller asks for no more than there
        are, and gets as many.
        """


class Snapshot:
    def __init__(self, table: Table, vectors: Vectors, engine: Engine, norm: float) -> None:
        self.table, self.vectors, self._engine = table, vectors, engine
        # A float32 product of two vectors of d numbers is wrong by at most d * 2^-24 of the product of their lengths.
        self._noise = (vectors.array.shape[1] + 2) * 2.0**-24 * norm
        self._place_of_row = np.full(len(vectors), -1, dtype=np.int32)
        self._place_of_row[table.rows] = np.arange(len(table))
        self._selections: OrderedDict[Where | None, tuple[np.ndarray | None, int]] = OrderedDict()
        self._lock = threading.Lock()

    def search(self, queries: np.ndarray, k: int, where: Where | None) -> list[list[StoreHit]]:
        allowed, count = self._selection(where)
        if not count:
            return [[] for _ in queries]
        wanted, fetched = min(k, count), min(k + SPARE, count)
        hits = []
        for start in range(0, len(queries), QUERIES):
            some = queries[start : start + QUERIES]
            scores, rows = self._engine.nearest(some, fetched, allowed)
            hits += [self._settle(*found, wanted, allowed, count) for found in zip(some, scores, rows, strict=True)]
        return hits

    def _settle(
        self, query: np.ndarray, scores: np.ndarray, rows: np.ndarray, k: int, allowed: np.ndarray | None, count: int
    ) -> list[StoreHit]:
        """The k best in one total order: float64 product rounded to float32, then id. Engines rank by products that
        depend in their last bits on where a vector lies; more candidates are fetched until this cannot matter.
        """
        doubt = 2 * self._noise * float(np.linalg.norm(query))
        while len(rows) < count and scores[k - 1] - scores[-1] <= doubt:
            (scores,), (rows,) = self._engine.nearest(query[None], min(4 * len(rows), count), allowed)
        picked = self.vectors.pick(rows).astype(np.float64)
        exact = np.einsum("nd,d->n", picked, query.astype(np.float64)).astype(np.float32)
        places = self._place_of_row[rows]
        best = np.lexsort((places, -exact))[:k]
        ids = self.table.ids
        return [StoreHit(ids[place], score) for place, score in zip(places[best], exact[best].tolist(), strict=True)]

    def _selection(self, where: Where | None) -> tuple[np.ndarray | None, int]:
        """(rows,) bool, or None where every row is a living item; and how many."""
        with self._lock:
            if where in self._selections:
                self._selections.move_to_end(where)
                return self._selections[where]
        rows = self.table.rows if where is None else self.table.rows[self.table.select(where)]
        allowed = None
        if len(rows) < len(self.vectors):
            allowed = np.zeros(len(self.vectors), dtype=bool)
            allowed[rows] = True
        with self._lock:
            self._selections[where] = allowed, len(rows)
            while len(self._selections) > FILTERS:
                self._selections.popitem(last=False)
        return allowed, len(rows)
