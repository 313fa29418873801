"""PostgreSQL with pgvector: a table of ids, vectors and metadata as jsonb."""

from __future__ import annotations

import json
import os
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np

from quintet.errors import suggest
from quintet.search import StoreError, UnknownItem
from quintet.search.stores.store import (
    TIMEOUT,
    Address,
    RetryPolicy,
    StoreHit,
    checked_items,
    checked_queries,
    checked_timeout,
    required,
)
from quintet.search.stores.where import LARGEST_INTEGER, Clause, Scalar, Where, kind_of

T = TypeVar("T")
IDLE = 16  # connections that are kept
TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,47}")  # room for the indexes' names
INDEXES = ("exact", "hnsw")
MOST_DIMENSIONS = 2000  # of pgvector's HNSW
SEARCH_WIDTH, WIDEST = 128, 1000  # hnsw.ef_search: at least, at most
BUILD_SECONDS = 24 * 3600.0  # an index of millions takes its time
SIGNS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "~": "LIKE"}
# How jsonb calls a kind, and how its text is compared: strings by code point, as Python does.
KINDS = {
    str: ("string", '(metadata->>%s) COLLATE "C" {} %s'),
    float: ("number", "(metadata->>%s)::numeric {} %s::numeric"),
    bool: ("boolean", "(metadata->>%s)::boolean {} %s"),
}


class PostgresStore:
    def __init__(self, pool: Pool, address: Address, table: str, dim: int | None, create: bool, *, index: str) -> None:
        self._pool, self._address, self._index = pool, address, index
        self._sql, self._vector = required("psycopg.sql", "pgvector"), required("pgvector", "pgvector").Vector
        self._name = table.rpartition(".")[2]
        self._table = self._sql.Identifier(*table.split("."))
        found = pool.run(self._find_dim, vectors=False)
        if found is None and not create:
            raise StoreError(f"{address} has no table {table!r}; check the address, or create it")
        if found is None:
            pool.run(lambda connection: self._create(connection, dim), vectors=False)
            found = pool.run(self._find_dim, vectors=False)
        self.dim = int(found or 0)
        if dim is not None and dim != self.dim:
            raise StoreError(f"the store {address} holds vectors of {self.dim} numbers, not of {dim}")

    def add(self, ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]]) -> None:
        ids, vectors, items = checked_items(ids, vectors, metadata, self.dim)
        jsonb = required("psycopg.types.json", "pgvector").Jsonb

        def copy(connection: Any) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(self._say("CREATE TEMP TABLE incoming (LIKE {table}) ON COMMIT DROP"))
                with cursor.copy("COPY incoming (id, embedding, metadata) FROM STDIN (FORMAT BINARY)") as file:
                    file.set_types(["text", "vector", "jsonb"])
                    for id_, vector, item in zip(ids, vectors, items, strict=True):
                        file.write_row((id_, vector, jsonb(item)))
                cursor.execute(
                    self._say(
                        "INSERT INTO {table} (id, embedding, metadata) SELECT id, embedding, metadata FROM incoming "
                        "ON CONFLICT (id) DO UPDATE SET embedding = EXCLUDED.embedding, metadata = EXCLUDED.metadata"
                    )
                )

        if ids:
            self._pool.run(copy)

    def delete(self, ids: Iterable[str]) -> int:
        wanted = list(ids)
        say = self._say("DELETE FROM {table} WHERE id = ANY(%s)")
        return int(self._pool.run(lambda connection: connection.execute(say, [wanted]).rowcount))

    def search(self, vectors: np.ndarray, k: int, where: Where | None = None) -> list[list[StoreHit]]:
        queries = checked_queries(vectors, self.dim, k)
        text, values = condition(where)
        say = self._say(
            f"SELECT id, -(embedding <#> %s) FROM {{table}} WHERE {text} ORDER BY embedding <#> %s, id LIMIT %s"
        )

        def ask(connection: Any, query: np.ndarray) -> list[StoreHit]:
            vector = self._vector(query)
            rows = connection.execute(say, [vector, *values, vector, k]).fetchall()
            return [StoreHit(id_, float(score)) for id_, score in rows]

        def ask_all(connection: Any) -> list[list[StoreHit]]:
            if self._index == "exact" or k > WIDEST:
                with connection.transaction():
                    connection.execute("SET LOCAL enable_indexscan = off")
                    return [ask(connection, query) for query in queries]
            with connection.transaction():
                self._widen(connection, k)
                found = [ask(connection, query) for query in queries]
            # The graph may not come across enough of what matches; then everything is compared.
            short = [number for number, hits in enumerate(found) if len(hits) < k]
            with connection.transaction():
                connection.execute("SET LOCAL enable_indexscan = off")
                for number in short:
                    found[number] = ask(connection, queries[number])
            return found

        return self._pool.run(ask_all)

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Scalar]]:
        say = self._say("SELECT id, metadata FROM {table} WHERE id = ANY(%s)")
        rows = self._pool.run(lambda connection: connection.execute(say, [list(ids)]).fetchall())
        found = {id_: {name: _as_added(value) for name, value in item.items()} for id_, item in rows}
        for id_ in ids:
            if id_ not in found:
                raise UnknownItem(f"the store {self._address} has no item {id_!r:.80}")
        return [dict(found[id_]) for id_ in ids]

    def ids(self) -> list[str]:
        say = self._say("SELECT id FROM {table} ORDER BY id")
        return [id_ for (id_,) in self._pool.run(lambda connection: connection.execute(say).fetchall())]

    def __len__(self) -> int:
        say = self._say("SELECT count(*) FROM {table}")
        return int(self._pool.run(lambda connection: connection.execute(say).fetchone())[0])

    def flush(self) -> None:
        """Changes are durable when their calls return; here the graph is made, once there is something in it."""
        if self._index == "hnsw":
            say = self._say(
                "CREATE INDEX IF NOT EXISTS {hnsw} ON {table} USING hnsw (embedding vector_ip_ops) "
                "WITH (m = 32, ef_construction = 100)"
            )
            self._pool.run(lambda connection: connection.execute(say), timeout=BUILD_SECONDS)

    def close(self) -> None:
        self._pool.close()

    # Inside

    def _say(self, text: str) -> Any:
        """A statement with the table's name in its place, quoted by the driver."""
        names = {kind: self._sql.Identifier(f"{self._name}_{kind}") for kind in ("hnsw", "gin")}
        return self._sql.SQL(text).format(table=self._table, **names)

    def _find_dim(self, connection: Any) -> int | None:
        """None where there is no such table."""
        name = self._table.as_string(connection)
        rows = connection.execute(
            "SELECT attname, format_type(atttypid, NULL), atttypmod FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0",
            [name],
        ).fetchall()
        columns = {column: (type_, size) for column, type_, size in rows}
        if columns and (not {"id", "metadata"} <= set(columns) or columns.get("embedding", ("",))[0] != "vector"):
            raise StoreError(f"the table {name} of {self._address} is not one of Quintet's")
        return columns["embedding"][1] if columns else None

    def _create(self, connection: Any, dim: int | None) -> None:
        if dim is None or dim < 1:
            raise StoreError(f"to create the store {self._address}, say how many numbers a vector has (dim)")
        if self._index == "hnsw" and dim > MOST_DIMENSIONS:
            raise StoreError(f"pgvector's HNSW takes vectors of at most {MOST_DIMENSIONS} numbers; use index=exact")
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('quintet'))")  # two may create at once
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(
                self._say(
                    'CREATE TABLE IF NOT EXISTS {table} (id text COLLATE "C" PRIMARY KEY, '
                    f"embedding vector({int(dim)}) NOT NULL, metadata jsonb NOT NULL)"
                )
            )
            say = self._say("CREATE INDEX IF NOT EXISTS {gin} ON {table} USING gin (metadata jsonb_path_ops)")
            connection.execute(say)

    def _widen(self, connection: Any, k: int) -> None:
        connection.execute(f"SET LOCAL hnsw.ef_search = {min(WIDEST, max(SEARCH_WIDTH, 2 * k))}")
        connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")


def _as_added(value: Scalar) -> Scalar:
    """jsonb writes 1e20 as 100000000000000000000; no store takes an integer that large, so it was a float."""
    is_large = isinstance(value, int) and abs(value) > LARGEST_INTEGER
    return float(value) if is_large else value


def open_postgres(
    address: Address,
    dim: int | None,
    create: bool,
    *,
    table: str = "quintet",
    index: str = "exact",
    timeout: float | str = TIMEOUT,
) -> PostgresStore:
    """`index=hnsw` makes a graph at the next `flush`. What else stands in the address is the driver's."""
    if not TABLE.fullmatch(table):
        raise StoreError(
            f"a table is named by up to 48 letters, digits and underscores, with its schema and a point before it if "
            f"need be, not {table!r:.80}"
        )
    if index not in INDEXES:
        raise StoreError(f"a PostgreSQL store has no index {index!r:.80}; {suggest(index, INDEXES)}")
    theirs = {name: value for name, value in address.options.items() if name not in ("table", "index", "timeout")}
    uri = f"postgresql:{address.location}" + (f"?{urlencode(theirs)}" if theirs else "")
    pool = Pool(uri, RetryPolicy(str(address), checked_timeout(timeout)))
    try:
        return PostgresStore(pool, address, table, dim, create, index=index)
    except BaseException:
        pool.close()
        raise


# Filters in SQL. Every value, field names too, is a parameter; nothing of a filter becomes part of the statement


def condition(where: Where | None) -> tuple[str, list[Any]]:
    """For a WHERE, and its parameters.

    >>> from quintet.search.stores.where import parse_where
    >>> condition(parse_where('kind=image'))
    ('(metadata @> %s::jsonb)', ['{"kind": "image"}'])
    """
    alternatives: list[str] = []
    values: list[Any] = []
    for clauses in ((),) if where is None else where.alternatives:
        parts = []
        for clause in clauses:
            readings = [_comparison(clause, reading) for reading in clause.readings]
            parts.append("(" + " OR ".join(text for text, _ in readings) + ")")
            values += [value for _, some in readings for value in some]
        alternatives.append(" AND ".join(parts) or "true")
    return alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(alternatives)})", values


def _comparison(clause: Clause, reading: Scalar) -> tuple[str, list[Any]]:
    if clause.operator == "=":  # an index on the whole of the metadata serves it
        return "metadata @> %s::jsonb", [json.dumps({clause.field: reading})]
    kind, comparison = KINDS[kind_of(reading)]
    value: Any = reading
    if clause.operator == "~":
        value = _like(clause.literal)
    elif kind == "number":
        value = repr(reading)
    # CASE, because the parts of an AND may be computed in any order, and a cast of a text to a number fails.
    text = f"CASE WHEN jsonb_typeof(metadata->%s) = '{kind}' THEN {comparison.format(SIGNS[clause.operator])} "
    return text + "ELSE false END", [clause.field, clause.field, value]


def _like(pattern: str) -> str:
    r"""
    >>> _like("100%*")
    '100\\%%'
    """
    for letter in "\\%_":
        pattern = pattern.replace(letter, "\\" + letter)
    return pattern.replace("*", "%").replace("?", "_")


# Connections: one for each thread that asks, given up when the server stays silent


class Pool:
    """`run` calls a function with a connection and tries again, within limits, when the server is away."""

    def __init__(self, uri: str, policy: RetryPolicy) -> None:
        self._psycopg = required("psycopg", "pgvector")
        self._register = required("pgvector.psycopg", "pgvector").register_vector
        self._uri, self._policy = uri, policy
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue(IDLE)
        self._closed = False

    def run(self, action: Callable[[Any], T], *, timeout: float | None = None, vectors: bool = True) -> T:
        """`vectors`: the connection knows pgvector's type, which has to exist by then."""

        def once(left: float) -> T:
            with self._connection(left, vectors) as connection, _time_limit(connection, left):
                return action(connection)

        return self._policy.call(once, (self._psycopg.Error,), self._may_pass, timeout)

    def close(self) -> None:
        self._closed = True
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def _connection(self, left: float, vectors: bool) -> Iterator[Any]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._psycopg.connect(self._uri, autocommit=True, connect_timeout=ceil(left))
        try:
            if vectors and connection.adapters.types.get("vector") is None:
                self._register(connection)
            yield connection
        except BaseException:  # in what state it is, nobody knows
            connection.close()
            raise
        self._keep(connection)

    def _keep(self, connection: Any) -> None:
        try:
            if self._closed:
                raise queue.Full
            self._idle.put_nowait(connection)
        except queue.Full:
            connection.close()

    def _may_pass(self, error: Exception) -> bool:
        """A connection that is refused or lost; not a statement that the server understood and refused."""
        away = isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError)
        # Class 08 is about connections, 57 about a server that is being stopped or took too long.
        return away and (error.sqlstate is None or error.sqlstate[:2] in ("08", "57"))  # type: ignore[attr-defined]


@contextmanager
def _time_limit(connection: Any, seconds: float) -> Iterator[None]:
    """Cut the connection after so long: waiting for a server that is frozen, or gone without a word, has no end."""
    end = threading.Timer(seconds, _cut, [connection])
    end.daemon = True
    end.start()
    try:
        yield
    finally:
        end.cancel()


def _cut(connection: Any) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
