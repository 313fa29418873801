"""Features on disk, memory-mapped: of images by id (`FeatureStore`), of the words of texts by row (`WordFeatures`).

On disk, under `CORPUS/features/NAME/`:

    manifest.json   {"format": "quintet-features", "version": 1, "fragments": 36, "dim": 1280, "tower": {...},
                     "parts": [{"features": "features.npy", "boxes": "boxes.npy", "lengths": "lengths.npy"}]}
    ids.json        the image id of each row of rows.npy
    rows.npy        (n, 2) int64: which part, which row of it

A part's `features` is (rows, L, d) float32 or float16; `boxes` (rows, L, 4) left, top, right, bottom in 0..1 and
`lengths` (rows,) real fragments are optional. File names are relative to the folder or absolute, so that a 33 GB array
made by someone else is used in place. Several ids may share a row; rows may be unused.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.data.batches import ImageBatch
from quintet.errors import CorpusError
from quintet.files import atomic_write, begin_folder, read_header, read_json, write_json

FORMAT, VERSION, HEADER = "quintet-features", 1, "manifest.json"
RESIDENT_BYTES = 256 * 2**20  # mapped pages are released after this much has been read
READ_AROUND = 64 * 2**10  # touching one byte of a mapped file brings in its neighbourhood


@dataclass(frozen=True)
class Part:
    """One array file with what belongs to it."""

    features: str
    boxes: str | None = None
    lengths: str | None = None


class FeatureStore:
    """Reads rows by id. Resident memory stays bounded however large the file is."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        missing = f"{self.folder} holds no finished features (in {HEADER}); make them with `quintet features CORPUS`"
        self.manifest = read_header(self.folder / HEADER, FORMAT, VERSION, missing)
        self.ids: list[str] = read_json(self.folder / "ids.json")
        self._position = _array(self.folder / "rows.npy")  # (n, 2)
        if len(self.ids) != len(self._position):
            raise CorpusError(
                f"{self.folder}: {len(self.ids)} ids for {len(self._position)} rows; make the features again"
            )
        self._row_of = {id_: row for row, id_ in enumerate(self.ids)}
        if len(self._row_of) != len(self.ids):
            raise CorpusError(f"{self.folder}: ids.json names an image twice; make the features again")
        self._parts = [_OpenPart(self.folder, Part(**part)) for part in self.manifest["parts"]]
        self._read = 0
        self._check_parts()

    def _check_parts(self) -> None:
        limits = np.array([len(part.features) for part in self._parts])
        numbers, rows = self._position.T
        known = (numbers >= 0) & (numbers < len(limits))
        if not known.all() or not ((rows >= 0) & (rows < limits[numbers])).all():
            raise CorpusError(f"{self.folder}: rows.npy names rows that the arrays do not have; was an array replaced?")
        for part in self._parts:
            _, fragments, dim = part.features.shape
            if fragments > self.fragments or dim != self.dim:
                raise CorpusError(
                    f"{self.folder}: an array holds {fragments} fragments of {dim} for each image, the manifest says "
                    f"{self.fragments} of {self.dim}; was the array replaced?"
                )

    def __reduce__(self) -> tuple[type[FeatureStore], tuple[Path]]:
        return FeatureStore, (self.folder,)  # pickled as the folder's path, without the arrays

    @property
    def dim(self) -> int:
        return int(self.manifest["dim"])

    @property
    def dtype(self) -> torch.dtype:
        """The widest type that the arrays are stored in."""
        narrow = all(part.features.dtype == np.float16 for part in self._parts)
        return torch.float16 if narrow else torch.float32

    @property
    def fragments(self) -> int:
        return int(self.manifest["fragments"])

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._row_of

    def require(self, ids: Sequence[str]) -> None:
        """Raise with a count and an example unless every id has features."""
        missing = [id_ for id_ in ids if id_ not in self._row_of]
        if missing:
            raise CorpusError(
                f"{self.folder}: no features for {len(missing)} of {len(ids)} images, first {missing[0]!r}; "
                "repair the images named in its skipped.json and run `quintet features --overwrite`, "
                "or drop them from the split"
            )

    def batch(self, ids: Sequence[str]) -> ImageBatch:
        """The features of some images as float32, padded fragments masked."""
        try:
            positions = self._position[[self._row_of[id_] for id_ in ids]]  # (n, 2)
        except KeyError:
            self.require(ids)
            raise
        features = np.zeros((len(ids), self.fragments, self.dim), dtype=np.float32)
        boxes = np.zeros((len(ids), self.fragments, 4), dtype=np.float32)
        lengths = np.zeros(len(ids), dtype=np.int64)
        boxed = all(part.boxes is not None for part in self._parts)
        for number, part in enumerate(self._parts):
            chosen = np.flatnonzero(positions[:, 0] == number)
            rows = positions[chosen, 1]
            # Row by row: a fancy index would make a copy that is copied once more.
            for target, row in zip(chosen, rows, strict=True):
                length = part.length(row)
                lengths[target] = length
                features[target, :length] = part.features[row, :length]
                if boxed and part.boxes is not None:
                    boxes[target, :length] = part.boxes[row, :length]
        self._release(len(ids) * max(self.fragments * self.dim * 4, READ_AROUND))
        self._refuse_not_finite(features, ids)
        mask = np.arange(self.fragments) < lengths[:, None]
        return ImageBatch(
            fragments=torch.from_numpy(features),
            mask=None if mask.all() else torch.from_numpy(mask),
            boxes=torch.from_numpy(boxes) if boxed else None,
        )

    def _refuse_not_finite(self, features: np.ndarray, ids: Sequence[str]) -> None:
        # The sum is finite exactly when no entry is NaN or infinite (or the features are absurd); one cheap pass.
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            total = features.sum(dtype=np.float64)
        if np.isfinite(total):
            return
        bad = [id_ for id_, row in zip(ids, features, strict=True) if not np.isfinite(row).all()]
        raise CorpusError(
            f"{self.folder}: the features of image {bad[0]!r} hold NaN or infinity ({len(bad)} in this batch); "
            "extract them again"
        )

    def _release(self, read: int) -> None:
        self._read += read
        if self._read > RESIDENT_BYTES:
            self._read = 0
            for part in self._parts:
                part.release()


class _OpenPart:
    def __init__(self, folder: Path, part: Part) -> None:
        self.features = _map(folder / part.features)
        self.boxes = _map(folder / part.boxes) if part.boxes else None
        self.lengths = _array(folder / part.lengths) if part.lengths else None
        if self.features.ndim != 3:
            raise CorpusError(f"{folder / part.features}: expected (rows, fragments, dim), found {self.features.shape}")
        rows, fragments = self.features.shape[:2]
        if self.boxes is not None and self.boxes.shape != (rows, fragments, 4):
            raise CorpusError(f"{part.boxes}: expected boxes of shape {(rows, fragments, 4)}, found {self.boxes.shape}")
        if self.lengths is not None and (len(self.lengths) != rows or not _within(self.lengths, fragments)):
            raise CorpusError(f"{part.lengths}: expected {rows} lengths from 1 to {fragments}")

    def length(self, row: int) -> int:
        return self.features.shape[1] if self.lengths is None else int(self.lengths[row])

    def release(self) -> None:
        for array in (self.features, self.boxes):
            if array is not None and hasattr(mmap, "MADV_DONTNEED"):
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # no public way to the mapping


def _within(lengths: np.ndarray, limit: int) -> bool:
    return bool(((lengths >= 1) & (lengths <= limit)).all())


def _array(path: Path) -> np.ndarray:
    """A small array, read whole."""
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise CorpusError(f"{path} is missing or damaged ({error}); make the features again") from None


def _map(path: Path) -> np.memmap:
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise CorpusError(f"feature file {path} does not exist; was it moved since the import?") from None
    except (ValueError, OSError) as error:
        raise CorpusError(f"feature file {path} is not a complete .npy array: {error}") from None


def begin_features(folder: Path | str, names: Sequence[str]) -> None:
    """Before files of these names are written into a feature folder; `CorpusError` where someone else's are there."""
    begin_folder(Path(folder), HEADER, FORMAT, ("ids.json", "rows.npy", *names))


def write_manifest(
    folder: Path | str,
    ids: Sequence[str],
    rows: np.ndarray,
    parts: Sequence[Part],
    *,
    fragments: int,
    dim: int,
    tower: dict[str, Any],
) -> None:
    """Finish a feature folder: called last, so that a folder with a manifest is complete."""
    folder = Path(folder)
    with atomic_write(folder / "rows.npy") as temporary, temporary.open("wb") as file:
        np.save(file, np.asarray(rows, dtype=np.int64).reshape(-1, 2))
    write_json(folder / "ids.json", list(ids))
    parts_json = [{key: value for key, value in vars(part).items() if value is not None} for part in parts]
    write_json(
        folder / HEADER,
        {"format": FORMAT, "version": VERSION, "fragments": fragments, "dim": dim, "tower": tower, "parts": parts_json},
    )


WORDS_FORMAT, WORDS_VERSION = "quintet-word-features", 1


class WordFeatures:
    """Reads the word features of texts by row."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        missing = f"{self.folder} holds no finished word features; remove the folder, and they are computed again"
        manifest = read_header(self.folder / HEADER, WORDS_FORMAT, WORDS_VERSION, missing)
        try:
            self._features = np.load(self.folder / "features.npy", mmap_mode="r")  # (words, dim)
            self._starts = np.load(self.folder / "starts.npy")  # (texts + 1,)
        except (OSError, ValueError) as error:
            raise CorpusError(f"{self.folder} is damaged ({error}); remove it, and it is made again") from None
        expected = (int(self._starts[-1]), manifest["dim"])
        if self._features.shape != expected or len(self._starts) != manifest["texts"] + 1:
            raise CorpusError(f"{self.folder}: its arrays do not fit together; remove it, and it is made again")

    def __reduce__(self) -> tuple[type[WordFeatures], tuple[Path]]:
        return WordFeatures, (self.folder,)  # pickled as the folder's path, without the array

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def dim(self) -> int:
        return int(self._features.shape[1])

    def batch(self, rows: Sequence[int], length: int) -> Tensor:
        """(n, length, dim) float32, zero after each text's last word."""
        features = np.zeros((len(rows), length, self.dim), dtype=np.float32)
        for target, row in enumerate(rows):
            start, stop = self._starts[row], self._starts[row + 1]
            if stop - start > length:
                raise CorpusError(
                    f"{self.folder}: text {row} has {stop - start} words there and at most {length} here; it was "
                    "tokenized in another way: remove the folder, and it is made again"
                )
            features[target, : stop - start] = self._features[start:stop]
        return torch.from_numpy(features)


def write_word_features(
    folder: Path | str,
    lengths: Sequence[int],
    parts: Iterable[np.ndarray],
    *,
    dim: int,
    dtype: str,
    facts: dict[str, Any],
) -> None:
    """Write `parts`, each (words, dim), one after the other; together they hold the words of all texts."""
    folder = Path(folder)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    with atomic_write(folder / "features.npy") as temporary:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=(int(starts[-1]), dim))
        written = 0
        for part in parts:
            array[written : written + len(part)] = part
            written += len(part)
        if written != starts[-1]:
            raise ValueError(f"{written} words were given for texts of {starts[-1]}")
        array.flush()
        del array
    with atomic_write(folder / "starts.npy") as temporary, temporary.open("wb") as file:
        np.save(file, starts)
    write_json(
        folder / HEADER,
        {"format": WORDS_FORMAT, "version": WORDS_VERSION, "texts": len(lengths), "dim": dim, "dtype": dtype, **facts},
    )
