"""Tar shards, and images and shards behind URLs, as sources of an index.

Their images are unpacked into the index, named by their content, so that they can be shown. A shard, or a file on a
server, that is the same (by size and time of change, on a server by its ETag) is not read again. What is not there any
more leaves the index; a server that does not answer leaves the index as it was.
"""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path, PurePosixPath

from quintet.data.formats.assembly import Notes
from quintet.data.formats.webdataset import PATTERNS, shard_files
from quintet.data.images import IMAGE_SUFFIXES
from quintet.data.remote import RemoteFile, fetched, list_files
from quintet.errors import CorpusError, QuintetError
from quintet.files import atomic_write, read_bytes
from quintet.search import SearchError
from quintet.search.fields import parse_fields
from quintet.search.found import Found, Sources, file_stamp, unpacked, unpacked_path, why_not
from quintet.search.index_folder import Root, path_text
from quintet.search.items import content_of
from quintet.search.stores import Scalar

DOWNLOADS = ".quintet-downloads"  # in the index, while files of servers are read
LARGEST_IMAGE = 2**30  # bytes


def is_shard(name: str) -> bool:
    return any(PurePosixPath(name).match(pattern) for pattern in PATTERNS)


def find_in_shard(found: Sources, root: int, shard: Path, name: str, index: Path) -> None:
    """A shard that did not change since the last build is not read again."""
    name = path_text(name)
    at = f"{found.roots[root].path.rstrip('/')}/{name}"
    first = len(found.images)
    try:
        facts = shard.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise CorpusError(f"{shard} is not a file")
        stamp = file_stamp(facts)
        known = list(found.earlier.below(at, "shards"))
        if known and all(entry.stamp == stamp and unpacked(index, entry).is_file() for _, entry in known):
            for before, entry in known:
                found.add_again(root, before, entry, index)
            return
        with shard.open("rb"):  # that it may be read
            pass
        notes = Notes()
        _unpack(found, root, shard, name, stamp, index, notes, str(shard))
        found.unreadable += [(str(shard), line) for line in notes.lines()]
    except (OSError, ValueError) as error:
        why, gone = why_not(error)
        found.keep(at, shard, why, index, gone=gone, root=root)
    except CorpusError as error:
        found.unreadable.append((str(shard), str(error)))
        # What stood before the damage is good; without a stamp the shard is read again, and its damage reported again.
        found.images[first:] = [replace(image, stamp="") for image in found.images[first:]]
        found.keep(at, shard, "is damaged", index, gone=True, root=root)


def _unpack(
    found: Sources, root: int, shard: Path, name: str, stamp: str, index: Path, notes: Notes, shown: str
) -> None:
    """Files that share a key are one image with its fields: 0001.jpg, 0001.json. `shown`: the shard in messages."""
    fields: dict[str, dict[str, Scalar]] = {}
    for member, data in shard_files(shard, notes, shown):
        path = PurePosixPath(member)
        metadata = fields.setdefault(str(path.parent / path.name.partition(".")[0]), {})
        if path.suffix.lower() == ".json":
            try:
                metadata |= parse_fields(data)
            except QuintetError as error:
                found.unreadable.append((f"{shown}/{member}", f"{error}; images are indexed without these fields"))
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            metadata["bytes"] = len(data)
            content = content_of(data)
            file = unpacked_path(index, content, path.suffix)
            if not file.is_file():
                with atomic_write(file) as temporary:
                    temporary.write_bytes(data)
            found.images.append(Found(root, f"{name}/{path_text(member)}", file, stamp, content, metadata))


# Behind URLs


def find_remote(found: Sources, url: str, index: Path) -> None:
    try:
        files = list_files(url, (*PATTERNS, *(f"*{suffix}" for suffix in IMAGE_SUFFIXES)))
        new = [file for file in files if not _add_known(found, file, index)]
        with fetched(new, index / DOWNLOADS) as copies:
            for file, path in copies:
                _add_new(found, file, path, index)
    except CorpusError:
        raise
    except QuintetError as error:
        raise SearchError(f"{error}; the index is as it was") from None


def _root(found: Sources, file: RemoteFile) -> tuple[int, str]:
    """The URL of the folder that a file was found in, and its path below."""
    name = path_text(file.name)
    root = Root("shards", path_text(str(file)).removesuffix(name).rstrip("/"))
    if root not in found.roots:
        found.roots.append(root)
    return found.roots.index(root), name


def _add_known(found: Sources, file: RemoteFile, index: Path) -> bool:
    """Whether the index has what is in a file as it is now."""
    root, name = _root(found, file)
    known = list(found.earlier.below(f"{found.roots[root].path}/{name}", "shards"))
    if not known or any(entry.stamp != file.stamp or not unpacked(index, entry).is_file() for _, entry in known):
        return False
    for before, entry in known:
        found.add_again(root, before, entry, index)
    return True


def _add_new(found: Sources, file: RemoteFile, path: Path, index: Path) -> None:
    root, name = _root(found, file)
    if is_shard(file.name):
        notes = Notes()
        try:
            _unpack(found, root, path, name, file.stamp, index, notes, str(file))
        except CorpusError as error:
            found.unreadable.append((str(file), str(error)))
        found.unreadable += [(str(file), line) for line in notes.lines()]
        return
    data = read_bytes(path, LARGEST_IMAGE)
    content = content_of(data)
    target = unpacked_path(index, content, Path(file.name).suffix)
    if not target.is_file():
        with atomic_write(target) as temporary:
            temporary.write_bytes(data)
    found.images.append(Found(root, name, target, file.stamp, content, {"bytes": len(data)}))
