"""Milvus: an embedded file (Lite) or a server, by the same code and another address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np

from quintet.errors import suggest
from quintet.search.errors import StoreError, UnknownItem
from quintet.search.stores.address import Address
from quintet.search.stores.check import ID_BYTES, checked_items, checked_queries
from quintet.search.stores.milvus_connection import LOAD_SECONDS, LiteConnection, MilvusConnection
from quintet.search.stores.milvus_filter import expression, id_in, packed, unpacked
from quintet.search.stores.patience import TIMEOUT, Patience, checked_timeout
from quintet.search.stores.store import StoreHit
from quintet.search.stores.where import FIELD, Scalar, Where

MOST = 16_384  # results of one request, by Milvus's own limit
SPARE = 8  # results beyond k, so that ties at the boundary are seen
QUERIES = 64  # in one request
SENT_BYTES = 8 << 20  # in one request
IDS = 1000  # in one request
INDEXES = {"flat": {}, "hnsw": {"M": 32, "efConstruction": 100}}  # and how each is built
SEARCH_WIDTH = 128  # HNSW's ef, at least


class MilvusStore:
    def __init__(self, line: MilvusConnection, dim: int | None, create: bool, index: str) -> None:
        self._line = line
        if not line.ask("has_collection"):
            if not create:
                raise StoreError(
                    f"{line.address} has no collection {line.collection!r}; check the address, or create it"
                )
            self._create(dim, index)
        self.dim, self._index = self._described_dim(), self._described_index()
        if dim is not None and dim != self.dim:
            raise StoreError(f"the store {line.address} holds vectors of {self.dim} numbers, not of {dim}")
        line.ask("load_collection", within=LOAD_SECONDS)

    def add(self, ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]]) -> None:
        ids, vectors, items = checked_items(ids, vectors, metadata, self.dim)
        rows = [
            {"id": id_, "vector": vector, "metadata": packed(item)}
            for id_, vector, item in zip(ids, vectors, items, strict=True)
        ]
        step = max(1, SENT_BYTES // (4 * self.dim + 1000))
        for start in range(0, len(rows), step):
            self._line.write("upsert", data=rows[start : start + step])

    def delete(self, ids: Iterable[str]) -> int:
        # The server counts what it was asked to delete, Lite what it is told: what is there is asked for first.
        there = [row["id"] for row in self._rows_of(list(dict.fromkeys(ids)), ["id"])]
        for start in range(0, len(there), IDS):
            self._line.write("delete", filter=id_in(there[start : start + IDS]))
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
                raise UnknownItem(f"the store {self._line.address} has no item {id_!r:.80}")
        return [dict(found[id_]) for id_ in ids]

    def ids(self) -> list[str]:
        return sorted(row["id"] for row in self._all("", ["id"]))

    def __len__(self) -> int:
        return self._count("")

    def flush(self) -> None:
        self._line.ask("flush")

    def close(self) -> None:
        self._line.close()

    # Inside

    def _nearest(self, queries: np.ndarray, m: int, filter_: str, left: Where | None) -> list[list[dict[str, Any]]]:
        """Up to m for each query; with what is needed to decide what Milvus could not."""
        parameters = {"ef": max(SEARCH_WIDTH, 2 * m)} if self._index == "hnsw" else {}
        return self._line.read(
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
            for row in self._line.read("query", filter=id_in(ids[start : start + IDS]), output_fields=fields)
        ]

    def _all(self, filter_: str, fields: list[str]) -> Iterator[dict[str, Any]]:
        batch = max(1, min(MOST, SENT_BYTES // (4 * self.dim))) if "vector" in fields else MOST
        self._count("")  # an iterator sees what a reading before it saw
        iterator = self._line.ask("query_iterator", batch_size=batch, filter=filter_, output_fields=fields)
        try:
            while rows := self._line.persist(lambda left: iterator.next()):
                yield from rows
        finally:
            iterator.close()

    def _count(self, filter_: str) -> int:
        return int(self._line.read("query", filter=filter_, output_fields=["count(*)"])[0]["count(*)"])

    def _create(self, dim: int | None, kind: str) -> None:
        if dim is None or dim < 1:
            raise StoreError(f"to create the store {self._line.address}, say how many numbers a vector has (dim)")
        types = self._line.pymilvus.DataType
        schema = self._line.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", types.VARCHAR, is_primary=True, max_length=ID_BYTES)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=dim)
        schema.add_field("metadata", types.JSON)
        index = self._line.client.prepare_index_params()
        index.add_index("vector", index_type=kind.upper(), metric_type="IP", params=INDEXES[kind])
        self._line.ask("create_collection", within=LOAD_SECONDS, schema=schema, index_params=index)

    def _described_dim(self) -> int:
        fields = {field["name"]: field for field in self._line.ask("describe_collection")["fields"]}
        if not {"id", "vector", "metadata"} <= set(fields):
            raise StoreError(
                f"the collection {self._line.collection!r} of {self._line.address} is not one of Quintet's"
            )
        return int(fields["vector"]["params"]["dim"])

    def _described_index(self) -> str:
        name = self._line.ask("list_indexes")[0]
        return str(self._line.ask("describe_index", index_name=name)["index_type"]).lower()


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
        line = LiteConnection(str(path), collection, Patience(str(address)))
    except StoreError as error:
        if "Open local milvus failed" not in str(error):
            raise
        raise StoreError(
            f"the Milvus file {path} cannot be opened: another process has it open (Lite allows one), or it is damaged"
        ) from error
    return _open(line, dim, create, index)


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
    patience = Patience(str(address), checked_timeout(timeout))
    secret, _, place = address.place.removeprefix("//").rpartition("@")
    uri = f"{address.scheme.removeprefix('milvus+')}://{place}"
    return _open(MilvusConnection(uri, collection, patience, unquote(secret)), dim, create, index)


def _open(line: MilvusConnection, dim: int | None, create: bool, index: str) -> MilvusStore:
    try:
        return MilvusStore(line, dim, create, index)
    except BaseException:
        line.close()
        raise


def _check(collection: str, index: str) -> None:
    if not FIELD.fullmatch(collection) or len(collection) > 255:
        raise StoreError(f"a collection is named by letters, digits and underscores, not {collection!r:.80}")
    if index not in INDEXES:
        raise StoreError(f"a Milvus store has no index {index!r:.80}; {suggest(index, INDEXES)}")
