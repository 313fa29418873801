"""The boxes of a `*_precomp` folder, brought from pixels to 0..1."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quintet.data.formats.assembly import Notes
from quintet.errors import CorpusError
from quintet.files import complete_or_absent

CHUNK = 4096  # rows at a time
SLACK = 1.01  # detectors round


def usable_boxes(
    source: Path, split: str, shape: tuple[int, ...], size_order: str, folder: Path, notes: Notes
) -> str | None:
    """The file with boxes in 0..1 for a split: the source's own where they are, a new one in `folder` where not."""
    path, sizes_path = source / f"{split}_boxes.npy", source / f"{split}_img_sizes.npy"
    if not path.exists():
        return None
    boxes = np.load(path, mmap_mode="r")
    if boxes.shape != (*shape[:2], 4):
        raise CorpusError(f"{path}: expected {(*shape[:2], 4)} for features of shape {shape}, found {boxes.shape}")
    if not sizes_path.exists():
        if boxes.max(initial=0) <= 1:
            return str(path.absolute())
        notes.skip("box files in pixels without the pictures' sizes", f"{path.name} (no {sizes_path.name})")
        return None
    sizes = np.load(sizes_path)
    if sizes.shape != (len(boxes), 2):
        raise CorpusError(f"{sizes_path}: expected {(len(boxes), 2)}, found {sizes.shape}")
    sizes = sizes.astype(np.float32)[:, ::-1] if size_order == "hw" else sizes.astype(np.float32)
    name = f"{split}_boxes.npy"
    with complete_or_absent(folder / name) as temporary:
        scaled = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=boxes.shape)
        for start in range(0, len(boxes), CHUNK):
            scaled[start : start + CHUNK] = _scale(boxes, sizes, start, path)
        scaled.flush()
    return name


def _scale(boxes: np.ndarray, sizes: np.ndarray, start: int, path: Path) -> np.ndarray:
    size = np.tile(sizes[start : start + CHUNK], 2)[:, None]  # (rows, 1, 4) width, height, width, height
    if not (size > 0).all():
        raise CorpusError(f"{path}: a picture between rows {start} and {start + len(size)} has no size")
    scaled = boxes[start : start + CHUNK] / size  # (rows, regions, 4)
    beyond = np.flatnonzero((scaled > SLACK).any(axis=(1, 2)))
    if len(beyond):
        raise CorpusError(
            f"{path}: the boxes of row {start + beyond[0]} reach beyond the picture; if the sizes are height first, "
            "use the option size_order=hw"
        )
    return scaled.clip(0, 1)
