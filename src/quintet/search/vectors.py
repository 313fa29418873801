"""Codes on disk: append-only files of raw rows.

For the codes that run 0 makes of images, in the first set of files that an index wrote:

    vectors/image-1-run0-embedding.bin    (n, d) float32
    vectors/image-1-run0-fragments.bin    (sum of lengths, d): regions or words without padding, in the chosen precision
    vectors/image-1-run0-boxes.bin        (sum of lengths, 4) float32, of images; NaN where they are not known
    vectors/image-1-run0-lengths.bin      (n,) int32: how many fragments each item has

How many rows count stands in the database (`files.rows`), and so do checksums of what each batch appended (`blocks`).
Rows behind them were never committed; the next writer cuts them off. A row is never changed: a reader keeps the files
of its snapshot open, also when they are removed. They are read, not mapped: a file that is cut short meanwhile is an
error (`StaleIndex`), where a mapping would end the process.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from quintet.files import remove_empty, remove_partials, sync_folder, write_synced
from quintet.search import StaleIndex, StoreError
from quintet.search.index_folder import KEPT_FILE
from quintet.search.items import RESUMES, ItemDatabase, Kind

if TYPE_CHECKING:  # torch is imported where codes are written or read: a search by text reads vectors only
    from torch import Tensor

    from quintet.codes import Codes

PARTS = ("embedding", "fragments", "boxes")
RAGGED = PARTS[1:]
STORED = {"float32": "int32", "float16": "int16", "bfloat16": "int16"}  # numpy knows no bfloat16: as bits
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}
LARGEST_ROW = 1 << 24  # bytes
LOADED_BYTES = 4 << 30  # embeddings that are kept in memory to be compared; more are read anew for every search
READ_BYTES = 16 << 20  # at a time, to compare checksums
COPIED = 4096  # rows at a time
FEW_PRODUCTS = 1 << 20  # of single numbers: half a millisecond of one core


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
    rows = database.checked(database.query("SELECT * FROM files ORDER BY name"))
    found = {}
    for name, kind, encoder, parts, count, norm, _ in rows:
        try:
            files = FileSet(name, kind, encoder, _parts(json.loads(parts)), count, norm)
            possible = count >= 0 and all(Path(each).name == each for each in files.files)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            possible = False
        if not possible:
            raise StaleIndex(f"{database.path} is damaged: it describes files that cannot be; build the index again")
        found[name] = files
    return found


def _parts(value: Any) -> dict[str, dict[str, Any]]:
    for part in value.values():
        if BYTES[part["dtype"]] * part["width"] not in range(LARGEST_ROW):
            raise ValueError("no row can be so wide")
    return dict(value)


def write_file_set(database: ItemDatabase, files: FileSet) -> None:
    """Inside of a transaction."""
    row = (files.name, files.kind, files.encoder, json.dumps(files.parts), files.rows, files.norm)
    database.insert("files", [row])


# Names of files that no commit needs: they come on this list in the commit that needs them no more, or before they are
# made, and leave it in the commit that needs them. So a kill leaves no file that nobody knows.


def announce(database: ItemDatabase, names: Iterable[str]) -> None:
    """Inside of a transaction."""
    database.change("INSERT OR REPLACE INTO unused VALUES (?)", [(name,) for name in names])


def adopt(database: ItemDatabase, names: Iterable[str]) -> None:
    """Inside of a transaction."""
    database.change("DELETE FROM unused WHERE name = ?", [(name,) for name in names])


def retire(database: ItemDatabase, files: FileSet) -> None:
    """Inside of a transaction: from its commit on, nothing needs these files."""
    database.change("DELETE FROM files WHERE name = ?", [(files.name,)])
    database.change("DELETE FROM codes WHERE file = ?", [(files.name,)])
    database.change("DELETE FROM blocks WHERE file = ?", [(name,) for name in files.files])
    announce(database, files.files)


def remove_unused_files(database: ItemDatabase, folder: Path) -> None:
    """Remove the files on the list: those of `folder`, and those of runs and towers beside it."""
    names = [name for (name,) in database.query("SELECT name FROM unused")]
    if not names:
        return
    for name in names:
        kept = bool(KEPT_FILE.fullmatch(name))
        if not kept and Path(name).name != name:
            continue  # the list is damaged
        path = (folder.parent if kept else folder) / name
        own = [path.parent, path.parent.parent] if kept else [folder]
        if any(each.is_symlink() for each in (path, *own)):
            continue
        remove_partials(path.parent, {path.name})
        with suppress(OSError):
            path.unlink()
        if kept:
            remove_empty(own)
    with database.transaction():
        adopt(database, names)


def new_name(database: ItemDatabase, folder: Path, kind: Kind) -> str:
    """The name of a set that no file has, ours or not."""
    taken = {*read_file_sets(database), *(path.name.rpartition("-run")[0] for path in folder.glob(f"{kind}-*"))}
    number = 1
    while f"{kind}-{number}" in taken:
        number += 1
    return f"{kind}-{number}"


# Writing


class CodeWriter:
    """Appends to a set of files, which it makes when the first codes come."""

    def __init__(self, database: ItemDatabase, folder: Path, files: FileSet, precision: str) -> None:
        self.database, self.folder, self.files, self.precision = database, folder, files, precision
        self._open: dict[str, FileIO] = {}
        self._ends: dict[str, int] = {}  # bytes that are committed
        if files.parts:
            self._open_files()

    def append(self, codes: Sequence[Codes], commit: Callable[[int], None] = lambda first: None) -> None:
        """One `Codes` for each run. Durable when it returns; after a failure nothing of it stays.

        `commit(first)`: what else belongs to the transaction that makes the rows, from row `first` on, count.
        """
        import torch

        codes = [part.to("cpu") for part in codes]
        if not self._open:
            self._start(codes)
        first, count = self.files.rows, len(codes[0])
        embeddings = [part.embedding for part in codes if part.embedding is not None]
        norm = float(torch.cat(embeddings, dim=1).double().norm(dim=1).max()) if embeddings else 0.0
        files = replace(self.files, rows=first + count, norm=max(self.files.norm, norm))
        blocks = []
        try:
            with os_errors_as_store_error(self.folder):
                for member, part in enumerate(codes):
                    for name, data in _raw(part, self.files, member).items():
                        write_synced(self._open[name], data)
                        blocks.append((name, self._ends[name], len(data), first, count, zlib.crc32(data)))
            with self.database.transaction():
                write_file_set(self.database, files)
                self.database.insert("blocks", blocks)
                commit(first)
        except BaseException:
            for name, file in self._open.items():
                with suppress(OSError):
                    os.truncate(file.fileno(), self._ends[name])
                    file.seek(self._ends[name])
            raise
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

    def _open_files(self) -> None:
        """Cut off what was never committed."""
        with os_errors_as_store_error(self.folder):
            self._ends = committed_bytes(self.folder, self.files)
            for name, end in self._ends.items():
                self._open[name] = (self.folder / name).open("r+b", buffering=0)
                if os.fstat(self._open[name].fileno()).st_size != end:
                    os.truncate(self._open[name].fileno(), end)
                self._open[name].seek(end)


def _raw(codes: Codes, files: FileSet, member: int) -> dict[str, bytes]:
    """The batch as bytes, by file name; padding left out."""
    import torch

    found: dict[str, bytes] = {}
    for part in PARTS:
        about = files.parts.get(f"run{member}-{part}")
        if about is None:
            continue
        tensor: Tensor | None = getattr(codes, part)
        if tensor is None:  # boxes that are not known
            tensor = torch.full((*codes.real().shape, about["width"]), torch.nan)  # (n, L, 4)
        rows = tensor[codes.real()] if part in RAGGED else tensor  # (sum of lengths, d) or (n, d)
        stored = rows.to(getattr(torch, about["dtype"])).contiguous().view(getattr(torch, STORED[about["dtype"]]))
        found[f"{files.name}-run{member}-{part}.bin"] = stored.numpy().tobytes()
    if codes.fragments is not None:
        lengths = codes.real().sum(dim=1).to(torch.int32)  # (n,)
        found[f"{files.name}-run{member}-lengths.bin"] = lengths.numpy().tobytes()
    return found


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
            writer.append([codes.read(member, some) for member in range(codes.members)])
        return writer.files
    finally:
        writer.close()


# Reading


class Rows:
    """The committed rows of one file, for any number of threads."""

    def __init__(self, path: Path, dtype: str, rows: int, width: int) -> None:
        """FileNotFoundError where the file is gone: a writer may have replaced the set meanwhile."""
        self.path, self.count, self.width, self.dtype = path, rows, width, dtype
        self.row_bytes = width * BYTES[dtype]
        self._file = open_file(path)
        if os.fstat(self._file.fileno()).st_size < rows * self.row_bytes:
            raise self._cut_short()

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """(stop - start, width) of the file's bits: int16 where numpy does not know the type."""
        stop = self.count if stop is None else stop
        if not 0 <= start <= stop <= self.count:
            raise StaleIndex(f"{self.path} has no rows {start} to {stop}: the index is damaged; build it again")
        found = np.empty((stop - start, self.width), self._bits)
        left, at = memoryview(found.reshape(-1).view(np.uint8).data), start * self.row_bytes
        while left:
            with self._errors_as_stale():
                count = os.preadv(self._file.fileno(), [left], at)
            if not count:
                raise self._cut_short()
            left, at = left[count:], at + count
        return found

    def pick(self, rows: np.ndarray) -> np.ndarray:
        """(n, width)."""
        wanted, size, file = rows.tolist(), self.row_bytes, self._file.fileno()
        if wanted and not 0 <= min(wanted) <= max(wanted) < self.count:
            raise StaleIndex(f"{self.path} has no row {max(wanted)}: the index is damaged; build it again")
        with self._errors_as_stale():
            data = bytearray().join([os.pread(file, size, row * size) for row in wanted])
        if len(data) != len(rows) * size:
            raise self._cut_short()
        return np.frombuffer(data, self._bits).reshape(len(rows), self.width)

    @property
    def _bits(self) -> str:
        return self.dtype if self.dtype in ("float32", "int32") else "int16"

    @contextmanager
    def _errors_as_stale(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StaleIndex(f"{self.path} could not be read: {error.strerror or error}") from error

    def _cut_short(self) -> StaleIndex:
        return StaleIndex(f"{self.path} is cut short; build the index again")


def open_file(path: Path) -> FileIO:
    """A regular file: whoever made an index could have put something into it that never ends."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StaleIndex(f"{path} is not a file; build the index again")
    return FileIO(handle, "rb")


def _offsets(folder: Path, files: FileSet, member: str) -> np.ndarray:
    """(n + 1,): where the fragments of each row begin, and the end."""
    lengths = Rows(folder / f"{files.name}-{member}-lengths.bin", "int32", files.rows, 1).read()[:, 0]
    if (lengths < 0).any():
        raise StaleIndex(f"the lengths of {files.name} in {folder} are damaged; build the index again")
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def committed_bytes(folder: Path, files: FileSet) -> dict[str, int]:
    """Of each of the files; raises where one has fewer."""
    sizes = {}
    for name in files.files:
        member, _, part = name.removeprefix(f"{files.name}-").removesuffix(".bin").partition("-")
        rows, about = files.rows, files.parts.get(f"{member}-{part}", {"width": 1, "dtype": "int32"})
        if part in RAGGED:
            rows = int(_offsets(folder, files, member)[-1])
        opened = Rows(folder / name, about["dtype"], rows, about["width"])
        sizes[name] = rows * opened.row_bytes
    return sizes


def damaged_rows(database: ItemDatabase, folder: Path, files: FileSet) -> dict[int, str]:
    """Rows whose bytes are not those that were written, with the name of the file; all rows where one is cut short."""
    found: dict[int, str] = {}
    for name in files.files:
        blocks = database.query("SELECT start, size, first, rows, checksum FROM blocks WHERE file = ?", [name])
        good: set[int] = set()
        with suppress(OSError, StaleIndex), open_file(folder / name) as file:
            for start, size, first, rows, expected in blocks:
                file.seek(start)
                if crc32_of(file, size) == expected:
                    good.update(range(first, first + rows))
            if os.fstat(file.fileno()).st_size < max((start + size for start, size, *_ in blocks), default=0):
                good.clear()
        bad = set(range(files.rows)) - good
        if bad and name.endswith("-lengths.bin"):
            bad = set(range(files.rows))  # where the fragments of later rows begin is lost, too
        found |= dict.fromkeys(bad, name)
    return found


def crc32_of(file: IO[bytes], size: int | None = None) -> int | None:
    """The checksum of the next `size` bytes, or of all; None where there are fewer."""
    checksum, left = 0, sys.maxsize if size is None else size
    while some := file.read(min(READ_BYTES, left)):
        checksum, left = zlib.crc32(some, checksum), left - len(some)
    return checksum if size is None or not left else None


class CodeFiles:
    """The committed rows of a set of files."""

    def __init__(self, folder: Path, files: FileSet) -> None:
        """FileNotFoundError where a file is gone: a writer may have replaced the set meanwhile."""
        self.folder, self.files = folder, files
        self._parts: dict[str, Rows] = {}
        self._starts: dict[str, np.ndarray] = {}  # of the fragments of each row, by run
        for name, part in files.parts.items():
            member, _, kind = name.partition("-")
            if kind in RAGGED and member not in self._starts:
                self._starts[member] = _offsets(folder, files, member)
            rows = int(self._starts[member][-1]) if kind in RAGGED else files.rows
            self._parts[name] = Rows(folder / f"{files.name}-{name}.bin", part["dtype"], rows, part["width"])

    @property
    def members(self) -> int:
        return 1 + max(int(name.partition("-")[0].removeprefix("run")) for name in self._parts)

    def codes(self, member: int, rows: Sequence[int] | np.ndarray, parts: Sequence[str] = PARTS) -> Codes:
        """The codes that one run made of these rows, in float32, in their order; of its parts those named.

        Boxes are left out unless they are known of every row.
        """
        codes = self.read(member, rows, parts)
        return codes if codes.boxes is None or not bool(codes.boxes.isnan().any()) else replace(codes, boxes=None)

    def read(self, member: int, rows: Sequence[int] | np.ndarray, parts: Sequence[str] = PARTS) -> Codes:
        """As `codes`, with the boxes that are not known as NaN."""
        import torch

        from quintet.codes import Codes

        chosen = np.asarray(rows, dtype=np.int64)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < self.files.rows:
            raise StaleIndex(f"{self.folder} has no row {chosen.max()}: the index is damaged; build it again")
        run = f"run{member}"
        found: dict[str, Tensor] = {}
        names = [part for part in parts if f"{run}-{part}" in self._parts]
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
        import torch

        file = self._parts[f"{run}-{part}"]
        if part not in RAGGED:
            taken = file.pick(rows)
        else:
            starts = self._starts[run]
            pieces = [file.read(starts[row], starts[row + 1]) for row in rows]
            taken = np.zeros((len(rows), longest, file.width), pieces[0].dtype if pieces else np.int16)
            for position, piece in enumerate(pieces):
                taken[position, : len(piece)] = piece
        tensor, dtype = torch.from_numpy(taken), getattr(torch, file.dtype)
        return tensor if tensor.dtype == dtype else tensor.view(dtype)

    def vectors(self, members: Sequence[int]) -> Vectors:
        """The embeddings of some runs."""
        return Vectors([self._parts[f"run{member}-embedding"] for member in members], self.files.norm)


class Vectors:
    """Embeddings of several runs, side by side: (n, d1 + d2 + ...) float32, for any number of threads."""

    def __init__(self, columns: Sequence[Rows], norm: float) -> None:
        self._columns, self.norm = columns, norm
        self.dim = sum(column.width for column in columns)
        self._whole: np.ndarray | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._columns[0].count

    def whole(self) -> np.ndarray | None:
        """All rows in memory; None where they are too many for that."""
        if 4 * len(self) * self.dim > LOADED_BYTES:
            return None
        with self._lock:
            if self._whole is None:
                self._whole = self.block(0, len(self))
            return self._whole

    def block(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, dim): of what is in memory, or read."""
        if self._whole is not None:
            return self._whole[start:stop]
        return _beside([column.read(start, stop) for column in self._columns])

    def pick(self, rows: np.ndarray) -> np.ndarray:
        """(n, dim), copied."""
        return _beside([column.pick(rows) for column in self._columns]) if self._whole is None else self._whole[rows]


def products(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n, dim) and (m, dim) -> (n, m): every inner product.

    A few are not worth the threads of a BLAS, which wait for each other, and much longer where other threads are busy.
    Many are left to torch where it is loaded: numpy's threads would wait for torch's, which are at work already.
    """
    if len(rows) * others.size <= FEW_PRODUCTS:
        return np.einsum("nd,md->nm", rows, others)
    torch = sys.modules.get("torch")
    if torch is None:
        return rows @ others.T
    return (torch.from_numpy(rows) @ torch.from_numpy(others).T).numpy()


def _beside(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


@contextmanager
def os_errors_as_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"could not write {path}: {error.strerror or error}; {RESUMES}") from error
