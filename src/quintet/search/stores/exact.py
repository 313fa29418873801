"""The exact store: every vector is compared, nothing needs to be installed. Right up to some 100,000 vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quintet.search.stores.address import Address
from quintet.search.stores.folder import FolderStore
from quintet.search.stores.scan import scan
from quintet.search.stores.vectors import Vectors


class ExactEngine:
    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors

    def nearest(self, queries: np.ndarray, m: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return scan(self._vectors.array, queries, m, allowed)


class ExactMaker:
    def open(self, folder: Path, vectors: Vectors, notes: Mapping[str, Any]) -> ExactEngine:
        return ExactEngine(vectors)

    def prepare(
        self, folder: Path, vectors: Vectors, notes: Mapping[str, Any], generation: int, *, moved: bool
    ) -> dict[str, Any]:
        return {}


def open_exact(address: Address, dim: int | None, create: bool) -> FolderStore:
    return FolderStore(address.path(), ExactMaker(), dim, create)
