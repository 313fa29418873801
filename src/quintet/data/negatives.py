"""`NegativeLists`: for every anchor of a split its hardest negatives, best first, as rows of the same split.

On disk, a folder:

    texts.npy           (n_images, h_t) int32   for each image the rows of its hardest texts, -1 where there are no more
    text_scores.npy     (n_images, h_t) float32 their scores, -inf where there are no more
    images.npy          (n_texts, h_i) int32    for each text the rows of its hardest images
    image_scores.npy    (n_texts, h_i) float32
    manifest.json       {"format": "quintet-negatives", "version": 1, "split": ..., "matcher": ..., ...}

The manifest is written last: a folder without it holds no lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.corpus import Split, split_checksum
from quintet.errors import CorpusError
from quintet.files import complete_or_absent, read_json, write_json

FORMAT, VERSION = "quintet-negatives", 1
_ARRAYS = {"texts": np.int32, "text_scores": np.float32, "images": np.int32, "image_scores": np.float32}


@dataclass(frozen=True)
class NegativeLists:
    """Hard negatives of both directions. Rows are rows of the split; a row never corresponds to its anchor.

    >>> lists = NegativeLists(*(np.array([[1], [0]]), np.ones((2, 1))) * 2)
    >>> lists.texts.dtype, lists.text_counts.tolist()
    (dtype('int32'), [1, 1])
    """

    texts: np.ndarray  # (n_images, h_t) int32 rows of texts, best first, -1 where there are fewer
    text_scores: np.ndarray  # (n_images, h_t) float32, -inf where there are fewer
    images: np.ndarray  # (n_texts, h_i) int32 rows of images
    image_scores: np.ndarray  # (n_texts, h_i) float32
    manifest: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, dtype in _ARRAYS.items():
            array = getattr(self, name)
            if array.dtype != dtype:
                object.__setattr__(self, name, array.astype(dtype))
        for rows, scores in (("texts", "text_scores"), ("images", "image_scores")):
            shapes = getattr(self, rows).shape, getattr(self, scores).shape
            if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
                raise ValueError(f"{rows} and {scores} must be (anchors, h) and alike, got {shapes[0]} and {shapes[1]}")

    @property
    def text_counts(self) -> np.ndarray:
        """(n_images,): how many negative texts each image has; they fill the list from the front."""
        return (np.asarray(self.texts) >= 0).sum(axis=1)

    @property
    def image_counts(self) -> np.ndarray:
        """(n_texts,): how many negative images each text has."""
        return (np.asarray(self.images) >= 0).sum(axis=1)

    def save(self, folder: Path | str) -> None:
        """Complete or absent: until the manifest is there, `open` refuses the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").unlink(missing_ok=True)  # until it is back, what stands here is old and new mixed
        for name in _ARRAYS:
            with complete_or_absent(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, np.ascontiguousarray(getattr(self, name)))
        shapes = {name: list(getattr(self, name).shape) for name in _ARRAYS}
        write_json(
            folder / "manifest.json", {"format": FORMAT, "version": VERSION} | self.manifest | {"shapes": shapes}
        )

    @staticmethod
    def open(folder: Path | str, mmap: bool = True) -> NegativeLists:
        """Read what `save` wrote; memory-mapped, pages are read when they are touched."""
        folder = Path(folder)
        if not (folder / "manifest.json").is_file():
            raise CorpusError(
                f"{folder} holds no finished negatives (no manifest.json); make them with `quintet mine RUN CORPUS`"
            )
        manifest = read_json(folder / "manifest.json")
        if manifest.get("format") != FORMAT or manifest.get("version", 0) > VERSION:
            raise CorpusError(
                f"{folder} is a {manifest.get('format')} of version {manifest.get('version')}; "
                f"this Quintet reads {FORMAT} up to {VERSION}"
            )
        arrays = {}
        for name, dtype in _ARRAYS.items():
            path = folder / f"{name}.npy"
            try:
                array = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
            except (OSError, ValueError) as error:
                raise CorpusError(f"{path} is missing or damaged ({error}); mine again") from None
            if array.dtype != dtype or list(array.shape) != manifest["shapes"][name]:
                raise CorpusError(
                    f"{path} holds {array.dtype} of shape {array.shape}, but its manifest says {np.dtype(dtype)} of "
                    f"shape {tuple(manifest['shapes'][name])}; mine again"
                )
            arrays[name] = array
        return NegativeLists(**arrays, manifest=manifest)

    def check(self, split: Split, weights: str | None = None) -> None:
        """Refuse lists that were not mined for this split, or not by the matcher with these weights (a checksum)."""
        expected = len(split.images), len(split.texts)
        found = len(self.texts), len(self.images)
        where = f"these negatives (mined from split {self.manifest.get('split')!r})"
        if found != expected:
            raise CorpusError(
                f"{where} are for {found[0]} images and {found[1]} texts, but split {split.name!r} has {expected[0]} "
                f"and {expected[1]}; mine this corpus, or train on the one they were mined from"
            )
        checksum = self.manifest.get("split_checksum")
        if checksum != split_checksum(split):
            raise CorpusError(
                f"{where} belong to other images, texts or groups than those of split {split.name!r} (its ids and "
                "groups, in order, have another checksum); mine this corpus"
            )
        for name, rows, limit in (("texts", self.texts, expected[1]), ("images", self.images, expected[0])):
            if rows.size and not (rows.min() >= -1 and rows.max() < limit):
                raise CorpusError(f"{where} name {name} that do not exist (rows must lie below {limit}); mine again")
        mined_by = self.manifest.get("matcher", {}).get("weights")
        if weights is not None and mined_by != weights:
            raise CorpusError(
                f"{where} were mined by a matcher with weights {str(mined_by)[:12]}, not {weights[:12]}; mine again"
            )
