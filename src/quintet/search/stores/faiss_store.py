"""The FAISS store: all vectors compared while they are few, a graph or lists above, memory-mapped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet.errors import suggest
from quintet.search.errors import StoreError
from quintet.search.stores.address import Address
from quintet.search.stores.extras import required
from quintet.search.stores.faiss_index import (
    KINDS,
    Kind,
    extend_index,
    kind_for,
    make_index,
    read_index,
    search_parameters,
    write_index,
)
from quintet.search.stores.folder import FolderStore
from quintet.search.stores.scan import merge, scan
from quintet.search.stores.vectors import Vectors

FEW = 0.02  # where less than this share of the rows is allowed, comparing them all is quicker and exact
TAIL, TAIL_SHARE = 10_000, 0.05  # rows behind the index that are compared one by one before it is extended
RETRAIN = 4  # lists learnt from so many times fewer rows are learnt anew


class FaissEngine:
    """`index` covers the first rows, or is None: then all vectors are compared."""

    def __init__(self, vectors: Vectors, index: Any) -> None:
        self._faiss = required("faiss", "index")
        self._vectors, self._index = vectors, index
        self._indexed = 0 if index is None else int(index.ntotal)

    def nearest(self, queries: np.ndarray, m: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        share = 1.0 if allowed is None else float(allowed.mean())
        if share < FEW:
            return self._scan(queries, m, allowed)
        selector = None if allowed is None else self._selector(allowed)
        if self._index is None:
            return self._compare_all(queries, m, selector)
        parameters = search_parameters(self._index, m, share, selector)
        scores, rows = self._index.search(queries, m, params=parameters)
        if self._indexed < len(self._vectors):
            scores, rows = self._with_tail(queries, m, allowed, scores, rows)
        short = rows[:, -1] < 0  # the index did not come across enough of the allowed rows
        if short.any():
            scores[short], rows[short] = self._scan(queries[short], m, allowed)
        return scores, rows

    def _compare_all(self, queries: np.ndarray, m: int, selector: Any) -> tuple[np.ndarray, np.ndarray]:
        """What IndexFlatIP does, on the mapped file."""
        point, vectors = self._faiss.swig_ptr, self._vectors.array
        scores = np.empty((len(queries), m), dtype=np.float32)
        rows = np.empty((len(queries), m), dtype=np.int64)
        sizes = (vectors.shape[1], len(queries), len(vectors), m)
        self._faiss.knn_inner_product(point(queries), point(vectors), *sizes, point(scores), point(rows), selector)
        return scores, rows

    def _with_tail(
        self, queries: np.ndarray, m: int, allowed: np.ndarray | None, scores: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        tail = scan(self._vectors.array, queries, m, allowed, first=self._indexed)
        # FAISS marks what it did not find by -1 and the lowest finite number.
        scores = np.where(rows < 0, np.float32(-np.inf), scores)
        one, other = (torch.from_numpy(scores), torch.from_numpy(rows)), tuple(map(torch.from_numpy, tail))
        best_scores, best_rows = merge(one, (other[0], other[1]), m)
        return best_scores.numpy(), best_rows.numpy()

    def _scan(self, queries: np.ndarray, m: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        found = scan(self._vectors.array, queries, m, allowed)
        if self._index is not None:  # it has vectors of its own; these are wanted rarely
            self._vectors.release()
        return found

    def _selector(self, allowed: np.ndarray) -> Any:
        return self._faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


class FaissMaker:
    """Opens the index that the manifest notes, and keeps it as good as the number of vectors asks."""

    def __init__(self, kind: Kind | None) -> None:
        required("faiss", "index")
        self._asked = kind
        self._opened: tuple[Path, Any] | None = None

    def open(self, folder: Path, vectors: Vectors, notes: Mapping[str, Any]) -> FaissEngine:
        if not notes.get("file"):
            return FaissEngine(vectors, None)
        path = folder / notes["file"]
        if self._opened is None or self._opened[0] != path:
            self._opened = path, read_index(path, mapped=True)
        return FaissEngine(vectors, self._opened[1])

    def prepare(
        self, folder: Path, vectors: Vectors, notes: Mapping[str, Any], generation: int, *, moved: bool
    ) -> dict[str, Any]:
        asked = self._asked or notes.get("asked")
        kind: Kind = asked or kind_for(len(vectors))
        if kind == "flat" or not len(vectors):
            return {"asked": asked}
        same = notes.get("kind") == kind and not moved
        if same and len(vectors) - notes["rows"] <= max(TAIL, TAIL_SHARE * len(vectors)):
            return {**notes, "asked": asked}
        if same and len(vectors) < RETRAIN * notes["learnt_from"]:
            index, learnt_from = read_index(folder / notes["file"], mapped=False), notes["learnt_from"]
            extend_index(index, vectors)
        else:
            index, learnt_from = make_index(kind, vectors), len(vectors)
        file = f"index-{generation}.faiss"
        write_index(index, folder / file)
        return {"asked": asked, "kind": kind, "file": file, "rows": len(vectors), "learnt_from": learnt_from}


def open_faiss(address: Address, dim: int | None, create: bool, *, kind: str | None = None) -> FolderStore:
    """`kind` is flat, hnsw or ivf; without it the number of vectors decides."""
    if kind is not None and kind not in KINDS:
        raise StoreError(f"a FAISS store has no kind {kind!r}; {suggest(kind, KINDS)}")
    return FolderStore(address.path(), FaissMaker(kind), dim, create)
