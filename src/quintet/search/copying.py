"""Copies of images that were found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from quintet.files import atomic_write, user_path
from quintet.search import SearchError


def copy_images(images: Sequence[Path], folder: Path | str) -> int:
    """Copy image files into a folder, which is made; how many were copied.

    Nothing in the folder is replaced: of two files of one name the second gets a number. A file of the same name, size
    and time is the same file, and is not copied again.
    """
    folder = user_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SearchError(f"the folder {folder} cannot be made: {error.strerror or error}") from None
    copied = 0
    for image in images:
        try:
            target = _free_name(image, folder)
            if target is not None:
                with atomic_write(target) as temporary:
                    shutil.copy2(image, temporary)
                copied += 1
        except OSError as error:
            raise SearchError(
                f"{image} could not be copied to {folder}: {error.strerror or error}; {copied} of {len(images)} were"
            ) from None
    return copied


def _free_name(image: Path, folder: Path) -> Path | None:
    """Where the copy goes; None where it is there already."""
    facts = image.stat()
    for number in count(1):
        target = folder / (image.name if number == 1 else f"{image.stem}-{number}{image.suffix}")
        if not os.path.lexists(target):
            return target
        there = target.lstat()
        if (there.st_size, there.st_mtime_ns) == (facts.st_size, facts.st_mtime_ns):
            return None
    return None
