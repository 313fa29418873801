"""`FeatureJob`: feature files while they are written. A kill at any moment costs one batch.

While an extraction runs, everything is in `CORPUS/features/.NAME.partial/`:

    settings.json   what is being made of which images; a resumed extraction must agree
    features.npy    (images, L, dim), at its final size from the start
    boxes.npy       (images, L, 4)
    journal.jsonl   a line per finished batch, after its data is on disk: {"stop": row after its last, "skipped": [...]}

At the end skipped.json and the manifest are added and the folder is renamed to `CORPUS/features/NAME`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from quintet.data.corpus import Image
from quintet.data.feature_store import FORMAT, HEADER, FeatureStore, Part, write_manifest
from quintet.errors import CorpusError
from quintet.files import header_format, read_json, write_json, write_synced

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
        _check_replaceable(self.folder)
        self.partial.mkdir(parents=True, exist_ok=True)
        self.journal = (self.partial / "journal.jsonl").open("ab+", buffering=0)
        try:
            fcntl.flock(self.journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.journal.close()
            raise CorpusError(f"another process is writing {self.folder}; wait for it, or give another name") from None
        try:
            if self._is_resumable():
                self._read_journal()
            else:
                self._start()
            self.files = [(self.partial / f"{kind}.npy").open("rb+", buffering=0) for kind in ("features", "boxes")]
        except BaseException:
            self.journal.close()
            raise
        self.offsets = [_data_offset(file) for file in self.files]
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self.files, self.journal):
            file.close()

    def _is_resumable(self) -> bool:
        path = self.partial / "settings.json"
        if not path.is_file():
            return False
        differing = _differences(read_json(path), self.settings)
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
            if not line.endswith(b"\n"):  # cut off by a kill: that batch is done again
                break
            row = json.loads(line)
            self.done = row["stop"]
            self.skipped += [Skipped(**entry) for entry in row["skipped"]]
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
        _make_array(self.partial / "features.npy", self.shape, self.dtype)
        _make_array(self.partial / "boxes.npy", (rows, fragments, 4), "float32")
        write_json(self.partial / "settings.json", self.settings)  # last: without it the extraction starts again

    def write(self, features: np.ndarray, boxes: np.ndarray, skipped: list[Skipped]) -> None:
        """Append a batch. Plain writes, because a full disk gives an error here and a bus error in a memory map."""
        try:
            for file, offset, values in zip(self.files, self.offsets, (features, boxes), strict=True):
                file.seek(offset + self.done * values[0].nbytes)
                write_synced(file, values.tobytes())
            stop = self.done + len(features)
            line = json.dumps({"stop": stop, "skipped": [asdict(entry) for entry in skipped]})
            write_synced(self.journal, line.encode() + b"\n")
        except OSError as error:
            raise CorpusError(
                f"could not write {self.partial}: {error.strerror or error}; make room and run it again, it resumes"
            ) from error
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
        if self.folder.exists():  # --overwrite: the previous features are kept until the new ones are complete
            _check_replaceable(self.folder)
            shutil.rmtree(self.folder)
        self.partial.rename(self.folder)


def _check_replaceable(folder: Path) -> None:
    """Features may be replaced by new ones; files that no extraction wrote may not."""
    if not folder.is_dir():
        return
    foreign = sorted(path.name for path in folder.iterdir() if path.name not in OWN_FILES)
    if not foreign and header_format(folder / HEADER) != FORMAT:
        foreign = sorted(path.name for path in folder.iterdir())
    if foreign:
        raise CorpusError(
            f"{folder} holds {foreign[0]!r}, which no extraction makes there; move it, or give another name"
        )


def finished_features(folder: Path, settings: dict[str, Any]) -> list[Skipped]:
    """The images that finished features left out; an error where the features have other settings."""
    FeatureStore(folder)  # complete and readable?
    path = folder / "settings.json"
    differing = _differences(read_json(path), settings) if path.is_file() else "made by other means"
    if differing:
        raise CorpusError(
            f"{folder} holds features made with other settings ({differing}); give another name, or --overwrite"
        )
    return [Skipped(**entry) for entry in read_json(folder / "skipped.json")]


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """What differs, in words; empty where nothing does. Weights are compared by checksum, never by path."""

    def flat(settings: dict[str, Any]) -> dict[str, Any]:
        tower = {key: value for key, value in settings["tower"].items() if key not in ("weights", "preprocess")}
        view = settings["tower"]["preprocess"]
        return tower | view | {"dtype": settings["dtype"], "pictures": settings["pictures"]}

    before, after = flat(old), flat(new)
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
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
        os.fsync(file.fileno())


def _data_offset(file: Any) -> int:
    file.seek(0)
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return file.tell()
