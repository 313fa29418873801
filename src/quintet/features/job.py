"""`FeatureJob`: feature files while they are written. A kill at any moment costs one batch.

While an extraction runs, everything is in `CORPUS/features/.NAME.partial/`:

    settings.json   what is being made of which images; a resumed extraction must agree
    features.npy    (images, L, dim), at its final size from the start
    boxes.npy       (images, L, 4)
    journal.jsonl   a line per finished batch, after its data is on disk: its CRC and
                    {"stop": row after its last, "skipped": [...]}

At the end skipped.json and the manifest are added and the folder is renamed to `CORPUS/features/NAME`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from quintet.data.arrays import write_array_header
from quintet.data.corpus import Image
from quintet.data.feature_store import FORMAT, HEADER, FeatureStore, Part, write_manifest
from quintet.errors import CorpusError
from quintet.files import UNFINISHED, header_format, read_json, remove_partials, write_json, write_synced
from quintet.locks import LockedError, folder_lock

Dtype = Literal["float16", "float32"]
OWN_FILES = (
    *("settings.json", "features.npy", "boxes.npy", "journal.jsonl", "skipped.json"),
    *("manifest.json", "ids.json", "rows.npy"),
)


@dataclass(frozen=True)
class Skipped:
    id: str
    reason: str


class FeatureJob:
    """The partial folder: opened or started, written batch by batch, finished by a rename."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], shape: tuple[int, int, int], dtype: str, restart: bool
    ) -> None:
        self.folder = folder
        self.partial = folder.with_name(f".{folder.name}.partial")
        self.settings, self.shape, self.dtype, self.restart = settings, shape, dtype, restart
        self.done = 0  # rows that are on disk
        self.skipped: list[Skipped] = []

    def __enter__(self) -> FeatureJob:
        with ExitStack() as stack, _os_errors(self.partial):
            _check_own(self.folder)
            try:
                lock = f".{self.folder.name}.lock"  # beside the folder, which is replaced as a whole
                stack.enter_context(folder_lock(self.folder.parent, f"extracting {self.folder.name}", lock))
            except LockedError as error:
                raise CorpusError(f"{self.folder}: {error}") from None
            _check_own(self.partial)
            if not self.partial.exists():
                self.partial.mkdir()
                stack.push(self._remove_new)
            if not header_format(self.partial / HEADER):
                write_json(self.partial / HEADER, {"format": FORMAT + UNFINISHED})
            self.journal = stack.enter_context((self.partial / "journal.jsonl").open("ab+", buffering=0))
            if self._is_resumable():
                self._read_journal()
            else:
                self._start()
            self.files = [
                stack.enter_context((self.partial / f"{kind}.npy").open("rb+", buffering=0))
                for kind in ("features", "boxes")
            ]
            self.offsets = [
                _data_offset(file, shape, dtype)
                for file, (shape, dtype) in zip(self.files, self._arrays().values(), strict=True)
            ]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _remove_new(self, *failure: object) -> None:
        """Where an extraction that is new cannot begin, nothing is left."""
        if failure[0] is not None:
            shutil.rmtree(self.partial)

    def _arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {"features.npy": (self.shape, self.dtype), "boxes.npy": ((*self.shape[:2], 4), "float32")}

    def _is_resumable(self) -> bool:
        path = self.partial / "settings.json"
        if not path.is_file():
            return False
        differing = _differences(read_json(path, _Settings), self.settings)
        if differing and not self.restart:
            raise CorpusError(
                f"an unfinished extraction of {self.folder} was begun with other settings ({differing}); "
                "use those again, give another name, or start again with --overwrite"
            )
        return not differing

    def _read_journal(self) -> None:
        self.journal.seek(0)
        complete = 0
        for line in self.journal.readall().splitlines(keepends=True):
            row = _journal_row(line)
            if row is None:  # cut off by a kill, or damaged: from there on it is done again
                break
            self.done, skipped = row
            self.skipped += skipped
            complete += len(line)
        self.journal.truncate(complete)

    def _start(self) -> None:
        self.journal.truncate(0)
        (self.partial / "settings.json").unlink(missing_ok=True)
        rows, fragments, dim = self.shape
        needed = rows * fragments * (dim * np.dtype(self.dtype).itemsize + 16)
        free = shutil.disk_usage(self.partial).free
        if needed > free:
            raise CorpusError(
                f"the features need {needed / 2**30:.1f} GiB at {self.folder}, where {free / 2**30:.1f} GiB are free"
            )
        for name, (shape, dtype) in self._arrays().items():
            _make_array(self.partial / name, shape, dtype)
        write_json(self.partial / "settings.json", self.settings)  # last: without it the extraction starts again

    def write(self, features: np.ndarray, boxes: np.ndarray, skipped: list[Skipped]) -> None:
        """Append a batch. Plain writes, because a full disk gives an error here and a bus error in a memory map."""
        stop = self.done + len(features)
        with _os_errors(self.partial):
            for file, offset, values in zip(self.files, self.offsets, (features, boxes), strict=True):
                file.seek(offset + self.done * values[0].nbytes)
                write_synced(file, values.tobytes())
            write_synced(self.journal, _journal_line(stop, skipped))
        self.done = stop
        self.skipped += skipped

    def finish(self, ids: Sequence[str]) -> None:
        """Add the manifest and give the folder its name."""
        lost = {entry.id for entry in self.skipped}
        rows = [row for row, id_ in enumerate(ids) if id_ not in lost]
        if not rows:
            self.journal.truncate(0)  # the next attempt looks at the images again
            raise CorpusError(
                f"none of the {len(ids)} images could be read, the first because: {self.skipped[0].reason}; "
                "do the paths in images.jsonl fit?"
            )
        write_json(self.partial / "skipped.json", [asdict(entry) for entry in self.skipped])
        _, fragments, dim = self.shape
        write_manifest(
            self.partial,
            [ids[row] for row in rows],
            np.array([(0, row) for row in rows], dtype=np.int64),
            [Part("features.npy", "boxes.npy")],
            fragments=fragments,
            dim=dim,
            tower=self.settings["tower"],
        )
        with _os_errors(self.folder):
            if self.folder.exists():  # --overwrite: the previous features are kept until the new ones are complete
                _check_own(self.folder)
                shutil.rmtree(self.folder)
            self.partial.rename(self.folder)


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorpusError(
            f"could not write {path}: {error.strerror or error}; make room and run it again, it resumes"
        ) from error


def _journal_line(stop: int, skipped: list[Skipped]) -> bytes:
    row = json.dumps({"stop": stop, "skipped": [asdict(entry) for entry in skipped]})
    return f"{zlib.crc32(row.encode()):08x} {row}\n".encode()


def _journal_row(line: bytes) -> tuple[int, list[Skipped]] | None:
    checksum, _, row = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != f"{zlib.crc32(row):08x}".encode():
        return None
    content = json.loads(row)
    return content["stop"], [Skipped(**entry) for entry in content["skipped"]]


def _check_own(folder: Path) -> None:
    """Features may be replaced or gone on with; what no extraction wrote may not."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise CorpusError(f"{folder} is no folder of features; move it, or give another name")
    remove_partials(folder, OWN_FILES)
    own = header_format(folder / HEADER) in (FORMAT, FORMAT + UNFINISHED)
    for path in sorted(folder.iterdir()):
        if not own or path.name not in OWN_FILES or path.is_symlink() or not path.is_file():
            raise CorpusError(
                f"{folder} holds {path.name!r}, which no extraction makes there; move it, or give another name"
            )


def finished_features(folder: Path, settings: dict[str, Any]) -> list[Skipped]:
    """The images that finished features left out; an error where the features have other settings."""
    FeatureStore(folder)  # complete and readable?
    path = folder / "settings.json"
    differing = _differences(read_json(path, _Settings), settings) if path.is_file() else "made by other means"
    if differing:
        raise CorpusError(
            f"{folder} holds features made with other settings ({differing}); give another name, or --overwrite"
        )
    return read_json(folder / "skipped.json", list[Skipped])


@dataclass(frozen=True)
class _Settings:
    tower: dict[str, Any]
    dtype: str
    pictures: str


def _differences(old: _Settings, settings: dict[str, Any]) -> str:
    """What differs, in words; empty where nothing does. Weights are compared by checksum, never by path."""

    def flat(settings: _Settings) -> dict[str, Any]:
        tower = {key: value for key, value in settings.tower.items() if key not in ("weights", "preprocess")}
        view = settings.tower.get("preprocess")
        return (
            tower | (view if isinstance(view, dict) else {}) | {"dtype": settings.dtype, "pictures": settings.pictures}
        )

    before, after = flat(old), flat(_Settings(**settings))
    names = {"pictures": "the corpus' list of images", "checksum": "the weights"}
    return ", ".join(
        names.get(key) or f"{key} {before.get(key)}, now {after.get(key)}"
        for key in after
        if before.get(key) != after.get(key)
    )


def image_fingerprint(images: Sequence[Image]) -> str:
    """Which images, in which order."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(json.dumps([image.id, image.path]).encode())
    return digest.hexdigest()


def _make_array(path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """A .npy file of zeros that takes no room until it is written."""
    with path.open("wb") as file:
        write_array_header(file, shape, dtype)
        file.truncate(file.tell() + math.prod(shape) * np.dtype(dtype).itemsize)
        os.fsync(file.fileno())


def _data_offset(file: Any, shape: tuple[int, ...], dtype: str) -> int:
    """Where the values begin in a file that `_make_array` made."""
    header = io.BytesIO()
    write_array_header(header, shape, dtype)
    if file.read(header.tell()) != header.getvalue():
        raise CorpusError(f"{file.name} is damaged; start again with --overwrite")
    return header.tell()
