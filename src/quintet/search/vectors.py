"""Codes on disk: append-only files of raw rows, read by memory mapping.

For the codes that run 0 makes of images, in the first set of files that an index wrote:

    vectors/image-1-run0-embedding.bin    (n, d) float32
    vectors/image-1-run0-fragments.bin    (sum of lengths, d): regions or words without padding, in the chosen precision
    vectors/image-1-run0-boxes.bin        (sum of lengths, 4) float32, of images; NaN where they are not known
    vectors/image-1-run0-lengths.bin      (n,) int32: how many fragments each item has

How many rows count stands in the database (`files.rows`). Rows behind them were never committed; the next writer cuts
them off. A row is never changed: a reader maps the rows of its snapshot and keeps them, also when the files are
removed.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.files import write_synced
from quintet.search import StaleIndex, StoreError
from quintet.search.items import RESUMES, ItemDatabase, Kind

PARTS = ("embedding", "fragments", "boxes")
RAGGED = PARTS[1:]
STORED = {"float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}  # numpy knows no bfloat16: as bits
RESIDENT_BYTES = 128 * 2**20  # rows picked from a mapping may keep this much of it in memory
READ_AROUND = 64 * 2**10  # touching one byte of a mapped file brings in its neighbourhood
COPIED = 4096  # rows at a time


@dataclass(frozen=True)
class FileSet:
    """What the database says of the files of one kind."""

    name: str  # "image-1"
    kind: Kind
    encoder: str  # fingerprint of the runs that made the codes
    parts: dict[str, dict[str, Any]]  # "run0-embedding" -> {"width": 512, "dtype": "float32"}
    rows: int
    norm: float  # of the longest embedding; with several runs, of all of them side by side

    @property
    def files(self) -> list[str]:
        lengths = [f"{part.partition('-')[0]}-lengths" for part in self.parts if part.endswith("-fragments")]
        return [f"{self.name}-{part}.bin" for part in (*self.parts, *lengths)]


def read_file_sets(database: ItemDatabase) -> dict[str, FileSet]:
    rows = database.query("SELECT name, kind, encoder, parts, rows, norm FROM files ORDER BY name")
    return {
        name: FileSet(name, kind, encoder, json.loads(parts), count, norm)
        for name, kind, encoder, parts, count, norm in rows
    }


def write_file_set(database: ItemDatabase, files: FileSet) -> None:
    """Inside of a transaction."""
    row = (files.name, files.kind, files.encoder, json.dumps(files.parts), files.rows, files.norm)
    database.change("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", [row])


# Names of files that no commit needs: they are on this list before they are made, and leave it in the commit that
# needs them; and they come on it in the commit that needs them no more. So a kill leaves no file that nobody knows.


def announce(database: ItemDatabase, names: Sequence[str]) -> None:
    """Inside of a transaction."""
    database.change("INSERT OR REPLACE INTO unused VALUES (?)", [(name,) for name in names])


def adopt(database: ItemDatabase, names: Sequence[str]) -> None:
    """Inside of a transaction."""
    database.change("DELETE FROM unused WHERE name = ?", [(name,) for name in names])


def remove_unused_files(database: ItemDatabase, folder: Path) -> None:
    names = [name for (name,) in database.query("SELECT name FROM unused")]
    if not names:
        return
    for name in names:
        for path in (folder / name, *folder.glob(f".{name}.*.partial")):
            if Path(name).name == name and not folder.is_symlink() and not path.is_symlink():
                with suppress(OSError):
                    path.unlink()
    with database.transaction():
        adopt(database, names)


def new_name(database: ItemDatabase, folder: Path, kind: Kind) -> str:
    """The name of a set that no file has, ours or not."""
    taken = {*read_file_sets(database), *(path.name.rpartition("-run")[0] for path in folder.glob(f"{kind}-*"))}
    number = 1
    while f"{kind}-{number}" in taken:
        number += 1
    return f"{kind}-{number}"


class CodeWriter:
    """Appends to a set of files, which it makes when the first codes come."""

    def __init__(self, database: ItemDatabase, folder: Path, files: FileSet, precision: str) -> None:
        self.database, self.folder, self.files, self.precision = database, folder, files, precision
        self._open: dict[str, FileIO] = {}
        self._ends: dict[str, int] = {}  # bytes that are committed
        if files.parts:
            self._open_files()

    def _open_files(self) -> None:
        """Cut off what was never committed."""
        with os_errors_as_store_error(self.folder):
            self._ends = dict(zip(self.files.files, _sizes(self.folder, self.files), strict=True))
            for name, end in self._ends.items():
                self._open[name] = (self.folder / name).open("r+b", buffering=0)
                if os.fstat(self._open[name].fileno()).st_size != end:
                    os.truncate(self._open[name].fileno(), end)
                self._open[name].seek(end)

    def append(self, codes: Sequence[Codes]) -> FileSet:
        """One `Codes` for each run. On disk when it returns; counts once the caller commits the set it gives."""
        codes = [part.to("cpu") for part in codes]
        if not self._open:
            self._start(codes)
        try:
            with os_errors_as_store_error(self.folder):
                for member, part in enumerate(codes):
                    for name, data in _raw(part, self.files, member).items():
                        write_synced(self._open[name], data)
        except StoreError:
            self.cut()
            raise
        embeddings = [part.embedding for part in codes if part.embedding is not None]
        norm = float(torch.cat(embeddings, dim=1).double().norm(dim=1).max()) if embeddings else 0.0
        return replace(self.files, rows=self.files.rows + len(codes[0]), norm=max(self.files.norm, norm))

    def committed(self, files: FileSet) -> None:
        """What `append` gave is in the database."""
        self.files = files
        self._ends = {name: file.tell() for name, file in self._open.items()}

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def _start(self, codes: Sequence[Codes]) -> None:
        parts: dict[str, dict[str, Any]] = {}
        for member, code in enumerate(codes):
            for part in PARTS:
                tensor: Tensor | None = getattr(code, part)
                if part == "boxes" and code.fragments is not None and self.files.kind == "image":
                    parts[f"run{member}-boxes"] = {"width": 4, "dtype": "float32"}
                elif part != "boxes" and tensor is not None:
                    dtype = self.precision if part == "fragments" else "float32"
                    parts[f"run{member}-{part}"] = {"width": tensor.shape[-1], "dtype": dtype}
        self.files = replace(self.files, parts=parts)
        self.create(self.database, self.folder, self.files)
        self._open_files()

    @staticmethod
    def create(database: ItemDatabase, folder: Path, files: FileSet) -> None:
        """The files of a new set, empty."""
        with database.transaction():
            announce(database, files.files)
        with os_errors_as_store_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name in files.files:
                (folder / name).open("xb").close()
            sync_folder(folder)
        with database.transaction():
            adopt(database, files.files)
            write_file_set(database, files)

    def cut(self) -> None:
        """Forget what was appended since `committed`."""
        for name, file in self._open.items():
            with suppress(OSError):
                os.truncate(file.fileno(), self._ends[name])
                file.seek(self._ends[name])


def _raw(codes: Codes, files: FileSet, member: int) -> dict[str, bytes]:
    """The batch as bytes, by file name; padding left out."""
    found: dict[str, bytes] = {}
    for part in PARTS:
        about = files.parts.get(f"run{member}-{part}")
        if about is None:
            continue
        tensor: Tensor | None = getattr(codes, part)
        if tensor is None:  # boxes that are not known
            tensor = torch.full((*codes.real().shape, about["width"]), torch.nan)  # (n, L, 4)
        rows = tensor[codes.real()] if part in RAGGED else tensor  # (sum of lengths, d) or (n, d)
        stored = rows.to(getattr(torch, about["dtype"])).contiguous().view(STORED[about["dtype"]])
        found[f"{files.name}-run{member}-{part}.bin"] = stored.numpy().tobytes()
    if codes.fragments is not None:
        lengths = codes.real().sum(dim=1).to(torch.int32)  # (n,)
        found[f"{files.name}-run{member}-lengths.bin"] = lengths.numpy().tobytes()
    return found


def _map(path: Path, dtype: str, rows: int, width: int) -> np.ndarray:
    needed = rows * width * np.dtype(dtype).itemsize
    if path.stat().st_size < needed:
        raise StaleIndex(f"{path} is cut short; build the index again")
    if not needed:
        return np.empty((rows, width), dtype)
    # "c": pages may be written, and are then ours alone; torch wants it, nobody does it.
    return np.memmap(path, dtype=dtype, mode="c", shape=(rows, width))


def _offsets(folder: Path, files: FileSet, member: str) -> np.ndarray:
    """(n + 1,): where the fragments of each row begin, and the end."""
    lengths = _map(folder / f"{files.name}-{member}-lengths.bin", "int32", files.rows, 1)[:, 0]
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _sizes(folder: Path, files: FileSet) -> list[int]:
    """Bytes of each of the files that are committed."""
    sizes = []
    for name in files.files:
        member, _, part = name.removeprefix(f"{files.name}-").removesuffix(".bin").partition("-")
        rows, about = files.rows, files.parts.get(f"{member}-{part}", {"width": 1, "dtype": "int32"})
        if part in RAGGED:
            rows = int(_offsets(folder, files, member)[-1])
        size = rows * about["width"] * (2 if about["dtype"] in ("float16", "bfloat16") else 4)
        if (folder / name).stat().st_size < size:
            raise StaleIndex(f"{folder / name} is cut short; build the index again")
        sizes.append(size)
    return sizes


class CodeFiles:
    """The committed rows of a set of files."""

    def __init__(self, folder: Path, files: FileSet) -> None:
        """FileNotFoundError where a file is gone: a writer may have replaced the set meanwhile."""
        self.folder, self.files = folder, files
        self._arrays: dict[str, np.ndarray] = {}
        self._starts: dict[str, np.ndarray] = {}  # of the fragments of each row, by run
        for name, part in files.parts.items():
            member, _, kind = name.partition("-")
            if kind in RAGGED and member not in self._starts:
                self._starts[member] = _offsets(folder, files, member)
            rows = int(self._starts[member][-1]) if kind in RAGGED else files.rows
            bits = "float32" if part["dtype"] == "float32" else "int16"
            self._arrays[name] = _map(folder / f"{files.name}-{name}.bin", bits, rows, part["width"])

    @property
    def members(self) -> int:
        return 1 + max(int(name.partition("-")[0].removeprefix("run")) for name in self.files.parts)

    def codes(self, member: int, rows: Sequence[int] | np.ndarray, parts: Sequence[str] = PARTS) -> Codes:
        """The codes that one run made of these rows, in float32, in their order; of its parts those named.

        Boxes are left out unless they are known of every row.
        """
        codes = self._read(member, rows, parts)
        return codes if codes.boxes is None or not bool(codes.boxes.isnan().any()) else replace(codes, boxes=None)

    def _read(self, member: int, rows: Sequence[int] | np.ndarray, parts: Sequence[str] = PARTS) -> Codes:
        chosen = np.asarray(rows, dtype=np.int64)
        run, found = f"run{member}", dict[str, Tensor]()
        names = [part for part in parts if f"{run}-{part}" in self._arrays]
        lengths = np.zeros(len(chosen), np.int64)
        if any(part in RAGGED for part in names):
            lengths = self._starts[run][chosen + 1] - self._starts[run][chosen]
        longest = int(lengths.max(initial=0))
        for part in names:
            found[part] = self._take(run, part, chosen, longest).float()
        if (lengths != longest).any():
            found["mask"] = torch.arange(longest) < torch.from_numpy(lengths)[:, None]  # (n, L)
        return Codes(**found)

    def _take(self, run: str, part: str, rows: np.ndarray, longest: int) -> Tensor:
        """(n, d), or (n, longest, d) of fragments and boxes, zeros behind the last."""
        array = self._arrays[f"{run}-{part}"]
        if part not in RAGGED:
            taken = np.asarray(array[rows])
        else:
            taken = np.zeros((len(rows), longest, array.shape[1]), array.dtype)
            starts = self._starts[run]
            for position, row in enumerate(rows):
                start, stop = starts[row], starts[row + 1]
                taken[position, : stop - start] = array[start:stop]
        dtype = getattr(torch, self.files.parts[f"{run}-{part}"]["dtype"])
        tensor = torch.from_numpy(taken)
        return tensor if tensor.dtype == dtype else tensor.view(dtype)

    def vectors(self, members: Sequence[int]) -> Vectors:
        """The embeddings of some runs."""
        return Vectors([self._arrays[f"run{member}-embedding"] for member in members], self.files.norm)


class Vectors:
    """Embeddings of several runs, side by side: (n, d1 + d2 + ...) float32, for any number of threads."""

    def __init__(self, columns: Sequence[np.ndarray], norm: float) -> None:
        self._mapped, self.norm = columns, norm
        self._columns = [np.asarray(column) for column in columns]
        self.dim = sum(column.shape[1] for column in columns)
        self._picked = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def whole(self) -> np.ndarray | None:
        """All rows as one array on disk; None where they come from several runs."""
        return self._columns[0] if len(self._columns) == 1 else None

    def block(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, dim); of one run without a copy."""
        parts = [column[start:stop] for column in self._columns]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def pick(self, rows: np.ndarray) -> np.ndarray:
        """(n, dim), copied. Memory stays bounded however many rows are picked over time."""
        parts = [column[rows] for column in self._columns]
        self._picked += len(rows) * sum(max(4 * part.shape[1], READ_AROUND) for part in parts)
        if self._picked > RESIDENT_BYTES:
            self.release()
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def release(self) -> None:
        """Let the system take the pages back; they are read again when they are wanted."""
        self._picked = 0
        for column in self._mapped:
            if isinstance(column, np.memmap) and hasattr(mmap, "MADV_DONTNEED"):
                column._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # no public way to the mapping


def copy_rows(database: ItemDatabase, folder: Path, old: FileSet, rows: np.ndarray, precision: str) -> FileSet:
    """These rows of a set in a new one, in their order. The new set has no encoder yet, so that no build resumes it:
    the commit that makes it count gives it one.
    """
    fresh = FileSet(new_name(database, folder, old.kind), old.kind, "", {}, 0, 0.0)
    writer = CodeWriter(database, folder, fresh, precision)
    try:
        codes = CodeFiles(folder, old)
        for start in range(0, len(rows), COPIED):
            some = rows[start : start + COPIED]
            writer.committed(writer.append([codes._read(member, some) for member in range(codes.members)]))
        return writer.files
    finally:
        writer.close()


def retire(database: ItemDatabase, files: FileSet) -> None:
    """Inside of a transaction: from its commit on, nothing needs these files."""
    database.change("DELETE FROM files WHERE name = ?", [(files.name,)])
    database.change("DELETE FROM codes WHERE file = ?", [(files.name,)])
    announce(database, files.files)


@contextmanager
def os_errors_as_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"could not write {path}: {error.strerror or error}; {RESUMES}") from error


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_whole(folder: Path, files: FileSet) -> bool:
    """Whether all that the database vouches for is there."""
    try:
        _sizes(folder, files)
    except (OSError, StaleIndex):
        return False
    return True
