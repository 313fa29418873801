"""What every store does: vectors by id, the nearest by inner product, filters. And what all of them share."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

import numpy as np

from quintet.errors import first_line
from quintet.search import SearchError, StoreError, StoreUnavailable
from quintet.search.stores.where import FIELD, LARGEST_INTEGER, Scalar, Where

PASSWORD = re.compile(r"(?<=:)[^:@/]*(?=@)")
ID_BYTES = 1024  # the smallest limit among the engines is some 2,700 for a key
METADATA_BYTES = 60_000  # Milvus allows 65,536 for a JSON field


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


# Addresses: where a store is


@dataclass(frozen=True)
class Address:
    """
    >>> Address.parse("local:holiday/vectors?kind=hnsw")
    Address(scheme='local', location='holiday/vectors', options={'kind': 'hnsw'})
    >>> str(Address.parse("postgresql://me:secret@db/images?table=t"))
    'postgresql://me:***@db/images?table=t'
    """

    scheme: str
    location: str
    options: dict[str, str]

    @staticmethod
    def parse(text: str) -> Address:
        scheme, colon, rest = text.partition(":")
        if not colon or not scheme:
            raise StoreError(
                f"{text!r:.200} is no address of a store; write for example local:FOLDER, milvus:FILE.db, "
                "milvus+http://HOST:PORT or postgresql://HOST/DATABASE"
            )
        location, _, query = rest.partition("?")
        return Address(scheme.lower(), location, dict(parse_qsl(query, keep_blank_values=True)))

    def named(self, suffix: str) -> Address:
        """Another folder, table or collection of the same engine.

        >>> Address.parse("postgresql://localhost/db?table=holiday").named("text").text
        'postgresql://localhost/db?table=holiday_text'
        """
        if self.scheme == "local":
            return replace(self, location=f"{self.location}-{suffix}")
        option = "table" if self.scheme.startswith("postgres") else "collection"
        return replace(self, options=self.options | {option: f"{self.options.get(option, 'quintet')}_{suffix}"})

    @property
    def text(self) -> str:
        """As `parse` reads it."""
        return f"{self.scheme}:{self.location}" + (f"?{urlencode(self.options)}" if self.options else "")

    def name_and_password(self) -> tuple[str, str]:
        """Of somebody who asks a server; empty where the address does not say.

        >>> Address.parse("postgresql://me:secret@host/db").name_and_password()
        ('me', 'secret')
        """
        server = self.location[2:].partition("/")[0] if self.location.startswith("//") else ""
        name, _, password = server.partition("@")[0].partition(":") if "@" in server else ("", "", "")
        return name, password or self.options.get("password", "")

    def path(self) -> Path:
        """The location as a folder or file; `%3F` stands for a question mark."""
        if not self.location:
            raise StoreError(f"the address {self} names no folder or file")
        return Path(unquote(self.location)).expanduser()

    def __str__(self) -> str:
        """For people: without the password."""
        options = {name: "***" if name == "password" else value for name, value in self.options.items()}
        query = f"?{urlencode(options, safe='/*')}" if options else ""
        return f"{self.scheme}:{PASSWORD.sub('***', self.location)}{query}"


def file_address(scheme: str, path: Path) -> str:
    """The address of a store in a folder or file, whatever its name.

    >>> file_address("local", Path("what now?"))
    'local:what%20now%3F'
    """
    return f"{scheme}:{quote(str(path))}"


def required(package: str, extra: str) -> Any:
    """The module, or an error that says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise StoreError(
            f"this store needs the extra `{extra}`: `pip install 'quintet-retrieval[{extra}]'` ({error})"
        ) from None


# What may enter a store, checked in one place, so that every engine accepts and refuses the same


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


# Asking a server: again when it does not answer, with growing pauses, and never longer than was said

T = TypeVar("T")
ATTEMPTS = 5
FIRST_PAUSE = 0.1  # seconds; each pause is twice the one before
TIMEOUT = 30.0  # seconds, of one operation with all its attempts


@dataclass(frozen=True)
class RetryPolicy:
    """`address` is for the message, without a password."""

    address: str
    timeout: float = TIMEOUT

    def call(
        self,
        action: Callable[[float], T],
        errors: tuple[type[Exception], ...],
        may_pass: Callable[[Exception], bool] = lambda error: True,
        timeout: float | None = None,
    ) -> T:
        """Call `action(seconds left)`. An error that may pass is tried again; others are raised at once."""
        began = time.monotonic()
        deadline = began + (self.timeout if timeout is None else timeout)
        for attempt in range(ATTEMPTS):
            try:
                return action(deadline - time.monotonic())
            except errors as error:
                if not may_pass(error):
                    raise StoreError(f"the store at {self.address} refused: {first_line(error)}") from error
                pause, last = FIRST_PAUSE * 2**attempt, error
            if attempt + 1 == ATTEMPTS or time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        raise StoreUnavailable(
            f"the store at {self.address} did not answer ({attempt + 1} attempts in {time.monotonic() - began:.1f} s): "
            f"{first_line(last)}; is the server running, and is the address right?"
        ) from last


def checked_timeout(value: float | str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise StoreError(f"timeout is a number of seconds above 0, not {value!r:.80}")
    return seconds
