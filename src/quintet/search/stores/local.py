"""A store on this machine: what an index keeps of its vectors, in a folder of its own.

items.sqlite             ids, metadata, and the row of each one's vector (see `quintet.search.items`)
vectors/image-1-...bin   float32 rows (see `quintet.search.vectors`)
vectors/image-1-...faiss only where there are many
lock                     held by the one writer
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet.codes import Codes
from quintet.errors import suggest
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
    open_search,
    prepare_index,
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
FORMAT, VERSION = "quintet-store", 2
OWN_NAMES = {"items.sqlite", "items.sqlite-wal", "items.sqlite-shm", "vectors", "lock"}
ENCODER = "given"  # the vectors are not ours to make
DEAD = 0.5  # above this share of dead rows the vectors are written anew


class LocalStore:
    def __init__(self, folder: Path, dim: int | None, create: bool, kind: FaissKind | None) -> None:
        """`kind`: of FAISS's index; None: the number of vectors decides, and nothing but the vectors is needed while
        there are few.
        """
        self.folder, self._vectors = folder, folder / "vectors"
        self._mutex = threading.RLock()
        self._lock: WriterLock | None = None
        self._read_before: ItemDatabase | None = None
        self._writer: CodeWriter | None = None
        self._search: VectorSearch | None = None  # None: something changed since
        self._changed = self._closed = False
        self._moves = 0  # of rows to other files, twice as many; odd while they are moved
        self._pending: FileSet | None = None  # with rows that are not committed
        if create and not (folder / "items.sqlite").exists():
            self._create(dim, kind)
        if not (folder / "items.sqlite").is_file():
            raise StoreError(f"there is no store in {folder} (no items.sqlite); check the address, or create it")
        self._database = self._open_snapshot()
        self.dim = int(self._head["dim"])
        self._asked = kind or self._head.get("asked")
        if self._asked not in (None, "flat"):
            required("faiss", "index")
        if dim is not None and dim != self.dim:
            self._database.close()
            raise StoreError(f"the store {folder} holds vectors of {self.dim} numbers, not of {dim}")

    # Reading

    def search(self, vectors: np.ndarray, k: int, where: Where | None = None) -> list[list[StoreHit]]:
        queries = checked_queries(vectors, self.dim, k)
        while True:
            moves = self._moves
            if moves % 2:  # rows are being moved: wait
                with self._mutex:
                    continue
            found = self._now().search(queries, k, where)
            if moves == self._moves:
                break
        return [[StoreHit(entry.item.id, score) for entry, score in hits] for hits in found]

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Scalar]]:
        found = self._readable().entries(list(dict.fromkeys(ids)))
        for id_ in ids:
            if id_ not in found:
                raise UnknownItem(f"the store {self.folder} has no item {id_!r:.80}")
        return [found[id_].item.metadata for id_ in ids]

    def ids(self) -> list[str]:
        return [id_ for (id_,) in self._readable().query("SELECT id FROM items ORDER BY id")]

    def __len__(self) -> int:
        return self._readable().counts()[KIND]

    # Writing

    def add(self, ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]]) -> None:
        ids, vectors, items = checked_items(ids, vectors, metadata, self.dim)
        if not ids:
            return
        with self._mutex:
            writer = self._write()
            first = writer.files.rows
            files = writer.append([Codes(embedding=torch.from_numpy(vectors))])
            entries = [
                Entry(Item(id_, KIND, metadata=item), first + number, "", "")
                for number, (id_, item) in enumerate(zip(ids, items, strict=True))
            ]
            try:
                self._change(lambda: self._database.put(entries))
            except BaseException:
                if writer is self._writer:
                    writer.cut()
                raise
            writer.committed(files)
            self._pending, self._search = files, None

    def delete(self, ids: Iterable[str]) -> int:
        with self._mutex:
            self._write()
            there = self._database.entries(list(dict.fromkeys(ids)))
            if there:
                self._change(lambda: self._database.remove(there))
                self._search = None
            return len(there)

    def flush(self) -> None:
        with self._mutex:
            self._readable()
            if self._writer is None or not self._changed:
                return
            self._now()  # for readers meanwhile
            pending = self._pending or self._files
            self._change(lambda: write_file_set(self._database, pending))
            try:
                self._database.commit()
            except StoreError:
                if not self._database.in_transaction:
                    self._forget_changes()
                raise
            self._changed, self._pending = False, None
            self._compact()
            self._index()
            remove_unused_files(self._database, self._vectors)

    def close(self) -> None:
        """What was not flushed is flushed."""
        with self._mutex:
            if self._closed:
                return
            try:
                self.flush()
            finally:
                self._closed = True
                if self._writer is not None:
                    self._writer.close()
                self._database.close()
                if self._read_before is not None:
                    self._read_before.close()
                if self._lock is not None:
                    self._lock.release()

    # Inside

    @property
    def _head(self) -> dict[str, Any]:
        head = self._database.head("store")
        if not isinstance(head, dict) or head.get("format") != FORMAT or head.get("version", 0) > VERSION:
            raise StoreError(f"{self.folder} is not a store that this Quintet reads ({FORMAT} up to version {VERSION})")
        return head

    @property
    def _files(self) -> FileSet:
        found = [files for files in read_file_sets(self._database).values() if files.encoder == ENCODER]
        if len(found) != 1:
            raise StoreError(f"{self.folder} is damaged: {len(found)} sets of vectors instead of one")
        return found[0]

    def _create(self, dim: int | None, kind: FaissKind | None) -> None:
        if dim is None or dim < 1:
            raise StoreError(f"to create the store {self.folder}, say how many numbers a vector has (dim)")
        if kind not in (None, "flat"):
            required("faiss", "index")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            there = {path.name for path in self.folder.iterdir()}
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.folder}: {error.strerror or error}") from error
        if there - OWN_NAMES:
            raise StoreError(f"{self.folder} is a folder with other things in it; name a new or empty one")
        lock = WriterLock(self.folder)
        try:
            database = ItemDatabase.open_writer(self.folder / "items.sqlite", _metadata)
            remove_unused_files(database, self._vectors)
            if database.head("store") is None:  # nobody was quicker
                name = new_name(database, self._vectors, KIND)
                files = FileSet(name, KIND, ENCODER, {"run0-embedding": {"width": dim, "dtype": "float32"}}, 0, 0.0)
                CodeWriter.create(database, self._vectors, files)
                with database.transaction():
                    for other in read_file_sets(database).values():
                        if other.name != files.name:
                            retire(database, other)
                    database.set_head("store", {"format": FORMAT, "version": VERSION, "dim": dim, "asked": kind})
            database.close()
        finally:
            lock.release()

    def _open_snapshot(self) -> ItemDatabase:
        """Take up the state that was committed last, with its files."""
        for _ in range(10):  # a writer may remove old files between our reading their names and opening them
            database = self._database = _snapshot(self.folder / "items.sqlite")
            try:
                self._search = self._open_search()
            except FileNotFoundError as error:
                missing = error
                database.close()
            except BaseException:
                database.close()
                raise
            else:
                return database
        raise StoreError(f"the store {self.folder} lacks a file of its own ({missing}); make it again")

    def _open_search(self) -> VectorSearch:
        files = self._pending or self._files
        vectors = _code_files(self._vectors, files).vectors([0])
        return open_search(self._database, self._vectors, KIND, vectors, self._database.head("faiss") or {})

    def _readable(self) -> ItemDatabase:
        if self._closed:
            raise StoreError(f"the store {self.folder} was closed")
        return self._database

    def _now(self) -> VectorSearch:
        """The state with everything that was added and deleted up to here."""
        self._readable()
        search = self._search
        if search is None:  # else without the mutex: readers go on while a flush takes its time
            with self._mutex:
                search = self._search = self._search or self._open_search()
        return search

    def _write(self) -> CodeWriter:
        """Become the writer, on the newest state."""
        self._readable()
        if self._writer is None:
            self._lock = self._lock or WriterLock(self.folder)
            self._read_before = self._database  # other threads may be searching
            self._database = ItemDatabase.open_writer(self.folder / "items.sqlite", _metadata)
            self._tidy()
            self._writer = CodeWriter(self._database, self._vectors, self._files, "float32")
            self._search = None
        return self._writer

    def _tidy(self) -> None:
        """Remove what a writer that was killed left behind."""
        lost = [files for files in read_file_sets(self._database).values() if files.encoder != ENCODER]
        if lost:
            with self._database.transaction():
                for files in lost:
                    retire(self._database, files)
        remove_unused_files(self._database, self._vectors)

    def _change(self, change: Callable[[], None]) -> None:
        """Inside of the transaction that `flush` commits."""
        try:
            if not self._changed:
                self._database.begin()
            self._changed = True
            with self._database.one_change():
                change()
        except StoreError:
            if not self._database.in_transaction:  # SQLite gave all of it up
                self._forget_changes()
            raise

    def _forget_changes(self) -> None:
        """After a failure, a full disk say: what was flushed before is unchanged, and nothing else stays."""
        self._database.rollback()
        self._changed, self._pending, self._search = False, None, None
        if self._writer is not None:
            self._writer.close()
            self._writer = CodeWriter(self._database, self._vectors, self._files, "float32")

    def _compact(self) -> None:
        """Write the living vectors anew where more than half are dead. The file before stays until the commit."""
        files, rows = self._files, self._database.rows(KIND)
        if files.rows - len(rows) <= DEAD * files.rows or self._writer is None:
            return
        if len(rows):
            fresh = copy_rows(self._database, self._vectors, files, rows, "float32")
        else:
            name = new_name(self._database, self._vectors, KIND)
            fresh = FileSet(name, KIND, "", files.parts, 0, 0.0)
            CodeWriter.create(self._database, self._vectors, fresh)
        before = self._database.head("faiss") or {}
        self._moves += 1
        try:
            with self._database.transaction():
                # A row only moves towards the beginning, and in order: none meets one that has not moved yet.
                moved = ((new, old) for new, old in enumerate(rows.tolist()))
                self._database.change("UPDATE items SET row = ? WHERE row = ?", moved)
                retire(self._database, files)
                write_file_set(self._database, replace(fresh, encoder=ENCODER))
                self._database.set_head("faiss", {})
                exchange_index(self._database, before, {})
            self._search = self._open_search()
        finally:
            self._moves += 1
        self._writer.close()
        self._writer = CodeWriter(self._database, self._vectors, self._files, "float32")

    def _index(self) -> None:
        """Make, extend or exchange FAISS's index, as the number of vectors asks. Newer rows are compared until then."""
        files, before = self._files, self._database.head("faiss") or {}
        vectors = _code_files(self._vectors, files).vectors([0])
        kind = self._asked or kind_for(files.rows)
        now = prepare_index(self._database, self._vectors, files, vectors, kind, before)
        if now != before or self._head.get("asked") != self._asked:
            with self._database.transaction():
                self._database.set_head("faiss", now)
                self._database.set_head("store", self._head | {"asked": self._asked})
                exchange_index(self._database, before, now)
        self._search = None


def _metadata(item: Item) -> dict[str, Scalar]:
    return item.metadata


def _snapshot(path: Path) -> ItemDatabase:
    try:
        return ItemDatabase.open_snapshot(path, _metadata)
    except StaleIndex as error:
        raise StoreError(str(error)) from None


def _code_files(folder: Path, files: FileSet) -> CodeFiles:
    try:
        return CodeFiles(folder, files)
    except StaleIndex as error:
        raise StoreError(f"{error}: the folder is damaged") from None


class WriterLock:
    """One writer at a time. The system gives the lock back when its holder ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"the store {folder} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 20).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise StoreError(
                f"the store {folder} is being written by another process (number {holder}); "
                "wait until it ends, or write to another folder"
            ) from None
        if os.read(self._file, 40).strip(b"0123456789\n"):
            os.close(self._file)
            raise StoreError(f"{path} is not the lock of a store and was left as it is; name another folder")
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        with suppress(OSError):
            os.close(self._file)


def open_local(address: Address, dim: int | None, create: bool, *, kind: str | None = None) -> LocalStore:
    """`kind` is flat, hnsw or ivf; without it the number of vectors decides."""
    if kind is not None and kind not in FAISS_KINDS:
        raise StoreError(f"a local store has no kind {kind!r:.80}; {suggest(kind, FAISS_KINDS)}")
    return LocalStore(address.path(), dim, create, kind)
