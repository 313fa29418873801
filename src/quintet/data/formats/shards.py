"""The files of a source that is read one after another: tar shards, Parquet files; on this machine or behind URLs."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TypeVar, cast

from quintet.data.formats.assembly import Notes, files_below, split_name
from quintet.data.remote import RemoteFile, fetched, list_files, shown_url
from quintet.errors import CorpusError

T = TypeVar("T")
DOWNLOADS = ".quintet-downloads"  # in OUT, while a source behind URLs is read


@dataclass(frozen=True)
class Shard:
    name: str  # below its source
    file: Path | RemoteFile
    stamp: str  # the same stamp, the same content

    def __str__(self) -> str:
        return str(self.file)

    @cached_property
    def split(self) -> str | None:
        """The split that its name begins with, or that of its folder inside the source."""
        path = PurePosixPath(self.name)
        for name in (path.name, path.parent.name):
            word = "".join(letter if letter.isalpha() else " " for letter in name.lower()).split()
            if word and split_name(word[0]) in ("train", "dev", "test"):
                return split_name(word[0])
        return None


def find_shards(sources: Sequence[Path | str], patterns: Sequence[str], what: str, notes: Notes) -> list[Shard]:
    """All files that match, in a stable order; a file that is named itself may have any name."""
    found: dict[str, Shard] = {}
    for source in sources:
        for shard in _find(source, patterns, notes):
            found.setdefault(shard.file.url if isinstance(shard.file, RemoteFile) else str(shard), shard)
    if not found:
        raise CorpusError(f"{', '.join(map(str, sources))}: there are no {what} ({', '.join(patterns)})")
    return list(found.values())


def _find(source: Path | str, patterns: Sequence[str], notes: Notes) -> Iterator[Shard]:
    if isinstance(source, str):
        for file in list_files(source, patterns):
            yield Shard(file.name, file, file.stamp)
    elif source.is_dir():
        for path in files_below(source, notes):
            if any(map(path.match, patterns)) and not path.name.startswith("."):
                yield _local(path, path.relative_to(source).as_posix())
    elif source.exists():
        yield _local(source, source.name)
    else:
        paths = sorted(glob.glob(str(source), recursive=True))  # noqa: PTH207  # may be absolute
        if not paths:
            raise CorpusError(f"{source} does not exist")
        for path in map(Path, paths):
            if path.is_file():
                yield _local(path, path.name)


def _local(path: Path, name: str) -> Shard:
    try:
        facts = path.stat()
    except OSError as error:
        raise CorpusError(f"could not read {path}: {error.strerror or error}") from None
    return Shard(name, path, f"{facts.st_size}:{facts.st_mtime_ns}")


@contextmanager
def local_shards(shards: Sequence[Shard], out: Path) -> Iterator[Iterator[tuple[Shard, Path]]]:
    """The shards with the files that hold them now; those behind URLs are fetched ahead."""
    remote = {id(shard.file): shard for shard in shards if isinstance(shard.file, RemoteFile)}
    if not remote:
        yield ((shard, shard.file) for shard in shards if isinstance(shard.file, Path))
        return
    files = [shard.file for shard in shards if isinstance(shard.file, RemoteFile)]
    with fetched(files, out / DOWNLOADS) as copies:
        yield _in_order(shards, copies)


def _in_order(shards: Sequence[Shard], copies: Iterator[tuple[RemoteFile, Path]]) -> Iterator[tuple[Shard, Path]]:
    for shard in shards:
        yield shard, shard.file if isinstance(shard.file, Path) else next(copies)[1]


def read_ahead(parts: Iterator[T]) -> Iterator[T]:
    """The same parts; the next one is read by a thread while one is written. What reading raises is raised here."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        part: T | object = next(parts, end)
        while part is not end:
            following = pool.submit(next, parts, end)
            yield cast(T, part)
            part = following.result()


def describe(shards: Sequence[Shard]) -> list[list[str]]:
    """What the header of an import's journal says of its files."""
    return [[str(shard), shard.stamp] for shard in shards]


def source_name(sources: Sequence[Path | str]) -> str:
    """The name of a corpus from where its files are.

    >>> source_name([Path("data/cc3m")]), source_name(["s3://bucket/cc3m/{00..99}.tar"]), source_name([Path("a/1.tar")])
    ('cc3m', 'cc3m', '1')
    """
    first = sources[0]
    if isinstance(first, Path):
        parts: Sequence[str] = first.resolve().parts
    else:
        parts = shown_url(first).split("/")[3 if first.startswith("http") else 2 :]  # of http without the server
    plain = [part for part in parts if part and not set(part) & set("{}*?[]")]
    return plain[-1].split(".")[0] if plain else "corpus"
