"""Word features of a frozen text encoder, computed once and memory-mapped.

On disk, in a folder of its own under `CORPUS/texts/`:

    manifest.json   {"format": "quintet-word-features", "version": 1, "texts": 5000, "dim": 768, ...}; written last
    features.npy    (words of all sentences, dim) float16 or float32, one sentence after the other, no padding
    starts.npy      (texts + 1,) int64: sentence i has the rows starts[i]..starts[i + 1]

Row i belongs to the i-th sentence of the list they were made for; whoever makes them puts a fingerprint of that list,
of the tokenizer and of the encoder's weights into the folder's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.errors import CorpusError
from quintet.files import complete_or_absent, read_json, write_json

FORMAT, VERSION = "quintet-word-features", 1


class WordFeatures:
    """Reads the word features of sentences by row."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        manifest = read_json(self.folder / "manifest.json")
        if manifest.get("format") != FORMAT or manifest.get("version", 0) > VERSION:
            raise CorpusError(f"{self.folder}: this Quintet reads {FORMAT} up to version {VERSION}; remove the folder")
        try:
            self._features = np.load(self.folder / "features.npy", mmap_mode="r")  # (words, dim)
            self._starts = np.load(self.folder / "starts.npy")  # (texts + 1,)
        except (OSError, ValueError) as error:
            raise CorpusError(f"{self.folder} is damaged ({error}); remove it, and it is made again") from None
        expected = (int(self._starts[-1]), manifest["dim"])
        if self._features.shape != expected or len(self._starts) != manifest["texts"] + 1:
            raise CorpusError(f"{self.folder}: its arrays do not fit together; remove it, and it is made again")

    def __reduce__(self) -> tuple[type[WordFeatures], tuple[Path]]:
        return WordFeatures, (self.folder,)  # to another process goes the folder's name, not the array

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def dim(self) -> int:
        return int(self._features.shape[1])

    def batch(self, rows: Sequence[int], length: int) -> Tensor:
        """(n, length, dim) float32, zero after each sentence's last word."""
        features = np.zeros((len(rows), length, self.dim), dtype=np.float32)
        for target, row in enumerate(rows):
            start, stop = self._starts[row], self._starts[row + 1]
            if stop - start > length:
                raise CorpusError(
                    f"{self.folder}: sentence {row} has {stop - start} words there and at most {length} here; it was "
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
    """Write `parts`, each (words, dim), one after the other; together they hold the words of all sentences."""
    folder = Path(folder)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    with complete_or_absent(folder / "features.npy") as temporary:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=(int(starts[-1]), dim))
        written = 0
        for part in parts:
            array[written : written + len(part)] = part
            written += len(part)
        if written != starts[-1]:
            raise ValueError(f"{written} words were given for sentences of {starts[-1]}")
        array.flush()
        del array
    with complete_or_absent(folder / "starts.npy") as temporary, temporary.open("wb") as file:
        np.save(file, starts)
    write_json(
        folder / "manifest.json",
        {"format": FORMAT, "version": VERSION, "texts": len(lengths), "dim": dim, "dtype": dtype, **facts},
    )
