"""What killed mining has finished: one file for each stripe of images (or block), written atomically."""

from __future__ import annotations

import os
import re
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from quintet import distributed
from quintet.errors import QuintetError
from quintet.files import atomic_write, header_format, read_json, write_json

FORMAT, VERSION, HEAD = "quintet-mining-journal", 3, "journal.json"
_NAME = re.compile(r"images-(\d+)-(\d+)\.npz")
# The third line: of mining by blocks (`quintet.mining.block_mining`).
_OWN = re.compile(
    r"\.?(journal\.json|beginning\.npz|images-\d+-\d+\.npz|"
    r"codes-[a-z]+-\d+\.safetensors|(division|positives-\d+-\d+|lists-[a-z]+-\d+)\.npz|all-[a-z]+-[a-z]+\.npy)"
    r"(\.[a-z0-9_]{8}\.partial)?"
)

# What numpy and zipfile raise on a damaged file.
_DAMAGE = (
    OSError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError, MemoryError, NotImplementedError,
    EOFError, BadZipFile, struct.error, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class _Head:
    format: str
    version: int
    settings: dict[str, Any]


class Journal:
    """A folder of stripes. All processes of one mining share it; `settings` say which mining it belongs to."""

    def __init__(self, folder: Path | str, settings: dict[str, Any]) -> None:
        self.folder = Path(folder)
        head = self.folder / HEAD
        if os.path.lexists(self.folder) and not _is_own(self.folder):
            raise QuintetError(
                f"{self.folder} is in the way: it has no {HEAD} of Quintet, or other files beside it; move it away"
            )
        distributed.barrier()
        if distributed.is_main() and not head.is_file():
            write_json(head, {"format": FORMAT, "version": VERSION, "settings": settings})
        distributed.barrier()
        known = read_json(head, _Head)
        if known.format != FORMAT or known.version != VERSION:
            raise QuintetError(f"{self.folder} is not a mining journal of this version; choose another folder")
        different = sorted(key for key in settings | known.settings if settings.get(key) != known.settings.get(key))
        if different:
            raise QuintetError(
                f"the journal {self.folder} belongs to another mining (it differs in {', '.join(different)}); remove "
                "it to start again, or choose another folder"
            )
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        self.finished = sorted((int(match[1]), int(match[2])) for match in found if match)
        distributed.barrier()  # no process adds a stripe before all have listed them

    def to_do(self, images: int, size: int) -> list[slice]:
        """The stripes of up to `size` images that are not finished."""
        edges = [(0, 0), *self.finished, (images, images)]
        gaps = [(before[1], after[0]) for before, after in pairwise(edges)]
        return [slice(start, min(start + size, high)) for low, high in gaps for start in range(low, high, size)]

    def write(self, images: slice, arrays: dict[str, np.ndarray]) -> None:
        self.keep(f"images-{images.start:09d}-{images.stop:09d}", arrays)

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        arrays = self.kept(f"images-{start:09d}-{stop:09d}")
        assert arrays is not None  # it is one of `finished`
        return arrays

    def keep(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        with atomic_write(self.folder / f"{name}.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # names come from here

    def kept(self, name: str) -> dict[str, np.ndarray] | None:
        """What `keep` wrote under this name, compared with the checksums in the file; None where there is nothing."""
        path = self.folder / f"{name}.npz"
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except _DAMAGE as error:
            raise QuintetError(f"{path} is damaged ({error}); remove it to mine this part again") from None

    def remove(self) -> None:
        remove_journal(self.folder)


def remove_journal(folder: Path) -> None:
    """Remove the folder, journal.json last, unless it holds a file that no journal has."""
    if _is_own(folder):
        with suppress(OSError):
            for path in sorted(folder.iterdir(), key=lambda path: path.name == HEAD):
                path.unlink()
            folder.rmdir()


def _is_own(folder: Path) -> bool:
    """Whether a folder has the files of a journal and no others; before its head is written, it has nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    paths = list(folder.iterdir())
    begun = header_format(folder / HEAD) == FORMAT or all(path.name.startswith(f".{HEAD}.") for path in paths)
    return begun and all(_OWN.fullmatch(path.name) and path.is_file() and not path.is_symlink() for path in paths)
