"""What may enter a store, checked in one place, so that every engine accepts and refuses the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import numpy as np

from quintet.search.errors import SearchError, StoreError
from quintet.search.stores.where import FIELD, LARGEST_INTEGER, Scalar

ID_BYTES = 1024  # the smallest limit among the engines is some 2,700 for a key
METADATA_BYTES = 60_000  # Milvus allows 65,536 for a JSON field


def checked_items(
    ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]], dim: int
) -> tuple[list[str], np.ndarray, list[dict[str, Scalar]]]:
    """Ids without repetition (the last one stays), their vectors (n, dim) in float32, their metadata."""
    vectors = _shaped(vectors, dim)
    if not len(ids) == len(vectors) == len(metadata):
        raise StoreError(f"{len(ids)} ids, {len(vectors)} vectors and {len(metadata)} metadata do not belong together")
    for id_ in ids:
        _check_id(id_)
    _check_finite(vectors, lambda row: f"item {ids[row]!r:.80}")
    items = [_checked_metadata(id_, fields) for id_, fields in zip(ids, metadata, strict=True)]
    last = {id_: row for row, id_ in enumerate(ids)}
    if len(last) == len(ids):
        return list(ids), vectors, items
    rows = list(last.values())
    return list(last), vectors[rows], [items[row] for row in rows]


def checked_queries(vectors: np.ndarray, dim: int, k: int) -> np.ndarray:
    if k < 1:
        raise SearchError(f"a search returns at least one item: k must be 1 or more, got {k}")
    vectors = _shaped(vectors, dim)
    _check_finite(vectors, lambda row: f"query {row}")
    return vectors


def _shaped(vectors: np.ndarray, dim: int) -> np.ndarray:
    """(n, dim) in float32."""
    with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, which is refused next
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise StoreError(f"the store holds vectors of {dim} numbers; expected (n, {dim}), got {vectors.shape}")
    return vectors


def _check_finite(vectors: np.ndarray, name: Callable[[int], str]) -> None:
    finite = np.isfinite(vectors)
    if not finite.all():
        row = int(np.flatnonzero(~finite.all(axis=1))[0])
        raise StoreError(f"the vector of {name(row)} holds NaN or infinity; a matcher that gives these is broken")


def _check_id(id_: str) -> None:
    if not isinstance(id_, str) or not id_ or not is_text(id_) or len(id_.encode()) > ID_BYTES:
        raise StoreError(f"an id is a text of 1 to {ID_BYTES} bytes without NUL characters, not {id_!r:.80}")


def _checked_metadata(id_: str, fields: Mapping[str, Scalar]) -> dict[str, Scalar]:
    for name, value in fields.items():
        if not isinstance(name, str) or not FIELD.fullmatch(name):
            raise StoreError(
                f"item {id_!r:.80}: a metadata field is named by letters, digits and underscores, not {name!r:.80}"
            )
        if not _storable(value):
            raise StoreError(
                f"item {id_!r:.80}: metadata {name} must be a text without NUL, a finite number (integers up to 2^53) "
                f"or a boolean, not {value!r:.80}"
            )
    if len(json.dumps(dict(fields), ensure_ascii=False).encode()) > METADATA_BYTES:
        raise StoreError(f"item {id_!r:.80}: its metadata take more than {METADATA_BYTES} bytes")
    return dict(fields)


def _storable(value: object) -> bool:
    if isinstance(value, str):
        return is_text(value)
    if isinstance(value, int):  # booleans too
        return abs(value) <= LARGEST_INTEGER
    return isinstance(value, float) and isfinite(value)


def is_text(value: str) -> bool:
    """Whether every engine can hold it: no NUL, no half of a surrogate pair."""
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
