"""What every store does: vectors by id, the nearest by inner product, filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quintet.search.stores.where import Scalar, Where


@dataclass(frozen=True, slots=True)
class StoreHit:
    id: str
    score: float


class Store(Protocol):
    """One contract for all engines; `tests/search/stores` holds each of them to it.

    What is added or deleted is seen by the next call on the same store, and is durable after `flush` or `close`.
    Any number of threads may search at once.
    """

    @property
    def dim(self) -> int: ...

    def add(self, ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]]) -> None:
        """Insert or replace by id. `vectors` is (n, dim); of an id given twice the last one stays."""

    def delete(self, ids: Iterable[str]) -> int:
        """How many of the ids were there."""

    def search(self, vectors: np.ndarray, k: int, where: Where | None = None) -> list[list[StoreHit]]:
        """For each row of `vectors` (n, dim) the k items of largest inner product, best first, equal ones by id.

        Fewer than k only where fewer than k items match.
        """

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Scalar]]:
        """One for each id; UnknownItem when there is no such id."""

    def ids(self) -> list[str]:
        """All of them, sorted."""

    def __len__(self) -> int: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...
