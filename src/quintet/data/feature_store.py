"""Features on disk, memory-mapped: of images by id (`FeatureStore`), of the words of texts by row (`WordFeatures`).

On disk, under `CORPUS/features/NAME/`:

    manifest.json   {"format": "quintet-features", "version": 1, "fragments": 36, "dim": 1280, "tower": {...},
                     "parts": [{"features": "features.npy", "boxes": "boxes.npy", "lengths": "lengths.npy"}],
                     "checksums": {"ids.json": SHA-256, ...}, "sizes": {"/elsewhere/train_ims.npy": bytes}}
    ids.json        the image id of each row of rows.npy
    rows.npy        (n, 2) int64: which part, which row of it

A part's `features` is (rows, L, d) float32 or float16; `boxes` (rows, L, 4) left, top, right, bottom in 0..1 and
`lengths` (rows,) real fragments are optional. File names are relative to the folder or absolute, so that a 33 GB array
made by someone else is used in place. Several ids may share a row; rows may be unused. Opening a store compares
ids.json and rows.npy with their checksums, and `FeatureStore.check` everything; folders without checksums still open.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.data.arrays import all_finite, open_array, read_array, write_array, write_array_header
from quintet.data.batches import ImageBatch
from quintet.errors import CorpusError
from quintet.files import (
    atomic_write,
    begin_folder,
    check_shape,
    checksums,
    header_format,
    read_header,
    read_json,
    verify_checksums,
    write_json,
)

FORMAT, VERSION, HEADER = "quintet-features", 1, "manifest.json"
RESIDENT_BYTES = 256 * 2**20  # mapped pages are released after this much has been read
READ_AROUND = 2 * 2**20  # touching one byte of a mapped file maps its neighbourhood in the page cache
CHECKED = 256  # images at a time
REMEDY = "was it moved or replaced? make or import the features again"


@dataclass(frozen=True)
class Part:
    """One array file with what belongs to it."""

    features: str
    boxes: str | None = None
    lengths: str | None = None

    def files(self) -> list[str]:
        return [name for name in (self.features, self.boxes, self.lengths) if name is not None]


@dataclass(frozen=True)
class _Manifest:
    fragments: int
    dim: int
    parts: list[Part]
    tower: dict[str, Any] | None = None
    checksums: dict[str, str] = field(default_factory=dict)  # of the files in the folder
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of the arrays that lie elsewhere


class FeatureStore:
    """Reads rows by id. Resident memory stays bounded however large the file is."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        missing = f"{self.folder} holds no finished features (in {HEADER}); make them with `quintet features CORPUS`"
        self.manifest = read_header(self.folder / HEADER, FORMAT, VERSION, missing)
        self._head = check_shape(self.manifest, _Manifest, str(self.folder / HEADER))
        self.ids = read_json(self.folder / "ids.json", list[str])
        self._position = read_array(self.folder / "rows.npy", REMEDY, "iu")  # (n, 2)
        if self._position.shape != (len(self.ids), 2):
            raise CorpusError(
                f"{self.folder}: {len(self.ids)} ids for rows of shape {self._position.shape}; make the features again"
            )
        self._row_of = {id_: row for row, id_ in enumerate(self.ids)}
        if len(self._row_of) != len(self.ids):
            raise CorpusError(f"{self.folder}: ids.json names an image twice; make the features again")
        self._parts = [_OpenPart(self.folder, part) for part in self._head.parts]
        self._read = 0
        self._check_parts()
        self._verify(("ids.json", "rows.npy"))

    def _verify(self, names: Iterable[str]) -> None:
        known = self._head.checksums
        verify_checksums(self.folder, {name: known[name] for name in names if name in known}, REMEDY)

    def _check_parts(self) -> None:
        if not self._parts:
            raise CorpusError(f"{self.folder / HEADER}: parts names no array; {REMEDY}")
        limits = np.array([len(part.features) for part in self._parts])
        numbers, rows = self._position.T
        known = (numbers >= 0) & (numbers < len(limits))
        if not known.all() or not ((rows >= 0) & (rows < limits[numbers])).all():
            raise CorpusError(f"{self.folder}: rows.npy names rows that the arrays do not have; was an array replaced?")
        shapes = [part.features.shape[1:] for part in self._parts]
        if any(dim != self.dim for _, dim in shapes) or max(shapes)[0] != self.fragments:
            raise CorpusError(
                f"{self.folder}: the arrays hold fragments x dim of {shapes}, the manifest says "
                f"{self.fragments} of {self.dim}; {REMEDY}"
            )
        for name in (name for part in self._head.parts for name in part.files() if name in self._head.sizes):
            size = self._head.sizes[name]
            if (self.folder / name).stat().st_size != size:
                raise CorpusError(f"{name} does not have the {size:,} bytes that {self.folder} was made from; {REMEDY}")

    def check(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Compare every file of the folder with its checksum, and look for NaN and infinity in the features.

        `progress` is called with the images that are done and the images in all.
        """
        self._verify(self._head.checksums)
        for start in range(0, len(self), CHECKED):
            self.batch(self.ids[start : start + CHECKED])
            if progress is not None:
                progress(min(start + CHECKED, len(self)), len(self))

    def __reduce__(self) -> tuple[type[FeatureStore], tuple[Path]]:
        return FeatureStore, (self.folder,)  # pickled as the folder's path, without the arrays

    @property
    def dim(self) -> int:
        return self._head.dim

    @property
    def dtype(self) -> torch.dtype:
        """The widest type that the arrays are stored in."""
        narrow = all(part.features.dtype == np.float16 for part in self._parts)
        return torch.float16 if narrow else torch.float32

    @property
    def fragments(self) -> int:
        return self._head.fragments

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
        self._refuse_not_finite(features, ids, "features")
        self._refuse_not_finite(boxes, ids, "boxes")
        mask = np.arange(self.fragments) < lengths[:, None]
        return ImageBatch(
            fragments=torch.from_numpy(features),
            mask=None if mask.all() else torch.from_numpy(mask),
            boxes=torch.from_numpy(boxes) if boxed else None,
        )

    def _refuse_not_finite(self, values: np.ndarray, ids: Sequence[str], what: str) -> None:
        if all_finite(values):
            return
        bad = [id_ for id_, row in zip(ids, values, strict=True) if not np.isfinite(row).all()]
        raise CorpusError(
            f"{self.folder}: the {what} of image {bad[0]!r} hold NaN or infinity ({len(bad)} in this batch); "
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
        # The folder's own arrays, or others by their absolute paths.
        self.features = open_array(folder / part.features, REMEDY, "fiu")
        self.boxes = open_array(folder / part.boxes, REMEDY, "fiu") if part.boxes else None
        self.lengths = read_array(folder / part.lengths, REMEDY, "iu") if part.lengths else None
        if self.features.ndim != 3:
            raise CorpusError(f"{folder / part.features}: expected (rows, fragments, dim), found {self.features.shape}")
        rows, fragments = self.features.shape[:2]
        if self.boxes is not None and self.boxes.shape != (rows, fragments, 4):
            raise CorpusError(f"{part.boxes}: expected boxes of shape {(rows, fragments, 4)}, found {self.boxes.shape}")
        if self.lengths is not None and (self.lengths.shape != (rows,) or not _within(self.lengths, fragments)):
            raise CorpusError(f"{part.lengths}: expected {rows} lengths from 1 to {fragments}")

    def length(self, row: int) -> int:
        return self.features.shape[1] if self.lengths is None else int(self.lengths[row])

    def release(self) -> None:
        for array in (self.features, self.boxes):
            if array is not None and hasattr(mmap, "MADV_DONTNEED"):
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]  # no public way to the mapping


def _within(lengths: np.ndarray, limit: int) -> bool:
    return bool(((lengths >= 1) & (lengths <= limit)).all())


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
    write_array(folder / "rows.npy", np.asarray(rows, dtype=np.int64).reshape(-1, 2))
    write_json(folder / "ids.json", list(ids))
    files = [name for part in parts for name in part.files()]
    own = [name for name in files if not Path(name).is_absolute()]
    manifest = _Manifest(
        fragments,
        dim,
        [*parts],
        tower,
        checksums(folder, ["ids.json", "rows.npy", *own]),
        {name: Path(name).stat().st_size for name in files if name not in own},
    )
    head = asdict(manifest) | {"parts": [{key: value for key, value in vars(part).items() if value} for part in parts]}
    write_json(folder / HEADER, {"format": FORMAT, "version": VERSION} | head)


WORDS_FORMAT, WORDS_VERSION = "quintet-word-features", 1
WORDS_FILES = ("features.npy", "starts.npy")
WORDS_REMEDY = "remove the folder, and it is made again"


@dataclass(frozen=True)
class _WordsManifest:
    texts: int
    dim: int
    checksums: dict[str, str] = field(default_factory=dict)


class WordFeatures:
    """Reads the word features of texts by row."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        missing = f"{self.folder} holds no finished word features; {WORDS_REMEDY}"
        header = read_header(self.folder / HEADER, WORDS_FORMAT, WORDS_VERSION, missing)
        self._head = check_shape(header, _WordsManifest, str(self.folder / HEADER))
        self._features = open_array(self.folder / "features.npy", WORDS_REMEDY)  # (words, dim)
        self._starts = starts = read_array(self.folder / "starts.npy", WORDS_REMEDY, "iu")  # (texts + 1,)
        fits = starts.shape == (self._head.texts + 1,) and starts[0] == 0 and bool((np.diff(starts) >= 0).all())
        if not fits or self._features.shape != (starts[-1], self._head.dim):
            raise CorpusError(f"{self.folder}: its arrays do not fit together; {WORDS_REMEDY}")
        self._verify(("starts.npy",))

    def _verify(self, names: Iterable[str]) -> None:
        known = self._head.checksums
        verify_checksums(self.folder, {name: known[name] for name in names if name in known}, WORDS_REMEDY)

    def check(self) -> None:
        """Compare every file with its checksum."""
        self._verify(WORDS_FILES)

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
        if not all_finite(features):
            raise CorpusError(f"{self.folder} holds NaN or infinity; {WORDS_REMEDY}")
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
    """Write `parts`, each (words, dim), one after the other; together they hold the words of all texts.

    `CorpusError` names a file that is in the way: one that Quintet did not write.
    """
    folder = Path(folder)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    begin_folder(folder, HEADER, WORDS_FORMAT, WORDS_FILES)
    try:
        with atomic_write(folder / "features.npy") as temporary, temporary.open("wb") as file:
            write_array_header(file, (int(starts[-1]), dim), dtype)
            written = 0
            for part in parts:
                file.write(part.astype(dtype).tobytes())
                written += len(part)
            if written != starts[-1]:
                raise ValueError(f"{written} words were given for texts of {starts[-1]}")
        write_array(folder / "starts.npy", starts)
        head = {"format": WORDS_FORMAT, "version": WORDS_VERSION, "texts": len(lengths), "dim": dim, "dtype": dtype}
        write_json(folder / HEADER, head | {"checksums": checksums(folder, WORDS_FILES)} | facts)
    except BaseException:
        for name in (*WORDS_FILES, HEADER):
            (folder / name).unlink(missing_ok=True)
        raise


def has_word_features(folder: Path) -> bool:
    """Whether a folder holds finished word features."""
    return header_format(folder / HEADER) == WORDS_FORMAT
