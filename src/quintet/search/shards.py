"""Images in tar shards: unpacked into the index, named by their content, so that they can be shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from quintet.data.formats.assembly import Notes
from quintet.data.formats.webdataset import shard_files
from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import CorpusError
from quintet.files import atomic_write
from quintet.search.found import Found, Sources, content_of, file_stamp
from quintet.search.items import Entry
from quintet.search.metadata import plain_fields
from quintet.search.stores import Scalar


def find_in_shards(
    found: Sources, start: Path, shards: Sequence[Path], index: Path, before: Mapping[tuple[str, str], Entry]
) -> None:
    """`before`: entries of the last build; a shard that did not change since is not read again."""
    root = found.add_root("shards", start)
    place = found.roots[root].path
    for shard in shards:
        name, stamp = shard.relative_to(start).as_posix(), file_stamp(shard.stat())
        kept = [entry for (where, path), entry in before.items() if where == place and path.startswith(f"{name}/")]
        if kept and all(entry.stamp == stamp and unpacked(index, entry).is_file() for entry in kept):
            found.images += [_again(root, entry, index) for entry in kept]
            continue
        first = len(found.images)
        try:
            _unpack(found, root, shard, name, stamp, index)
        except CorpusError as error:
            found.unreadable.append((str(shard), str(error)))
            # What stood before the damage is good; without a stamp the shard is read again, and its damage told again.
            found.images[first:] = [replace(image, stamp="") for image in found.images[first:]]


def _again(root: int, entry: Entry, index: Path) -> Found:
    path = entry.item.path or ""
    return Found(root, path, unpacked(index, entry), entry.stamp, entry.content, dict(entry.item.metadata))


def _unpack(found: Sources, root: int, shard: Path, name: str, stamp: str, index: Path) -> None:
    """Files that share a key are one image with its fields: 0001.jpg, 0001.json."""
    fields: dict[str, dict[str, Scalar]] = {}
    notes = Notes()
    for member, data in shard_files(shard, notes):
        path = PurePosixPath(member)
        metadata = fields.setdefault(str(path.parent / path.name.partition(".")[0]), {})
        if path.suffix.lower() == ".json":
            metadata |= _fields(data)
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            metadata["bytes"] = len(data)
            content = content_of(data)
            file = _place(index, content, path.suffix)
            if not file.is_file():
                with atomic_write(file) as temporary:
                    temporary.write_bytes(data)
            found.images.append(Found(root, f"{name}/{member}", file, stamp, content, metadata))
    found.unreadable += [(str(shard), line) for line in notes.lines()]


def _fields(data: bytes) -> dict[str, Scalar]:
    try:
        return plain_fields(json.loads(data))
    except ValueError:
        return {}


def unpacked(index: Path, entry: Entry) -> Path:
    """Where the image of a shard's member is."""
    return _place(index, entry.content, PurePosixPath(entry.item.path or "").suffix)


def _place(index: Path, content: str, suffix: str) -> Path:
    return index / "pictures" / content[:2] / f"{content}{suffix.lower()}"
