"""Thumbnails, made once and cached on disk up to a limit."""

from __future__ import annotations

import hashlib
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quintet.data.images import open_image
from quintet.errors import QuintetError
from quintet.files import atomic_write

SIZES = (
    160,
    320,
    640,
    1600,
)  # pixels of the longer side; fixed, so that requests cannot fill the cache with other sizes
TYPES = {".jpg": "image/jpeg", ".png": "image/png"}
_NAME = re.compile(r"quintet-[0-9a-f]{32}\.(jpg|png)")  # other files in the folder are never removed


@dataclass(frozen=True, slots=True)
class Thumbnail:
    data: bytes
    media_type: str
    tag: str  # changes when the image file changes


class Thumbnails:
    """A folder of thumbnails; when it exceeds `max_bytes`, the least recently used are removed."""

    def __init__(self, folder: Path, max_bytes: int, max_pixels: int) -> None:
        self.made = 0
        self.found = 0
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_pixels = max_pixels
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # file name -> bytes, the most recently used last
        self._bytes = 0
        for facts, name in sorted(_kept(folder), key=lambda entry: entry[0].st_mtime):
            self._remember(name, facts.st_size)

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def get(self, image_file: Path, size: int) -> Thumbnail:
        """The image shrunk to fit into size x size, upright; a smaller one keeps its size."""
        tag = _tag(image_file, size)
        for suffix, media_type in TYPES.items():
            name = _name(tag, suffix)
            if name in self._sizes:
                data = self._read(name)
                if data is not None:
                    return Thumbnail(data, media_type, tag)
        data, suffix = _shrunk(image_file, size, self._max_pixels)
        with self._lock:
            self.made += 1
        self._write(_name(tag, suffix), data)
        return Thumbnail(data, TYPES[suffix], tag)

    def _read(self, name: str) -> bytes | None:
        try:
            data = (self._folder / name).read_bytes()
        except OSError:
            self._forget(name)  # removed by someone else
            return None
        with self._lock:
            self.found += 1
            if name in self._sizes:
                self._sizes.move_to_end(name)
        return data

    def _write(self, name: str, data: bytes) -> None:
        try:
            with atomic_write(self._folder / name) as temporary:
                temporary.write_bytes(data)
        except QuintetError:
            return  # without the cache (full or read-only disk) it is only slower
        self._remember(name, len(data))

    def _remember(self, name: str, size: int) -> None:
        with self._lock:
            self._bytes += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
            excess = []
            while self._bytes > self._max_bytes:
                oldest, freed = self._sizes.popitem(last=False)
                self._bytes -= freed
                excess.append(oldest)
        for oldest in excess:
            (self._folder / oldest).unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)


def _kept(folder: Path) -> Iterator[tuple[os.stat_result, str]]:
    for path in folder.glob("*") if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # removed just now by another server with the same folder
            if _NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                yield path.stat(), path.name


def _name(tag: str, suffix: str) -> str:
    return f"quintet-{tag}{suffix}"


def _tag(image_file: Path, size: int) -> str:
    facts = image_file.stat()
    return hashlib.sha256(f"{image_file}\0{facts.st_mtime_ns}\0{facts.st_size}\0{size}".encode()).hexdigest()[:32]


def _shrunk(image_file: Path, size: int, max_pixels: int) -> tuple[bytes, str]:
    """Small images become PNG, which keeps drawings sharp; others become JPEG."""
    image = open_image(image_file, max_pixels=max_pixels, name=image_file.name)
    suffix = ".png" if max(image.size) <= min(size, 320) else ".jpg"
    image.thumbnail((size, size))
    buffer = io.BytesIO()
    if suffix == ".png":
        image.save(buffer, "PNG")
    else:
        image.save(buffer, "JPEG", quality=85, progressive=True)
    return buffer.getvalue(), suffix
