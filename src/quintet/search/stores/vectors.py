"""The vectors of a folder store: one file of float32 rows that only grows at its end, mapped into memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from quintet.search.errors import StoreError

RESIDENT_BYTES = 128 * 2**20  # rows picked from the mapping may keep this much of it in memory
READ_AROUND = 64 * 2**10  # touching one byte of a mapped file brings in its neighbourhood


class Vectors:
    """The first `rows` rows of a file, for any number of threads."""

    def __init__(self, path: Path, rows: int, dim: int) -> None:
        size = path.stat().st_size
        if size < rows * dim * 4:
            raise StoreError(f"{path} is cut short: {size} bytes for {rows} vectors of {dim}; the folder is damaged")
        # "c": pages may be written, and are then ours alone; torch wants it, nobody does it.
        self._file = np.memmap(path, np.float32, "c", shape=(rows, dim)) if rows else None
        self.array = np.zeros((0, dim), dtype=np.float32) if self._file is None else np.asarray(self._file)
        self._picked = 0

    def __len__(self) -> int:
        return len(self.array)

    def pick(self, rows: np.ndarray) -> np.ndarray:
        """(n, dim), copied. Memory stays bounded however many rows are picked over time."""
        picked = self.array[rows]
        self._picked += len(rows) * max(picked.itemsize * picked.shape[1], READ_AROUND)
        if self._picked > RESIDENT_BYTES:
            self.release()
        return picked

    def release(self) -> None:
        """Let the system take the pages back; they are read again when they are wanted."""
        self._picked = 0
        if self._file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._file._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # no public way to the mapping


class VectorWriter:
    """Appends. What lies behind the rows that the store's manifest names was never committed and is cut off."""

    def __init__(self, path: Path, rows: int, dim: int) -> None:
        self.path, self.rows, self.dim = path, rows, dim
        with _told(path):
            self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
            self._cut()

    def append(self, vectors: np.ndarray) -> None:
        """Complete or not at all."""
        with _told(self.path):
            left = memoryview(np.ascontiguousarray(vectors, dtype=np.float32).tobytes())
            try:
                while left:
                    left = left[self._file.write(left) :]
            except OSError:
                self._cut()
                raise
        self.rows += len(vectors)

    def _cut(self) -> None:
        end = self.rows * self.dim * 4
        os.truncate(self.path, end)
        self._file.seek(end)

    def sync(self) -> None:
        with _told(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the system, for people."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"could not write {path}: {error.strerror or error}; what was flushed before is unchanged"
        ) from error
