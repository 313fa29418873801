"""Tar shards: files that share a key are one image with its captions. Images are unpacked into the corpus.

shard-000.tar:  0001.jpg  0001.txt (one caption a line)  or  0001.json ({"caption": ...})
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from quintet.data.corpus import Corpus, is_text
from quintet.data.formats.assembly import (
    Entry,
    ImageFolder,
    Notes,
    assemble,
    decode,
    parse_fractions,
)
from quintet.data.formats.import_journal import Journal
from quintet.data.formats.shards import Shard, describe, find_shards, local_shards, read_ahead, source_name
from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import CorpusError, QuintetError
from quintet.files import open_regular

PART = 2**20  # bytes of a shard that are read while what came before is written
MAX_BYTES = 256 * 2**20  # of one file in a shard
PATTERNS = ("*.tar", "*.tar.gz", "*.tgz")
CAPTION_KEYS = ("caption", "captions", "text", "texts", "sentence", "sentences")
OPTIONS = {
    "caption": "the field of key.json with the caption or the list of captions",
    "fractions": "shares of train, dev and test for shards whose names do not begin with train, val, dev or test",
    "seed": "another number gives another split by hash",
    "strict": "true: an image or a caption that is missing is an error instead of a note",
}


@dataclass
class _Sample:
    captions: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)  # of key.json
    image: Path | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # of the image's row


def read(
    source: Sequence[Path | str],
    *,
    out: ImageFolder,
    caption: str | None = None,
    fractions: str = "0.8,0.1,0.1",
    seed: int = 0,
    strict: bool = False,
) -> Corpus:
    notes = Notes(strict)
    shares = parse_fractions(fractions)
    shards = find_shards(source, PATTERNS, "tar shards", notes)
    journal = Journal(out, {"files": describe(shards), "caption": caption, "strict": strict}, notes)
    read_shards(shards, out, caption, notes, journal)
    name = source_name(source)
    return assemble(name, journal.all_entries(), notes, fractions=shares, seed=seed, splits=("train", "dev", "test"))


def read_shards(shards: Sequence[Shard], out: ImageFolder, caption: str | None, notes: Notes, journal: Journal) -> None:
    """Unpack those that the journal does not have yet."""
    seen = {entry.id: "a shard before it" for entry in journal.entries()}
    with local_shards([shard for shard in shards if str(shard) not in journal], out.out) as local:
        for shard, path in local:
            journal.add(str(shard), _entries(shard, path, out, caption, notes, seen))


def _entries(
    shard: Shard, path: Path, out: ImageFolder, caption: str | None, notes: Notes, seen: dict[str, str]
) -> Iterator[Entry]:
    name = str(shard)
    for key, sample in _samples(path, name, out, caption, notes, seen).items():
        if sample.image is None:
            notes.skip("samples without an image", f"{PurePosixPath(name).name}:{key}")
            continue
        seen[key] = name
        captions = sample.captions + [text for text in sample.more if text not in sample.captions]
        yield Entry(key, captions, shard.split, sample.image, extra=sample.extra)


def _samples(
    path: Path, shard: str, folder: ImageFolder, caption: str | None, notes: Notes, seen: dict[str, str]
) -> dict[str, _Sample]:
    samples: dict[str, _Sample] = {}
    for name, data in chain.from_iterable(read_ahead(_parts(shard_files(path, notes, shard)))):
        parent, _, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")  # a key ends at the first dot
        key, suffix = f"{parent}/{stem}" if parent else stem, f".{suffix.lower()}"
        if "." in parent or "//" in name:  # without these nothing is to be made plain, which takes long
            key = PurePosixPath(key).as_posix()
        if key in seen:
            raise CorpusError(f"key {key!r} is in {seen[key]} and in {shard}; keys must be unique")
        sample = samples.setdefault(key, _Sample())
        where = f"{shard}:{name}"
        if suffix in IMAGE_SUFFIXES:
            if sample.image is not None:
                raise CorpusError(f"{where}: the key {key!r} has an image already; keys must be unique")
            sample.image, sample.extra = folder.add(key, suffix, data)
        elif suffix in (".txt", ".json"):
            try:
                text = decode(data, where)
                if suffix == ".txt":
                    sample.captions += [line for line in text.split("\n") if line.strip()]
                else:
                    sample.more += _json_captions(text, caption, where)
            except CorpusError as error:
                notes.skip("caption files that are damaged", error)
    return samples


def _parts(files: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """The files of a shard, a megabyte or more at a time; those before an error come before it."""
    part: list[tuple[str, bytes]] = []
    size, failed = 0, None
    try:
        for name, data in files:
            part.append((name, data))
            size += len(data)
            if size >= PART:
                yield part
                part, size = [], 0
    except CorpusError as error:
        failed = error
    yield part
    if failed is not None:
        raise failed


def shard_files(shard: Path, notes: Notes, shown: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Plain files with harmless names; nothing is ever unpacked by tarfile itself. `shown`: the name for messages."""
    shown = shown or str(shard)
    short = shown.rpartition("/")[2]
    try:
        with open_regular(shard) as raw, _unpacked(raw) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                if member.isdir() or member.name.rpartition("/")[2].startswith("."):
                    continue
                if not is_text(member.name):
                    notes.leave_out("files in shards whose names are not UTF-8", f"{short}:{member.name}")
                elif not member.isfile():
                    notes.leave_out("links and special files in shards", f"{short}:{member.name}")
                elif member.name.startswith("/") or ".." in member.name.split("/"):
                    notes.leave_out("files whose names point out of the shard", f"{short}:{member.name}")
                elif member.size > MAX_BYTES:
                    notes.leave_out(f"files of more than {MAX_BYTES >> 20} MiB", f"{short}:{member.name}")
                else:
                    file = tar.extractfile(member)
                    assert file is not None  # it is a plain file
                    yield member.name, file.read()
            _require_end(tar)
    except CorpusError:
        raise
    except QuintetError as error:
        raise CorpusError(str(error)) from None
    except _DAMAGE as error:
        raise CorpusError(f"{shown} is damaged or cut short: {error}; fetch it again") from None


# What tarfile and the decoders raise on damaged archives.
_DAMAGE = (
    tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, ArithmeticError, LookupError,
    TypeError, MemoryError, RecursionError, struct.error,
)  # fmt: skip


def _unpacked(raw: BufferedReader) -> BinaryIO:
    magic = raw.peek(6)[:6]
    unpack = next((unpack for start, unpack in _PACKED.items() if magic.startswith(start)), None)
    return cast(BinaryIO, _Bounded(raw if unpack is None else unpack(raw)))


_PACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class _Bounded:
    """A stream of which nothing is read that is larger than a file in a shard may be, such as a header of gigabytes."""

    def __init__(self, stream: Any) -> None:
        self.seek, self.tell, self.close, self._read = stream.seek, stream.tell, stream.close, stream.read

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_BYTES + tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return cast(bytes, self._read(size))

    def __enter__(self) -> _Bounded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _require_end(tar: tarfile.TarFile) -> None:
    """An archive ends with zeros; tarfile also stops, without a word, at a damaged header or where a file is cut."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("no end mark where the last file ends")
    while tar.fileobj.read(2**20):  # to the end of a compressed stream, where its checksum is compared
        pass


def _json_captions(text: str, given: str | None, where: str) -> list[str]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where} is not valid JSON: {error}") from None
    found = [row[key] for key in ((given,) if given else CAPTION_KEYS) if isinstance(row, dict) and key in row]
    if not found:
        return []
    captions = found[0] if isinstance(found[0], list) else [found[0]]
    if not all(isinstance(caption, str) for caption in captions):
        raise CorpusError(f"{where}: the caption is not text: {found[0]!r:.60}")
    return captions
