"""Shards (tar files and Parquet files), and images and shards behind URLs, as sources of an index.

Their images are unpacked into the index, named by their content, so that they can be shown. A shard, or a file on a
server, that is the same (by size and time of change, on a server by its ETag) is not read again. What is not there any
more leaves the index; a server that does not answer leaves the index as it was.
"""

from __future__ import annotations

import platform
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath

from quintet.cluster import Pool, Task
from quintet.data.formats import parquet, webdataset
from quintet.data.formats.assembly import Notes
from quintet.data.formats.parquet import parquet_images
from quintet.data.formats.webdataset import shard_files
from quintet.data.images import IMAGE_SUFFIXES
from quintet.data.remote import RemoteError, RemoteFile, fetched, list_files
from quintet.errors import CorpusError, QuintetError
from quintet.files import atomic_write, read_bytes, read_json, write_json
from quintet.search import SearchError
from quintet.search.fields import parse_fields, plain_fields
from quintet.search.found import Found, Packed, Sources, file_stamp, unpacked, unpacked_path, why_not
from quintet.search.index_folder import UNPACKED, Root, path_text
from quintet.search.items import content_of
from quintet.search.stores import Scalar
from quintet.search.stores.store import is_text

DOWNLOADS = ".quintet-downloads"  # in the index, while files of servers are read
LARGEST_IMAGE = 2**30  # bytes
PATTERNS = (*webdataset.PATTERNS, *parquet.PATTERNS)
AT_ONCE = 32  # images behind URLs that are one task


def is_shard(name: str) -> bool:
    return any(PurePosixPath(name).match(pattern) for pattern in PATTERNS)


def find_in_shard(found: Sources, root: int, shard: Path, name: str, index: Path) -> None:
    """A shard that did not change since the last build is not read again."""
    name = path_text(name)
    at = f"{found.roots[root].path.rstrip('/')}/{name}"
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
        found.images.append(Found(root, name, None, stamp, packed=Packed(root, name, stamp, shard)))
    except (OSError, ValueError) as error:
        why, gone = why_not(error)
        found.keep(at, shard, why, index, gone=gone, root=root)
    except CorpusError as error:
        found.unreadable.append((str(shard), str(error)))
        found.keep(at, shard, "is damaged", index, gone=True, root=root)


def find_remote(found: Sources, url: str, index: Path) -> None:
    try:
        files = list_files(url, (*PATTERNS, *(f"*{suffix}" for suffix in IMAGE_SUFFIXES)))
    except CorpusError:
        raise
    except QuintetError as error:
        raise SearchError(f"{error}; the index is as it was") from None
    for file in files:
        name = path_text(file.name)
        top = Root("shards", path_text(str(file)).removesuffix(name).rstrip("/"))  # the folder that it was found in
        if top not in found.roots:
            found.roots.append(top)
        root = found.roots.index(top)
        known = list(found.earlier.below(f"{top.path}/{name}", "shards"))
        if known and all(entry.stamp == file.stamp and unpacked(index, entry).is_file() for _, entry in known):
            for before, entry in known:
                found.add_again(root, before, entry, index)
        else:
            found.images.append(Found(root, name, None, file.stamp, packed=Packed(root, name, file.stamp, file)))


# Unpacking: in this process, or by the workers of a cluster


@dataclass(frozen=True)
class Member:
    """An image of a shard. `path`: the shard's name and its own."""

    path: str
    content: str
    metadata: dict[str, Scalar]

    def file(self, index: Path) -> Path:
        return unpacked_path(index, self.content, PurePosixPath(self.path).suffix)


@dataclass
class Unpacked:
    """The images of a shard, and what of it could not be read."""

    images: list[Member] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # path, why
    damage: str | None = None  # what ended the reading
    failed: tuple[str, bool] | None = None  # why the shard cannot be read, and whether nothing is there
    node: str = field(default_factory=platform.node)


@dataclass(frozen=True)
class UnpackTask(Task):
    """`items`: each a `Packed`."""

    index: Path = Path()


def work_on(task: UnpackTask) -> list[Unpacked]:
    """What a worker does. Files of servers are fetched by whoever unpacks them."""
    here = [each for position, each in enumerate(task.items) if position not in task.lost]
    done = iter(_unpack_all(here, task.index, task.index / DOWNLOADS / content_of(repr(here).encode())))
    return [
        Unpacked(damage=f"kills the process that reads it ({task.lost[position]})")
        if position in task.lost
        else next(done)
        for position in range(len(task.items))
    ]


def unpack(
    found: Sources, packed: Sequence[Packed], index: Path, pool: Pool | None
) -> Generator[list[Found], None, None]:
    """The images of each. With a pool its workers read them, and this process has no image in memory."""
    try:
        if pool is None:
            for each, result in zip(packed, _unpack_all(packed, index, index / DOWNLOADS), strict=True):
                yield _added(found, each, result, index)
        elif packed:
            for task, results in pool.map(UnpackTask(some, index=index) for some in _shares(packed)):
                for each, result in zip(task.items, results, strict=True):
                    _check_node(each, result, index)
                    yield _added(found, each, result, index)
    except (RemoteError, SearchError) as error:
        raise SearchError(f"{error}; the index is as it was") from None
    finally:
        with suppress(OSError):
            (index / DOWNLOADS).rmdir()


def _shares(packed: Sequence[Packed]) -> Iterator[list[Packed]]:
    """A shard is a task of its own; images behind URLs are small."""
    for alone, some in groupby(packed, key=lambda each: is_shard(each.name)):
        waiting = list(some)
        size = 1 if alone else AT_ONCE
        yield from (waiting[at : at + size] for at in range(0, len(waiting), size))


def _check_node(packed: Packed, result: Unpacked, index: Path) -> None:
    """That a worker has seen what is here, and has unpacked it to where this process sees it."""
    if result.failed is not None and isinstance(packed.file, Path) and packed.file.exists():
        raise SearchError(
            f"{packed.file} cannot be read on the node {result.node} ({result.failed[0]}): shards must be at the same "
            "path on every node; mount them there"
        )
    file = result.images[0].file(index) if result.images else index
    if not file.exists():
        raise SearchError(
            f"{file} was written on the node {result.node} and is not here: an index of shards must be in a folder "
            "that all nodes see"
        )


def _added(found: Sources, packed: Packed, result: Unpacked, index: Path) -> list[Found]:
    """The images of a shard, and of what it was, where it cannot be read now."""
    # What stood before damage is good; without a stamp the shard is read again, and its damage told again.
    stamp = "" if result.damage is not None and isinstance(packed.file, Path) else packed.stamp
    found.images = [
        Found(packed.root, each.path, each.file(index), stamp, each.content, each.metadata) for each in result.images
    ]
    found.unreadable += result.unreadable
    at = f"{found.roots[packed.root].path.rstrip('/')}/{packed.name}"
    if result.failed is not None and isinstance(packed.file, Path):
        why, gone = result.failed
        found.keep(at, packed.file, why, index, gone=gone, root=packed.root)
    if result.damage is not None:
        found.unreadable.append((str(packed.file), result.damage))
        if isinstance(packed.file, Path):
            found.keep(at, packed.file, "is damaged", index, gone=True, root=packed.root)
    return found.images


def _unpack_all(packed: Sequence[Packed], index: Path, downloads: Path) -> Iterator[Unpacked]:
    """Files of servers are fetched ahead. What a build that was killed has unpacked is not read again."""
    remote = [each.file for each in packed if isinstance(each.file, RemoteFile) and _before(each, index) is None]
    with ExitStack() as stack:
        copies = stack.enter_context(fetched(remote, downloads)) if remote else iter(())
        for each in packed:
            result = _before(each, index)
            if result is None:
                path = each.file if isinstance(each.file, Path) else next(copies)[1]
                result = _unpack(each, path, index)
                lines = [text for line in result.unreadable for text in line]
                if result.damage is None and result.failed is None and all(map(is_text, lines)):
                    write_json(_note(each, index), asdict(result))
            yield result


def _note(packed: Packed, index: Path) -> Path:
    """Where it is written what has been unpacked, until the build is finished."""
    key = f"{packed.file}\n{packed.name}\n{packed.stamp}"
    return index / UNPACKED / f"{content_of(key.encode(errors='surrogateescape'))}.json"


def _before(packed: Packed, index: Path) -> Unpacked | None:
    note = _note(packed, index)
    try:
        result = read_json(note, Unpacked) if note.is_file() else None
    except QuintetError:  # damaged
        return None
    return result if result is not None and all(each.file(index).is_file() for each in result.images) else None


def _unpack(packed: Packed, path: Path, index: Path) -> Unpacked:
    result = Unpacked()
    try:
        with path.open("rb"):  # that it may be read
            pass
        if is_shard(packed.name):
            _unpack_shard(result, packed, path, index)
        else:
            data = read_bytes(path, LARGEST_IMAGE)
            result.images.append(_placed(packed.name, data, {"bytes": len(data)}, index))
    except CorpusError as error:
        result.damage = str(error)
    except (OSError, ValueError) as error:
        result.failed = why_not(error)
    return result


def _unpack_shard(result: Unpacked, packed: Packed, path: Path, index: Path) -> None:
    """Of a tar file, those that share a key are one image with its fields: 0001.jpg, 0001.json."""
    shown, notes = str(packed.file), Notes()
    if PurePosixPath(packed.name).suffix.lower() == ".parquet":
        for member, data, given in parquet_images(path, notes, shown):
            try:
                metadata = plain_fields(given)
            except QuintetError as error:
                result.unreadable.append((f"{shown}/{member}", f"{error}; it is indexed without these fields"))
                metadata = {}
            metadata["bytes"] = len(data)
            result.images.append(_placed(f"{packed.name}/{path_text(member)}", data, metadata, index))
        result.unreadable += [(shown, line) for line in notes.lines()]
        return
    fields: dict[str, dict[str, Scalar]] = {}
    for member, data in shard_files(path, notes, shown):
        name = PurePosixPath(member)
        metadata = fields.setdefault(str(name.parent / name.name.partition(".")[0]), {})
        if name.suffix.lower() == ".json":
            try:
                metadata |= parse_fields(data)
            except QuintetError as error:
                result.unreadable.append((f"{shown}/{member}", f"{error}; images are indexed without these fields"))
        elif name.suffix.lower() in IMAGE_SUFFIXES:
            metadata["bytes"] = len(data)
            result.images.append(_placed(f"{packed.name}/{path_text(member)}", data, metadata, index))
    result.unreadable += [(shown, line) for line in notes.lines()]


def _placed(path: str, data: bytes, metadata: dict[str, Scalar], index: Path) -> Member:
    member = Member(path, content_of(data), metadata)
    file = member.file(index)
    if not file.is_file():
        with atomic_write(file) as temporary:
            temporary.write_bytes(data)
    return member
