"""Stores in a folder: a table of items, a file of vectors, and an engine that searches them.

    store.json               names the files that count; written last, so that a kill leaves the state before
    vectors-G.f32            rows of float32; grows at its end, rows that no item uses are dead
    items-G.safetensors      ids, rows and metadata
    index-G.faiss            only where the engine has one; covers the first rows, the others are scanned
    lock                     held by the one writer

A reader sees the state at its opening. The exact and the FAISS store read each other's folders.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quintet.files import read_json, write_json
from quintet.search.errors import StoreError, UnknownItem
from quintet.search.stores.check import checked_items, checked_queries
from quintet.search.stores.lock import WriterLock
from quintet.search.stores.snapshot import Engine, Snapshot
from quintet.search.stores.store import StoreHit
from quintet.search.stores.table import Placed, Table, check_table
from quintet.search.stores.vectors import Vectors, VectorWriter
from quintet.search.stores.where import Scalar, Where

FORMAT, VERSION = "quintet-store", 1
MANIFEST = "store.json"
OWN_NAME = re.compile(r"lock|store\.json|vectors-\d+\.f32|items-\d+\.safetensors|index-\d+\.faiss")
_PARTIAL = re.compile(rf"\.(?:{OWN_NAME.pattern})\.[a-z0-9_]{{8}}\.partial")  # of a writer that was killed
DEAD = 0.5  # above this share of dead rows the vectors are written anew
PENDING = 100_000  # new items that are kept as they came, before they go into the table, which is smaller
COPY = 16_384  # rows at a time


class EngineMaker(Protocol):
    """What differs between the stores in folders."""

    def open(self, folder: Path, vectors: Vectors, notes: Mapping[str, Any]) -> Engine: ...

    def prepare(
        self, folder: Path, vectors: Vectors, notes: Mapping[str, Any], generation: int, *, moved: bool
    ) -> dict[str, Any]:
        """Before vectors are committed: write what the engine needs; its notes go into the manifest.

        `moved`: the rows are not the ones of the notes.
        """


class FolderStore:
    def __init__(self, folder: Path, maker: EngineMaker, dim: int | None, create: bool) -> None:
        self.folder, self._maker = folder, maker
        self._mutex = threading.RLock()
        self._lock: WriterLock | None = None
        self._writer: VectorWriter | None = None
        self._added: dict[str, Placed] = {}
        self._removed: set[str] = set()
        self._changed = self._closed = False
        self._norm = 0.0  # of the longest vector
        if create and not (folder / MANIFEST).exists():
            self._create(dim)
        self._load()
        if dim is not None and dim != self.dim:
            raise StoreError(f"the store {folder} holds vectors of {self.dim} numbers, not of {dim}")

    @property
    def dim(self) -> int:
        return int(self._manifest["dim"])

    # Reading

    def search(self, vectors: np.ndarray, k: int, where: Where | None = None) -> list[list[StoreHit]]:
        queries = checked_queries(vectors, self.dim, k)
        return self._now().search(queries, k, where)

    def metadata(self, ids: Sequence[str]) -> list[dict[str, Scalar]]:
        table = self._now().table
        places = table.find(ids)
        if (places < 0).any():
            raise UnknownItem(f"the store {self.folder} has no item {ids[int(places.argmin())]!r:.80}")
        return [table.metadata(int(place)) for place in places]

    def ids(self) -> list[str]:
        return self._now().table.ids.tolist()

    def __len__(self) -> int:
        return len(self._now().table)

    # Writing

    def add(self, ids: Sequence[str], vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]]) -> None:
        ids, vectors, items = checked_items(ids, vectors, metadata, self.dim)
        with self._mutex:
            writer = self._write()
            row = writer.rows
            writer.append(vectors)
            self._changed |= bool(ids)
            self._added |= {id_: Placed(row + n, item) for n, (id_, item) in enumerate(zip(ids, items, strict=True))}
            if len(vectors):
                self._norm = max(self._norm, float(np.linalg.norm(vectors.astype(np.float64), axis=1).max()))
            if len(self._added) >= PENDING:
                self._now()

    def delete(self, ids: Iterable[str]) -> int:
        with self._mutex:
            self._write()
            ids = list(dict.fromkeys(ids))
            there = self._now().table.find(ids) >= 0
            self._changed |= bool(there.any())
            self._removed |= {id_ for id_, is_there in zip(ids, there, strict=True) if is_there}
            return int(there.sum())

    def flush(self) -> None:
        with self._mutex:
            self._open_or_raise()
            if self._writer is None or not self._changed:
                return
            before, generation = self._now(), int(self._manifest["generation"]) + 1
            table, writer = before.table, self._writer
            if writer.rows - len(table) > DEAD * writer.rows:
                table, writer = self._compacted(before, generation)
            self._commit(table, writer, generation)
            if writer is not self._writer:
                self._writer.close()
                self._writer = writer

    def _commit(self, table: Table, writer: VectorWriter, generation: int) -> None:
        writer.sync()
        items = self.folder / f"items-{generation}.safetensors"
        table.save(items)
        vectors, moved = Vectors(writer.path, writer.rows, self.dim), writer is not self._writer
        engine = self._maker.prepare(self.folder, vectors, self._manifest["engine"], generation, moved=moved)
        manifest = self._manifest | {"generation": generation, "rows": writer.rows, "norm": self._norm}
        manifest |= {"vectors": writer.path.name, "items": items.name, "engine": engine}
        write_json(self.folder / MANIFEST, manifest)
        self._load()
        self._tidy()

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
                if self._lock is not None:
                    self._lock.release()

    # Inside

    def _create(self, dim: int | None) -> None:
        if dim is None or dim < 1:
            raise StoreError(f"to create the store {self.folder}, say how many numbers a vector has (dim)")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            there = [path.name for path in self.folder.iterdir()]
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.folder}: {error.strerror or error}") from error
        if not all(OWN_NAME.fullmatch(name) or _PARTIAL.fullmatch(name) for name in there):
            raise StoreError(f"{self.folder} is a folder with other things in it; name a new or empty one")
        lock = WriterLock(self.folder)
        if not (self.folder / MANIFEST).exists():  # nobody was quicker
            VectorWriter(self.folder / "vectors-0.f32", 0, dim).close()
            Table.empty().save(self.folder / "items-0.safetensors")
            names = {"vectors": "vectors-0.f32", "items": "items-0.safetensors", "engine": {}}
            head = {"format": FORMAT, "version": VERSION, "generation": 0, "dim": dim, "rows": 0, "norm": 0.0}
            write_json(self.folder / MANIFEST, head | names)
        lock.release()

    def _load(self) -> None:
        """Take up the state that the manifest names."""
        for _ in range(10):  # a writer may remove old files between our reading their names and opening them
            manifest = _read_manifest(self.folder)
            try:
                table = Table.load(self.folder / manifest["items"])
                vectors = Vectors(self.folder / manifest["vectors"], manifest["rows"], manifest["dim"])
                check_table(table, len(vectors), self.folder / manifest["items"])
                engine = self._maker.open(self.folder, vectors, manifest["engine"])
            except FileNotFoundError as error:
                missing = error
                continue
            self._manifest, self._norm = manifest, float(manifest["norm"])
            self._snapshot = Snapshot(table, vectors, engine, self._norm)
            self._added, self._removed, self._changed = {}, set(), False
            return
        raise StoreError(f"the store {self.folder} lacks a file of its own ({missing}); make it again")

    def _now(self) -> Snapshot:
        """The state with everything that was added and deleted up to here."""
        self._open_or_raise()
        if not (self._added or self._removed):  # without the mutex: readers go on while a flush takes its time
            return self._snapshot
        with self._mutex:
            if self._writer is not None and (self._added or self._removed):
                table = self._snapshot.table.merged(self._removed, self._added)
                vectors = Vectors(self._writer.path, self._writer.rows, self.dim)
                engine = self._maker.open(self.folder, vectors, self._manifest["engine"])
                self._snapshot = Snapshot(table, vectors, engine, self._norm)
                self._added, self._removed = {}, set()
            return self._snapshot

    def _write(self) -> VectorWriter:
        """Become the writer, on the newest state."""
        self._open_or_raise()
        if self._writer is None:
            self._lock = self._lock or WriterLock(self.folder)
            if _read_manifest(self.folder)["generation"] != self._manifest["generation"]:
                self._load()
            manifest = self._manifest
            self._writer = VectorWriter(self.folder / manifest["vectors"], manifest["rows"], self.dim)
        return self._writer

    def _compacted(self, before: Snapshot, generation: int) -> tuple[Table, VectorWriter]:
        """The living vectors in a new file, in the order of their old rows; the file before stays until the commit."""
        order = np.argsort(before.table.rows)
        writer = VectorWriter(self.folder / f"vectors-{generation}.f32", 0, self.dim)
        for start in range(0, len(order), COPY):
            writer.append(before.vectors.pick(before.table.rows[order[start : start + COPY]]))
        rows = np.empty_like(order)
        rows[order] = np.arange(len(order))
        return before.table.at_rows(rows), writer

    def _tidy(self) -> None:
        """Remove what no manifest names: earlier generations, and what killed writers left."""
        manifest = self._manifest
        used = {manifest["vectors"], manifest["items"], manifest["engine"].get("file")}
        used |= {MANIFEST, "lock"}
        for path in list(self.folder.iterdir()):
            own = OWN_NAME.fullmatch(path.name) or _PARTIAL.fullmatch(path.name)
            if own and path.name not in used and path.is_file():
                path.unlink(missing_ok=True)

    def _open_or_raise(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.folder} was closed")


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        raise StoreError(f"there is no store in {folder} (no {MANIFEST}); check the address, or create it")
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    if manifest.get("format") != FORMAT or manifest.get("version", 0) > VERSION:
        raise StoreError(f"{folder / MANIFEST}: this Quintet reads {FORMAT} up to version {VERSION}")
    return manifest
