"""Milvus: an embedded file (Lite) or a server, by the same code and another address."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote

import numpy as np

from quintet.errors import suggest
from quintet.search import StoreError, UnknownItem
from quintet.search.stores.store import (
    ID_BYTES,
    TIMEOUT,
    Address,
    RetryPolicy,
    StoreHit,
    checked_items,
    checked_queries,
    checked_timeout,
    required,
)
from quintet.search.stores.where import FIELD, Clause, Scalar, Where, kind_of

MOST = 16_384  # results of one request, by Milvus's own limit
SPARE = 8  # results beyond k, so that ties at the boundary are seen
QUERIES = 64  # in one request
SENT_BYTES = 8 << 20  # in one request
IDS = 1000  # in one request
INDEXES = {"flat": {}, "hnsw": {"M": 32, "efConstruction": 100}}  # and how each is built
SEARCH_WIDTH = 128  # HNSW's ef, at least
LOAD_SECONDS = 300.0  # a server may take long to bring a large collection into memory


class MilvusConnection:
    """A connection to one collection: asked again when the server is away. A reading shows what was written before."""

    def __init__(self, uri: str, collection: str, policy: RetryPolicy, token: str = "") -> None:
        self.pymilvus, self._grpc = required("pymilvus", "milvus"), required("grpc", "milvus")
        # It prints a trace of every error that it also raises; ours say what is needed.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self.collection, self.address, self._policy = collection, policy.address, policy
        self._written, self._seen = 1, 0  # others may have written before
        client = self.pymilvus.MilvusClient
        # `dedicated`: closing this connection must not close another store's.
        self.client = self.call(lambda left: client(uri, token=token, timeout=left / 2, dedicated=True))

    def ask(self, what: str, within: float | None = None, **arguments: Any) -> Any:
        """Call a method of the client on the collection."""
        method = getattr(self.client, what)
        # Half of the time: the driver may begin a last attempt just before its limit.
        return self.call(lambda left: method(self.collection, timeout=left / 2, **arguments), within)

    def write(self, what: str, **arguments: Any) -> None:
        self.ask(what, **arguments)
        self._written += 1

    def read(self, what: str, **arguments: Any) -> Any:
        """Only the first reading after a change waits until the server shows it: up to a fifth of a second."""
        written = self._written
        level = "Strong" if self._seen < written else "Eventually"
        found = self.ask(what, consistency_level=level, **arguments)
        self._seen = max(self._seen, written)
        return found

    def call(self, action: Callable[[float], Any], within: float | None = None) -> Any:
        errors = (self.pymilvus.MilvusException, self._grpc.RpcError)
        return self._policy.call(action, errors, self._may_pass, within)

    def close(self) -> None:
        self.client.close()

    def _may_pass(self, error: Exception) -> bool:
        """Errors of the connection have a code of gRPC, or 2 while it is made; the driver's own limit has none."""
        if isinstance(error, self.pymilvus.MilvusException):
            lost = isinstance(error.code, self._grpc.StatusCode) or error.code == 2
            return lost or "Retry timeout" in error.message
        return True


class LiteConnection(MilvusConnection):
    """Lite serves a file from threads of this process and locks it meanwhile; its last store gives it back."""

    _users: ClassVar[Counter[str]] = Counter()
    _lock: ClassVar = threading.Lock()

    def __init__(self, path: str, collection: str, policy: RetryPolicy) -> None:
        self._manager = required("milvus_lite.server_manager", "milvus").server_manager_instance
        self._path = path
        with self._lock:
            self._users[path] += 1
        try:
            super().__init__(path, collection, policy)
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        super().close()
        self._release()

    def _release(self) -> None:
        with self._lock:
            self._users[self._path] -= 1
            if not self._users[self._path]:
                self._manager.release_server(self._path)


class MilvusStore:
    def __init__(self, connection: MilvusConnection, dim: int | None, create: bool, index: str) -> None:
        self._connection = connection
        if not connection.ask("has_collection"):
            if not create:
                raise StoreError(
                    f"{connection.address} has no collection {connection.collection!r}; check the address, or create it"
                )
            self._create(dim, index)
        self.dim, self._index = self._described_dim(), self._described_index()
        if dim is not None and dim != self.dim:
            raise StoreError(f"the store {connection.address} holds vectors of {self.dim} numbers, not of {dim}")
        connection.ask("load_collection", within=LOAD_SECONDS)

    def add(self, ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]]) -> None:
        ids, vectors, items = checked_items(ids, vectors, metadata, self.dim)
        rows = [
            {"id": id_, "vector": vector, "metadata": packed(item)}
            for id_, vector, item in zip(ids, vectors, items, strict=True)
        ]
        step = max(1, SENT_BYTES // (4 * self.dim + 1000))
        for start in range(0, len(rows), step):
            self._connection.write("upsert", data=rows[start : start + step])

    def delete(self, ids: Iterable[str]) -> int:
        # The server counts what it was asked to delete, Lite what it is told: what is there is asked for first.
        there = [row["id"] for row in self._rows_of(list(dict.fromkeys(ids)), ["id"])]
        for start in range(0, len(there), IDS):
            self._connection.write("delete", filter=id_in(there[start : start + IDS]))
        return len(there)

    def search(self, vectors: np.ndarray, k: int, where: Where | None = None) -> list[list[StoreHit]]:
        queries, hits = checked_queries(vectors, self.dim, k), []
        filter_, left = expression(where)
        for start in range(0, len(queries), QUERIES):
            some = queries[start : start + QUERIES]
            fetched = min(k + SPARE, MOST)
            found = self._nearest(some, fetched, filter_, left)
            hits += [self._settle(*pair, k, fetched, filter_, left) for pair in zip(some, found, strict=True)]
        return hits

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Scalar]]:
        found = {row["id"]: unpacked(row["metadata"]) for row in self._rows_of(list(dict.fromkeys(ids)), ["metadata"])}
        for id_ in ids:
            if id_ not in found:
                raise UnknownItem(f"the store {self._connection.address} has no item {id_!r:.80}")
        return [dict(found[id_]) for id_ in ids]

    def ids(self) -> list[str]:
        return sorted(row["id"] for row in self._all("", ["id"]))

    def __len__(self) -> int:
        return self._count("")

    def flush(self) -> None:
        self._connection.ask("flush")

    def close(self) -> None:
        self._connection.close()

    # Inside

    def _nearest(self, queries: np.ndarray, m: int, filter_: str, left: Where | None) -> list[list[dict[str, Any]]]:
        """Up to m for each query; with what is needed to decide what Milvus could not."""
        parameters = {"ef": max(SEARCH_WIDTH, 2 * m)} if self._index == "hnsw" else {}
        return self._connection.read(
            "search",
            data=list(queries),
            limit=m,
            filter=filter_,
            output_fields=["id", "metadata"] if left else ["id"],
            search_params={"metric_type": "IP", "params": parameters},
        )

    def _settle(
        self, query: np.ndarray, found: list[dict[str, Any]], k: int, fetched: int, filter_: str, left: Where | None
    ) -> list[StoreHit]:
        """Ask for more until there are k that match and nothing that equals the last of them is missing."""
        while True:
            hits = [
                StoreHit(row["id"], float(row["distance"]))
                for row in found
                if left is None or left.matches(unpacked(row["entity"]["metadata"]))
            ]
            hits.sort(key=lambda hit: (-hit.score, hit.id))
            complete = len(found) < fetched and (self._index == "flat" or len(found) == self._count(filter_))
            if complete or (len(hits) >= k and found[-1]["distance"] < hits[k - 1].score):
                return hits[:k]
            if fetched == MOST or len(found) < fetched:
                return self._compare_all(query, k, filter_, left)
            fetched = min(4 * fetched, MOST)
            (found,) = self._nearest(query[None], fetched, filter_, left)

    def _compare_all(self, query: np.ndarray, k: int, filter_: str, left: Where | None) -> list[StoreHit]:
        """Where Milvus returns too few: everything that may match is fetched and compared here."""
        hits: list[StoreHit] = []
        for row in self._all(filter_, ["id", "vector", "metadata"]):
            if left is None or left.matches(unpacked(row["metadata"])):
                hits.append(
                    StoreHit(row["id"], float(np.float32(np.dot(query, np.asarray(row["vector"], np.float32)))))
                )
        return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:k]

    def _rows_of(self, ids: list[str], fields: list[str]) -> list[dict[str, Any]]:
        return [
            row
            for start in range(0, len(ids), IDS)
            for row in self._connection.read("query", filter=id_in(ids[start : start + IDS]), output_fields=fields)
        ]

    def _all(self, filter_: str, fields: list[str]) -> Iterator[dict[str, Any]]:
        batch = max(1, min(MOST, SENT_BYTES // (4 * self.dim))) if "vector" in fields else MOST
        self._count("")  # an iterator sees what a reading before it saw
        iterator = self._connection.ask("query_iterator", batch_size=batch, filter=filter_, output_fields=fields)
        try:
            while rows := self._connection.call(lambda left: iterator.next()):
                yield from rows
        finally:
            iterator.close()

    def _count(self, filter_: str) -> int:
        return int(self._connection.read("query", filter=filter_, output_fields=["count(*)"])[0]["count(*)"])

    def _create(self, dim: int | None, kind: str) -> None:
        if dim is None or dim < 1:
            raise StoreError(f"to create the store {self._connection.address}, say how many numbers a vector has (dim)")
        types = self._connection.pymilvus.DataType
        schema = self._connection.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", types.VARCHAR, is_primary=True, max_length=ID_BYTES)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=dim)
        schema.add_field("metadata", types.JSON)
        index = self._connection.client.prepare_index_params()
        index.add_index("vector", index_type=kind.upper(), metric_type="IP", params=INDEXES[kind])
        self._connection.ask("create_collection", within=LOAD_SECONDS, schema=schema, index_params=index)

    def _described_dim(self) -> int:
        fields = {field["name"]: field for field in self._connection.ask("describe_collection")["fields"]}
        if not {"id", "vector", "metadata"} <= set(fields):
            raise StoreError(
                f"the collection {self._connection.collection!r} of {self._connection.address} is not one of Quintet's"
            )
        return int(fields["vector"]["params"]["dim"])

    def _described_index(self) -> str:
        name = self._connection.ask("list_indexes")[0]
        return str(self._connection.ask("describe_index", index_name=name)["index_type"]).lower()


def open_lite(
    address: Address, dim: int | None, create: bool, *, collection: str = "quintet", index: str = "flat"
) -> MilvusStore:
    path = address.path().absolute()
    if path.suffix != ".db":
        raise StoreError(f"a Milvus file is named FILE.db, not {path.name!r:.80}")
    if not create and not path.exists():
        raise StoreError(f"there is no Milvus file {path}; check the address, or create it")
    _check(collection, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = LiteConnection(str(path), collection, RetryPolicy(str(address)))
    except StoreError as error:
        if "Open local milvus failed" not in str(error):
            raise
        raise StoreError(
            f"the Milvus file {path} cannot be opened: another process has it open (Lite allows one), or it is damaged"
        ) from error
    return _open(connection, dim, create, index)


def open_server(
    address: Address,
    dim: int | None,
    create: bool,
    *,
    collection: str = "quintet",
    index: str = "flat",
    timeout: float | str = TIMEOUT,
) -> MilvusStore:
    """Name and password, where the server wants them, stand before the host: milvus+https://NAME:PASSWORD@HOST."""
    _check(collection, index)
    policy = RetryPolicy(str(address), checked_timeout(timeout))
    secret, _, host = address.location.removeprefix("//").rpartition("@")
    uri = f"{address.scheme.removeprefix('milvus+')}://{host}"
    return _open(MilvusConnection(uri, collection, policy, unquote(secret)), dim, create, index)


def _open(connection: MilvusConnection, dim: int | None, create: bool, index: str) -> MilvusStore:
    try:
        return MilvusStore(connection, dim, create, index)
    except BaseException:
        connection.close()
        raise


def _check(collection: str, index: str) -> None:
    if not FIELD.fullmatch(collection) or len(collection) > 255:
        raise StoreError(f"a collection is named by letters, digits and underscores, not {collection!r:.80}")
    if index not in INDEXES:
        raise StoreError(f"a Milvus store has no index {index!r:.80}; {suggest(index, INDEXES)}")


# Filters in Milvus's words, as far as it has them in every version: comparisons, no patterns

# Milvus Lite takes true for 1. Booleans therefore have a place of their own, under a name that no field can have.
BOOLEANS = "?"
SIGNS = {"=": "==", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}  # the backslash first
LAST = "\U0010ffff"


def packed(metadata: Mapping[str, Scalar]) -> dict[str, object]:
    """Metadata as they are kept in a JSON field."""
    booleans = {name: value for name, value in metadata.items() if isinstance(value, bool)}
    return {name: value for name, value in metadata.items() if name not in booleans} | {BOOLEANS: booleans}


def unpacked(stored: Mapping[str, Any]) -> dict[str, Scalar]:
    return {name: value for name, value in stored.items() if name != BOOLEANS} | stored[BOOLEANS]


def expression(where: Where | None) -> tuple[str, Where | None]:
    """What Milvus can decide, and what is left to decide on the items it returns.

    >>> from quintet.search.stores.where import parse_where
    >>> expression(parse_where('year<2024'))
    ('(metadata["year"] < 2024 or metadata["year"] < "2024")', None)
    >>> expression(parse_where('path~holiday/*'))
    ('(metadata["path"] >= "holiday/" and metadata["path"] < "holiday0")', None)
    """
    alternatives = ((),) if where is None else where.alternatives
    texts = [" and ".join(map(_clause, clauses)) for clauses in alternatives]
    is_left = any(
        clause.operator == "~" and not _is_prefix(clause.literal) for clauses in alternatives for clause in clauses
    )
    joined = " or ".join(f"({text})" for text in texts) if all(texts) and len(texts) > 1 else texts[0]
    return joined if all(texts) else "", where if is_left else None


def id_in(ids: list[str]) -> str:
    return f"id in [{', '.join(map(_literal, ids))}]"


def _literal(value: Scalar) -> str:
    """As JSON writes it, but for control characters: Lite knows few escapes, and takes the rest as it is."""
    if not isinstance(value, str):
        return json.dumps(value)
    for letter, escaped in ESCAPES.items():
        value = value.replace(letter, escaped)
    return f'"{value}"'


def _clause(clause: Clause) -> str:
    if clause.operator == "~":
        return _pattern(clause.field, clause.literal)
    return "(" + " or ".join(_comparison(clause, reading) for reading in clause.readings) + ")"


def _comparison(clause: Clause, reading: Scalar) -> str:
    value = _literal(reading)
    if kind_of(reading) is bool:
        wanted = _literal(reading == (clause.operator == "="))
        return f'metadata["{BOOLEANS}"]["{clause.field}"] == {wanted}'
    name = f'metadata["{clause.field}"]'
    if clause.operator == "!=":  # Milvus's own != also holds of items without the field, and of other kinds
        return f"{name} < {value} or {name} > {value}"
    return f"{name} {SIGNS[clause.operator]} {value}"


def _literal_start(pattern: str) -> str:
    return pattern.split("*")[0].split("?")[0]


def _is_prefix(pattern: str) -> bool:
    """Whether a pattern is a text, or a text and one star: what comparisons can say whole."""
    return pattern in (_literal_start(pattern), _literal_start(pattern) + "*")


def _pattern(field: str, pattern: str) -> str:
    """All texts with the beginning that the pattern asks for; more than the pattern where that goes on."""
    name, start = f'metadata["{field}"]', _literal_start(pattern)
    if pattern == start:
        return f"({name} == {_literal(start)})"
    after = _after_all_with(start)
    upper = f" and {name} < {_literal(after)}" if after else ""
    return f"({name} >= {_literal(start)}{upper})"


def _after_all_with(start: str) -> str:
    """The first text after all those that begin so; empty where none is."""
    start = start.rstrip(LAST)
    if not start:
        return ""
    code = ord(start[-1]) + 1
    return start[:-1] + chr(0xE000 if code == 0xD800 else code)
