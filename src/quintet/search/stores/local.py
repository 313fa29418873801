"""A store on this machine: what an index keeps of its vectors, in a folder of its own.

items.sqlite             ids, metadata, and the row of each one's vector (see `quintet.search.items`)
vectors/image-1-...bin   float32 rows (see `quintet.search.vectors`)
vectors/image-1-...faiss only where there are many
lock                     while somebody writes

Every `add` and `delete` is a transaction. Readers, of this store object too, hold a snapshot, and take the next one
after a change.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet.codes import Codes
from quintet.errors import QuintetError, suggest
from quintet.locks import folder_lock
from quintet.search import StaleIndex, StoreError, UnknownItem
from quintet.search.items import Entry, Item, ItemDatabase, Kind
from quintet.search.stores.store import Address, StoreHit, checked_items, checked_queries, required
from quintet.search.stores.where import Scalar, Where
from quintet.search.vector_search import (
    FAISS_KINDS,
    FaissKind,
    VectorSearch,
    exchange_index,
    kind_for,
    prepare_index,
    read_index,
)
from quintet.search.vectors import (
    CodeFiles,
    CodeWriter,
    FileSet,
    copy_rows,
    new_name,
    read_file_sets,
    remove_unused_files,
    retire,
    write_file_set,
)

KIND: Kind = "image"  # of all items of a store; their metadata may say anything
FORMAT, VERSION = "quintet-store", 3
OWN_NAMES = {"items.sqlite", "items.sqlite-wal", "items.sqlite-shm", "vectors", "lock"}
ENCODER = "given"  # the vectors are not ours to make
DEAD = 0.5  # above this share of dead rows the vectors are written anew
ATTEMPTS = 10  # to open files that a writer exchanges in the same moment


@dataclass(frozen=True)
class _Snapshot:
    database: ItemDatabase
    search: VectorSearch


class LocalStore:
    def __init__(self, folder: Path, dim: int | None, create: bool, kind: FaissKind | None) -> None:
        """`kind`: of FAISS's index; None: the number of vectors decides, and nothing but the vectors is needed while
        there are few.
        """
        self.folder, self._vectors = folder, folder / "vectors"
        self._mutex = threading.RLock()
        self._held = ExitStack()  # what a writer holds
        self._database: ItemDatabase | None = None  # the writer's
        self._writer: CodeWriter | None = None
        self._faiss: tuple[str, Any] = ("", None)  # the last one that was read, and its file
        self._changed = self._closed = False
        if kind not in (None, "flat"):
            required("faiss", "index")
        if create and not (folder / "items.sqlite").exists():
            self._create(dim, kind)
        if not (folder / "items.sqlite").is_file():
            raise StoreError(f"there is no store in {folder} (no items.sqlite); check the address, or create it")
        self._snapshot: _Snapshot | None = self._open_snapshot()
        head = self._head(self._snapshot.database)
        self.dim, self._asked = int(head["dim"]), kind or head["asked"]
        if dim is not None and dim != self.dim:
            self._snapshot.database.close()
            raise StoreError(f"the store {folder} holds vectors of {self.dim} numbers, not of {dim}")

    # Reading

    def search(self, vectors: np.ndarray, k: int, where: Where | None = None) -> list[list[StoreHit]]:
        found = self._now().search.search(checked_queries(vectors, self.dim, k), k, where)
        return [[StoreHit(entry.item.id, score) for entry, score in hits] for hits in found]

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Scalar]]:
        found = self._now().database.entries(list(dict.fromkeys(ids)))
        for id_ in ids:
            if id_ not in found:
                raise UnknownItem(f"the store {self.folder} has no item {id_!r:.80}")
        return [found[id_].item.metadata for id_ in ids]

    def ids(self) -> list[str]:
        return [id_ for (id_,) in self._now().database.query("SELECT id FROM items ORDER BY id")]

    def __len__(self) -> int:
        return self._now().database.counts()[KIND]

    # Writing

    def add(self, ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]]) -> None:
        ids, vectors, items = checked_items(ids, vectors, metadata, self.dim)
        if not ids:
            return
        with self._writing() as (database, writer):

            def put(first: int) -> None:
                rows = enumerate(zip(ids, items, strict=True), first)
                database.put(Entry(Item(id_, KIND, metadata=item), row, "", "") for row, (id_, item) in rows)

            writer.append([Codes(embedding=torch.from_numpy(vectors))], put)
            self._changed, self._snapshot = True, None

    def delete(self, ids: Iterable[str]) -> int:
        with self._writing() as (database, _):
            there = database.entries(list(dict.fromkeys(ids)))
            if there:
                with database.transaction():
                    database.remove(there)
                self._changed, self._snapshot = True, None
            return len(there)

    def flush(self) -> None:
        """Everything is durable already; here dead rows go, and FAISS's index is brought up to date."""
        with self._mutex:
            self._now()  # for readers meanwhile
            if self._changed:
                with self._writing() as (database, writer):
                    self._compact(database, writer)
                    self._index(database)
                    self._tidy(database)
                self._changed, self._snapshot = False, None

    def close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            try:
                self.flush()
            finally:
                self._closed, snapshot, self._snapshot = True, self._snapshot, None
                self._held.close()
                if snapshot is not None:
                    snapshot.database.close()

    # Inside

    def _head(self, database: ItemDatabase) -> dict[str, Any]:
        head = database.head("store")
        if not isinstance(head, dict) or head.get("format") != FORMAT or head.get("version") != VERSION:
            raise StoreError(f"{self.folder} is not a store that this Quintet reads ({FORMAT}, version {VERSION})")
        return head

    def _create(self, dim: int | None, kind: FaissKind | None) -> None:
        if dim is None or dim < 1:
            raise StoreError(f"to create the store {self.folder}, say how many numbers a vector has (dim)")
        try:
            there = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.folder}: {error.strerror or error}") from error
        if there - OWN_NAMES:
            raise StoreError(f"{self.folder} is a folder with other things in it; name a new or empty one")
        with self._lock(), ExitStack() as stack:
            database = ItemDatabase.open_writer(self.folder / "items.sqlite", _metadata)
            stack.callback(database.close)
            if database.head("store") is None:  # nobody was quicker
                name = new_name(database, self._vectors, KIND)
                files = FileSet(name, KIND, ENCODER, {"run0-embedding": {"width": dim, "dtype": "float32"}}, 0, 0.0)
                CodeWriter.create(database, self._vectors, files)
                with database.transaction():
                    for other in read_file_sets(database).values():
                        if other.name != files.name:
                            retire(database, other)
                    database.set_head("store", {"format": FORMAT, "version": VERSION, "dim": dim, "asked": kind})
                remove_unused_files(database, self._vectors)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(folder_lock(self.folder, "writing the store"))
            except QuintetError as error:
                raise StoreError(str(error)) from None
            yield

    @contextmanager
    def _writing(self) -> Iterator[tuple[ItemDatabase, CodeWriter]]:
        """As the one writer, which this store stays until it is closed."""
        with self._mutex:
            if self._closed:
                raise StoreError(f"the store {self.folder} was closed")
            if self._database is None or self._writer is None:
                with ExitStack() as stack:
                    stack.enter_context(self._lock())
                    database = ItemDatabase.open_writer(self.folder / "items.sqlite", _metadata)
                    stack.callback(database.close)
                    self._tidy(database)
                    self._writer = CodeWriter(database, self._vectors, self._files(database), "float32")
                    stack.callback(self._close_writer)
                    self._database, self._snapshot = database, None
                    self._held = stack.pop_all()
            yield self._database, self._writer

    def _tidy(self, database: ItemDatabase) -> None:
        lost = [files for files in read_file_sets(database).values() if files.encoder != ENCODER]
        if lost:  # a writer was killed, or failed, while it copied them
            with database.transaction():
                for files in lost:
                    retire(database, files)
        remove_unused_files(database, self._vectors)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _files(self, database: ItemDatabase) -> FileSet:
        self._head(database)
        found = [files for files in read_file_sets(database).values() if files.encoder == ENCODER]
        if len(found) != 1:
            raise StoreError(f"the store {self.folder} lacks a file of its own, or is damaged; make it again")
        return found[0]

    def _now(self) -> _Snapshot:
        """The newest state that this store knows of: without the mutex while nothing changed."""
        snapshot = self._snapshot
        if snapshot is None:
            with self._mutex:
                if self._closed:
                    raise StoreError(f"the store {self.folder} was closed")
                snapshot = self._snapshot = self._snapshot or self._open_snapshot()
        return snapshot

    def _open_snapshot(self) -> _Snapshot:
        for _ in range(ATTEMPTS):
            try:
                database = ItemDatabase.open_snapshot(self.folder / "items.sqlite", _metadata)
                vectors = CodeFiles(self._vectors, self._files(database)).vectors([0])
                return _Snapshot(database, VectorSearch(database, KIND, vectors, self._read_index(database)))
            except FileNotFoundError as error:
                missing = error
            except StaleIndex as error:
                raise StoreError(f"the store {self.folder} is damaged: {error}") from None
        raise StoreError(f"the store {self.folder} lacks a file of its own ({missing}); make it again")

    def _read_index(self, database: ItemDatabase) -> Any:
        notes = database.head("faiss") or {}
        if notes and notes["file"] != self._faiss[0]:
            self._faiss = notes["file"], read_index(self._vectors, notes)
        return self._faiss[1] if notes else None

    def _compact(self, database: ItemDatabase, writer: CodeWriter) -> None:
        """Write the living vectors anew where more than half are dead."""
        files, rows = writer.files, database.rows(KIND)
        if files.rows - len(rows) <= DEAD * files.rows:
            return
        if len(rows):
            fresh = copy_rows(database, self._vectors, files, rows, "float32")
        else:
            fresh = FileSet(new_name(database, self._vectors, KIND), KIND, "", files.parts, 0, 0.0)
            CodeWriter.create(database, self._vectors, fresh)
        before = database.head("faiss") or {}
        with database.transaction():
            database.move(KIND, rows.tolist())
            retire(database, files)
            write_file_set(database, replace(fresh, encoder=ENCODER))
            database.set_head("faiss", {})
            exchange_index(database, before, {})
        writer.close()
        self._writer = CodeWriter(database, self._vectors, self._files(database), "float32")

    def _index(self, database: ItemDatabase) -> None:
        """Make, extend or exchange FAISS's index, as the number of vectors asks. Newer rows are compared until then."""
        files, before, head = self._files(database), database.head("faiss") or {}, self._head(database)
        vectors = CodeFiles(self._vectors, files).vectors([0])
        now = prepare_index(database, self._vectors, files, vectors, self._asked or kind_for(files.rows), before)
        if now != before or head["asked"] != self._asked:
            with database.transaction():
                database.set_head("faiss", now)
                database.set_head("store", head | {"asked": self._asked})
                exchange_index(database, before, now)


def _metadata(item: Item) -> dict[str, Scalar]:
    return item.metadata


def open_local(address: Address, dim: int | None, create: bool, *, kind: str | None = None) -> LocalStore:
    """`kind` is flat, hnsw or ivf; without it the number of vectors decides."""
    if kind is not None and kind not in FAISS_KINDS:
        raise StoreError(f"a local store has no kind {kind!r:.80}; {suggest(kind, FAISS_KINDS)}")
    return LocalStore(address.path(), dim, create, kind)
