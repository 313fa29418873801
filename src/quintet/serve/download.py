"""Several image files in one ZIP file, which is written while it is sent."""

from __future__ import annotations

import asyncio
import re
import time
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import PurePosixPath

from quintet.errors import QuintetError
from quintet.search.items import Item
from quintet.serve.service import Service

CHUNK = 2**18
MISSING = "not included.txt"


async def zipped(service: Service, items: Sequence[Item]) -> AsyncIterator[bytes]:
    """Uncompressed, as photos are compressed already. What cannot be sent is named in a text file inside."""
    sink, missing = _Sink(), list[str]()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload]  # needs no more than write and flush
        for item, name in zip(items, file_names(items), strict=True):
            try:
                file, _ = await service.image_file(item.id)
            except QuintetError as error:
                missing.append(f"{name}: {error}")
                continue
            with file, archive.open(zipfile.ZipInfo(name, time.localtime()[:6]), "w") as entry:
                while chunk := await asyncio.to_thread(file.read, CHUNK):
                    entry.write(chunk)
                    yield sink.take()
        if missing:
            archive.writestr(MISSING, "\n".join(missing) + "\n")
    yield sink.take()


def file_names(items: Sequence[Item]) -> list[str]:
    """Names without folders, each once, that any system can write.

    >>> file_names([Item("1", "image", path) for path in ("a/x.jpg", "b/X.jpg", "b/a:b.jpg")])
    ['x.jpg', 'X (2).jpg', 'a_b.jpg']
    """
    found: dict[str, str] = {}
    for item in items:
        plain = file_name(item)
        stem, dot, suffix = plain.rpartition(".") if "." in plain[1:] else (plain, "", "")
        name, number = plain, 1
        while name.casefold() in found or name.casefold() == MISSING:
            number += 1
            name = f"{stem} ({number}){dot}{suffix}"
        found[name.casefold()] = name
    return list(found.values())


def file_name(item: Item) -> str:
    name = PurePosixPath(item.path or item.id).name.encode("utf-8", "replace").decode()
    return re.sub(r'[\\/:*?"<>|\x00-\x1f\x7f-\x9f]', "_", name).strip(". ")[-200:] or "photo"


class _Sink:
    """What was written and not taken yet."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data
