"""SCAN's `*_precomp` folders: captions and region features, row by row. The arrays are used where they lie.

    S_caps.txt         one caption a line, those of an image on consecutive lines
    S_ims.npy          (rows, regions, dim): a row for each image, or for each caption (then repeated)
    S_ids.txt          optional: an image id for each row
    S_boxes.npy        optional: (rows, regions, 4) left, top, right, bottom in pixels, with
    S_img_sizes.npy    optional: (rows, 2) width, height

for each split S: train, dev, test, testall.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintet.data.arrays import all_finite, open_array, read_array, write_array_header
from quintet.data.corpus import Corpus, Image
from quintet.data.formats.assembly import Entry, ImageFolder, Notes, assemble, read_lines
from quintet.errors import CorpusError
from quintet.files import atomic_write

if TYPE_CHECKING:  # feature_store imports torch, and `quintet data formats` only reads OPTIONS
    from quintet.data.feature_store import Part

OPTIONS = {
    "captions_per_image": "how often a row is repeated where there is one row per caption (5 in SCAN's files)",
    "dev_images": "keep only the first N images of dev; published results with these files use 1000",
    "ids": "file: ids from S_ids.txt where present; positions: name images by split and position",
    "size_order": "what the two columns of S_img_sizes.npy are: wh or hw",
    "features": "the name of the features in the corpus",
    "strict": "true: an empty caption is an error instead of a note",
}
CHUNK = 4096  # rows of boxes at a time
SCANNED = 128  # rows of features at a time
REMEDY = "fetch it again"
SLACK = 1.01  # detectors round


@dataclass(frozen=True)
class _Files:
    split: str
    captions: list[str]
    ids: list[str]  # of the images
    rows: np.ndarray  # (images,) row of each image in the array
    part: Part
    shape: tuple[int, ...]

    @property
    def per_image(self) -> int:
        return len(self.captions) // len(self.ids)

    def captions_of(self, image: int) -> list[str]:
        return self.captions[image * self.per_image : (image + 1) * self.per_image]


def read(
    source: Path,
    *,
    out: ImageFolder,
    captions_per_image: int = 5,
    dev_images: int | None = None,
    ids: str = "file",
    size_order: str = "wh",
    features: str = "regions",
    strict: bool = False,
) -> Corpus:
    from quintet.data.feature_store import begin_features

    if ids not in ("file", "positions") or size_order not in ("wh", "hw"):
        raise CorpusError(f"ids={ids}, size_order={size_order}: ids is file or positions, size_order wh or hw")
    notes = Notes(strict)
    folder = out.out / "features" / features
    names = _split_names(source, notes)
    begin_features(folder, [f"{name}_boxes.npy" for name in names])
    found = [_open(source, name, ids, captions_per_image, size_order, folder, notes) for name in names]
    found = _join_test_sets(found, notes)
    corpus, positions = _corpus(source, found, dev_images, notes)
    _write_features(folder, corpus.images, positions, found, source)
    return corpus


def _split_names(source: Path, notes: Notes) -> list[str]:
    captions = {path.name.removesuffix("_caps.txt") for path in source.glob("*_caps.txt")}
    arrays = {path.name.removesuffix("_ims.npy") for path in source.glob("*_ims.npy")}
    if not captions & arrays:
        raise CorpusError(f"{source} holds no pair of S_caps.txt and S_ims.npy (S: train, dev, test, testall)")
    for name in sorted(captions ^ arrays):
        missing = f"{name}_ims.npy" if name in captions else f"{name}_caps.txt"
        notes.skip("splits with a part missing", f"{name} (no {missing})")
    usual = ("train", "dev", "test", "testall")
    return sorted(captions & arrays, key=lambda name: (usual.index(name) if name in usual else len(usual), name))


def _open(source: Path, split: str, ids: str, per_image: int, size_order: str, folder: Path, notes: Notes) -> _Files:
    from quintet.data.feature_store import Part

    path = source / f"{split}_ims.npy"
    array = open_array(path, REMEDY, "fiu")
    if array.ndim != 3:
        raise CorpusError(f"{path}: expected (rows, regions, dim), found {array.shape}")
    captions = read_lines(source / f"{split}_caps.txt")
    names = (
        read_lines(source / f"{split}_ids.txt") if (source / f"{split}_ids.txt").exists() and ids == "file" else None
    )
    repeat = _repetition(array, len(captions), names, per_image, f"{source / split}", notes)
    images = len(array) // repeat
    _refuse_not_finite(array, repeat, path)
    if names is None:
        names = [f"{split}-{row}" for row in range(images)]
    elif len(names) == len(array):
        names = names[::repeat]
    elif len(names) != images:
        raise CorpusError(f"{source}/{split}_ids.txt has {len(names)} ids for {images} images in {len(array)} rows")
    boxes = usable_boxes(source, split, array.shape, size_order, folder, notes)
    part = Part(str(path.absolute()), boxes)
    return _Files(split, captions, names, np.arange(images) * repeat, part, array.shape)


def _refuse_not_finite(array: np.ndarray, repeat: int, path: Path) -> None:
    for start in range(0, len(array), SCANNED * repeat):
        rows = array[start : start + SCANNED * repeat : repeat]  # of each image one
        if not all_finite(rows):
            bad = start + repeat * int(np.argmin(np.isfinite(rows).reshape(len(rows), -1).all(axis=1)))
            raise CorpusError(f"{path}: row {bad} holds NaN or infinity; extract the features again")


def _repetition(
    array: np.ndarray, captions: int, ids: list[str] | None, per_image: int, where: str, notes: Notes
) -> int:
    """How many consecutive rows show the same image: 1, or as many as it has captions."""
    rows = len(array)
    if not rows or not captions or captions % rows:
        raise CorpusError(
            f"{where}_caps.txt has {captions:,} captions for {rows:,} rows of {where}_ims.npy: neither one row a "
            "caption nor a whole number of captions a row; do the two files belong together, and is one cut short?"
        )
    if captions > rows:
        return 1
    if rows % per_image == 0:
        if ids is not None and len(ids) == rows:
            blocks = np.array(ids).reshape(-1, per_image)
            same = [bool((block == block[0]).all()) for block in blocks]
        else:
            # Some blocks spread over the file: rows of different images are never equal.
            sample = np.unique(np.linspace(0, rows // per_image - 1, 16).astype(int)) * per_image
            same = [all(np.array_equal(array[at], array[at + step]) for step in range(1, per_image)) for at in sample]
        if all(same):
            return per_image
        if any(same):
            raise CorpusError(
                f"{where}_ims.npy has a row per caption, but only some runs of {per_image} rows show one image; "
                "give the option captions_per_image=N"
            )
    if per_image > 1:
        notes.say(f"{where}_ims.npy: as many rows as captions and no repetition, so every image has one caption")
    return 1


def _join_test_sets(found: list[_Files], notes: Notes) -> list[_Files]:
    """COCO's `test` is the beginning of `testall`: without ids, the captions show it; they share their images."""
    by_name = {files.split: files for files in found}
    test, whole = by_name.get("test"), by_name.get("testall")
    if test is None or whole is None or test.ids[0] != "test-0":
        return found
    if test.per_image != whole.per_image or test.captions != whole.captions[: len(test.captions)]:
        return found
    notes.say("'test' is the beginning of 'testall': they share their images")
    return [replace(files, ids=whole.ids[: len(test.ids)]) if files is test else files for files in found]


def _corpus(
    source: Path, found: list[_Files], dev_images: int | None, notes: Notes
) -> tuple[Corpus, dict[str, tuple[int, int]]]:
    entries: dict[str, Entry] = {}
    splits: dict[str, list[str]] = {}
    positions: dict[str, tuple[int, int]] = {}
    for part, files in enumerate(found):
        kept = len(files.ids)
        if files.split == "dev" and dev_images is not None and dev_images < kept:
            notes.say(f"dev was cut to its first {dev_images} of {kept} images")
            kept = dev_images
        splits[files.split] = files.ids[:kept]
        if len(set(splits[files.split])) < kept:
            raise CorpusError(f"{source}/{files.split}_ids.txt names an image twice; use the option ids=positions")
        for image, id_ in enumerate(splits[files.split]):
            captions = files.captions_of(image)
            if id_ not in entries:
                entries[id_] = Entry(id_, captions, files.split)
                positions[id_] = (part, int(files.rows[image]))
            elif entries[id_].captions != captions:
                raise CorpusError(
                    f"{source}: image id {id_!r} is in {entries[id_].split!r} and in {files.split!r} with other "
                    "captions; use the option ids=positions"
                )
    corpus = assemble(source.resolve().name, entries.values(), notes)
    present = {image.id for image in corpus.images}
    shared = {split: [id_ for id_ in listed if id_ in present] for split, listed in splits.items()}
    return Corpus(corpus.name, corpus.images, corpus.texts, shared, notes=corpus.notes), positions


def _write_features(
    folder: Path, images: list[Image], positions: dict[str, tuple[int, int]], found: list[_Files], source: Path
) -> None:
    from quintet.data.feature_store import write_manifest

    dims = {files.shape[2] for files in found}
    if len(dims) > 1:
        raise CorpusError(f"{source}: the splits' features have different widths {sorted(dims)}")
    ids = [image.id for image in images]
    rows = np.array([positions[id_] for id_ in ids])
    fragments = max(files.shape[1] for files in found)
    tower = {"name": "precomputed", "source": str(source.absolute())}
    write_manifest(folder, ids, rows, [files.part for files in found], fragments=fragments, dim=dims.pop(), tower=tower)


def usable_boxes(
    source: Path, split: str, shape: tuple[int, ...], size_order: str, folder: Path, notes: Notes
) -> str | None:
    """The file with boxes in 0..1 for a split: the source's own where they are, a new one in `folder` where not."""
    path, sizes_path = source / f"{split}_boxes.npy", source / f"{split}_img_sizes.npy"
    if not path.exists():
        return None
    boxes = open_array(path, REMEDY, "fiu")
    if boxes.shape != (*shape[:2], 4):
        raise CorpusError(f"{path}: expected {(*shape[:2], 4)} for features of shape {shape}, found {boxes.shape}")
    _refuse_not_finite(boxes, 1, path)
    if not sizes_path.exists():
        if boxes.max(initial=0) <= 1:
            return str(path.absolute())
        notes.skip("box files in pixels without the images' sizes", f"{path.name} (no {sizes_path.name})")
        return None
    sizes = read_array(sizes_path, REMEDY, "fiu")
    if sizes.shape != (len(boxes), 2):
        raise CorpusError(f"{sizes_path}: expected {(len(boxes), 2)}, found {sizes.shape}")
    sizes = sizes.astype(np.float32)[:, ::-1] if size_order == "hw" else sizes.astype(np.float32)
    name = f"{split}_boxes.npy"
    with atomic_write(folder / name) as temporary, temporary.open("wb") as file:
        write_array_header(file, boxes.shape, "float32")
        for start in range(0, len(boxes), CHUNK):
            file.write(_scale(boxes, sizes, start, path).astype(np.float32).tobytes())
    return name


def _scale(boxes: np.ndarray, sizes: np.ndarray, start: int, path: Path) -> np.ndarray:
    size = np.tile(sizes[start : start + CHUNK], 2)[:, None]  # (rows, 1, 4) width, height, width, height
    if not ((size > 0) & np.isfinite(size)).all():
        raise CorpusError(f"{path}: an image between rows {start} and {start + len(size)} has no size")
    scaled = boxes[start : start + CHUNK] / size  # (rows, regions, 4)
    beyond = np.flatnonzero((scaled > SLACK).any(axis=(1, 2)))
    if len(beyond):
        raise CorpusError(
            f"{path}: the boxes of row {start + beyond[0]} reach beyond the image; if the sizes are height first, "
            "use the option size_order=hw"
        )
    return scaled.clip(0, 1)
