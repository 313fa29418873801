"""Thumbnails, made once and cached on disk up to a limit."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quintet.errors import QuintetError
from quintet.files import atomic_write, open_regular
from quintet.search import MissingImage
from quintet.serve.decoder import Decoders

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

    def __init__(self, folder: Path, max_bytes: int, decoders: Decoders) -> None:
        self.made = 0
        self.found = 0
        self._folder = folder
        self._max_bytes = max_bytes
        self._decoders = decoders
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
        with open_file(image_file) as file:
            tag = _tag(image_file, os.fstat(file.fileno()), size)
            for suffix, media_type in TYPES.items():
                name = _name(tag, suffix)
                if name in self._sizes:
                    data = self._read(name)
                    if data is not None:
                        return Thumbnail(data, media_type, tag)
            data, suffix = self._decoders.thumbnail(file, image_file.name, size)
        with self._lock:
            self.made += 1
        self._write(_name(tag, suffix), data)
        return Thumbnail(data, TYPES[suffix], tag)

    def _read(self, name: str) -> bytes | None:
        try:
            handle = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(handle, "rb") as file:
                data = file.read()
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
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(self._folder / name, sync=False) as temporary:
                temporary.write_bytes(data)
            (self._folder / name).chmod(0o600)
        except (QuintetError, OSError):
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
            with suppress(OSError):
                (self._folder / oldest).unlink()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)


def open_file(path: Path) -> BinaryIO:
    """An image file of the index. It may be gone since the index was asked for its path."""
    try:
        return open_regular(path)
    except QuintetError:
        raise MissingImage(f"{path.name} is gone or may not be read") from None


def _kept(folder: Path) -> Iterator[tuple[os.stat_result, str]]:
    """Our own files; others could be another user's, with other images."""
    for path in folder.glob("*") if folder.is_dir() else ():
        with suppress(OSError):  # removed just now by another server with the same folder
            facts = path.lstat()
            if _NAME.fullmatch(path.name) and stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid():
                path.chmod(0o600)
                yield facts, path.name


def _name(tag: str, suffix: str) -> str:
    return f"quintet-{tag}{suffix}"


def _tag(image_file: Path, facts: os.stat_result, size: int) -> str:
    key = f"{image_file}\0{facts.st_mtime_ns}\0{facts.st_size}\0{size}"
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
