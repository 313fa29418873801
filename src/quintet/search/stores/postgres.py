"""PostgreSQL with pgvector: a table of ids, vectors and metadata as jsonb."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import numpy as np

from quintet.errors import suggest
from quintet.search.errors import StoreError, UnknownItem
from quintet.search.stores.address import Address
from quintet.search.stores.check import checked_items, checked_queries
from quintet.search.stores.extras import required
from quintet.search.stores.patience import TIMEOUT, Patience, checked_timeout
from quintet.search.stores.postgres_filter import condition
from quintet.search.stores.postgres_pool import Pool
from quintet.search.stores.store import StoreHit
from quintet.search.stores.where import LARGEST_INTEGER, Scalar, Where

TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,47}")  # room for the indexes' names
INDEXES = ("exact", "hnsw")
MOST_DIMENSIONS = 2000  # of pgvector's HNSW
SEARCH_WIDTH, WIDEST = 128, 1000  # hnsw.ef_search: at least, at most
BUILD_SECONDS = 24 * 3600.0  # an index of millions takes its time


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
    uri = f"postgresql:{address.place}" + (f"?{urlencode(theirs)}" if theirs else "")
    pool = Pool(uri, Patience(str(address), checked_timeout(timeout)))
    try:
        return PostgresStore(pool, address, table, dim, create, index=index)
    except BaseException:
        pool.close()
        raise
