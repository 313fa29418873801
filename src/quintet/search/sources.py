"""What an index is made of: images of folders, corpora and tar shards with what is known of them, and texts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import ExifTags
from PIL.Image import Exif

from quintet.data.corpus import Corpus, Image
from quintet.data.formats.assembly import Notes, read_lines
from quintet.data.formats.webdataset import PATTERNS, shard_files
from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import CorpusError
from quintet.files import atomic_write, read_jsonl
from quintet.search import SearchError
from quintet.search.index_folder import Root, RootKind
from quintet.search.items import Entry
from quintet.search.stores import Scalar
from quintet.search.stores.store import is_text
from quintet.search.stores.where import FIELD, LARGEST_INTEGER

# Images to a person, but not to Pillow as it is installed: named, not passed over in silence.
OTHER_IMAGES = (".heic", ".heif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".psd")
Before = Mapping[tuple[str, str], Entry]  # images of the last build by the path of their root and their own
LONGEST_VALUE = 1_000  # characters of a value; a filter needs no more
LONGEST_TEXT = 10_000  # characters of a text, of an index or a query
# Dates as cameras write them: when it was taken, when it was digitised, when the file was changed.
_DATES = (ExifTags.Base.DateTimeOriginal, ExifTags.Base.DateTimeDigitized, ExifTags.Base.DateTime)


@dataclass(frozen=True)
class Found:
    """An image of a source."""

    root: int
    path: str  # relative to the root, with forward slashes; of a shard's member "shard.tar/name.jpg"
    file: Path | None  # where its bytes are; None: only features are known
    stamp: str  # the same stamp, the same content
    content: str | None = None  # checksum, where it is known already
    metadata: dict[str, Scalar] = field(default_factory=dict)
    image: Image | None = None  # the row of a corpus


@dataclass
class Sources:
    roots: list[Root] = field(default_factory=list)
    images: list[Found] = field(default_factory=list)
    corpora: dict[int, Corpus] = field(default_factory=dict)  # by root
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # path, why

    def add_root(self, kind: RootKind, path: Path) -> int:
        self.roots.append(Root(kind, str(path.resolve())))
        return len(self.roots) - 1


def file_stamp(facts: os.stat_result) -> str:
    """Size and time of change of a file."""
    return f"{facts.st_size}:{facts.st_mtime_ns}"


def content_of(data: bytes) -> str:
    """The checksum by which an image is known, wherever it lies."""
    return hashlib.sha256(data).hexdigest()[:32]


def numbered(contents: Sequence[str]) -> list[str]:
    """Ids from contents: equal ones are told apart by a number, in order.

    >>> numbered(["ab", "cd", "ab"])
    ['ab', 'cd', 'ab-2']
    """
    seen: dict[str, int] = {}
    ids = []
    for content in contents:
        seen[content] = seen.get(content, 0) + 1
        ids.append(content if seen[content] == 1 else f"{content}-{seen[content]}")
    return ids


def find_images(sources: Sequence[Path], index: Path, *, split: str | None, before: Before) -> Sources:
    """Everything in the sources that looks like an image. `split`: of corpora, only this split.

    An empty source is refused: it may be a disk that is not mounted, and would empty the index.
    """
    found = Sources()
    for source in dict.fromkeys(sources):
        if not source.exists():
            raise SearchError(f"{source} does not exist; the index is as it was")
        count = len(found.images)
        if (source / "corpus.json").is_file():
            _find_in_corpus(found, source.resolve(), split)
        elif source.is_dir():
            _find_in_folder(found, source, index, before)
        elif _is_shard(source):
            find_in_shards(found, source.parent, [source], index, before)
        else:
            _add_file(found, found.add_root("folder", source.parent), source.parent, source)
        if len(found.images) == count:
            refused = f", the first because: {found.unreadable[0][1]}" if found.unreadable else ""
            raise SearchError(
                f"{source} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no tar shards{refused}; "
                "the index is as it was"
            )
    found.images = _once(found)
    return found


def _once(found: Sources) -> list[Found]:
    """The images without those of folders that a source before has named: a folder inside another, or a file of one."""
    seen: set[str] = set()
    images = []
    for image in found.images:
        if image.file is not None and found.roots[image.root].kind == "folder":
            path = os.path.abspath(image.file)  # noqa: PTH100  # links are not followed: they are other paths
            if path in seen:
                continue
            seen.add(path)
        images.append(image)
    return images


def _find_in_folder(found: Sources, source: Path, index: Path, before: Before) -> None:
    files = list(_walk(source))
    shards = [path for path in files if _is_shard(path)]
    images = [path for path in files if path.suffix.lower() in (*IMAGE_SUFFIXES, *OTHER_IMAGES)]
    if shards and not images:
        find_in_shards(found, source, shards, index, before)
        return
    root = found.add_root("folder", source)
    for path in images:
        _add_file(found, root, source, path)


def _walk(folder: Path) -> Iterator[Path]:
    """Files in a stable order; hidden ones are passed over."""
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(name) / file for file in sorted(files) if not file.startswith("."))


def _is_shard(path: Path) -> bool:
    return any(path.match(pattern) for pattern in PATTERNS)


def _add_file(found: Sources, root: int, start: Path, path: Path) -> None:
    why = _refusal(path, start)
    if why is not None:
        found.unreadable.append((os.fsencode(path).decode("utf-8", "replace"), why))
        return
    facts = path.stat()
    metadata = sidecar(path) | file_facts(facts.st_size, facts.st_mtime_ns)
    found.images.append(Found(root, path.relative_to(start).as_posix(), path, file_stamp(facts), metadata=metadata))


def _refusal(path: Path, start: Path) -> str | None:
    if path.suffix.lower() in OTHER_IMAGES:
        return f"{path.suffix} images cannot be read; export it as JPEG or PNG"
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    if not path.resolve().is_relative_to(start.resolve()):
        return "a link that leads out of the indexed folder; index the folder it leads to"
    if not path.is_file():
        return "a link to nothing, or not a file"
    return None


def _find_in_corpus(found: Sources, source: Path, split: str | None) -> None:
    corpus = Corpus.open(source)
    images = corpus.images if split is None else corpus.split(split).images
    paths = {image.id: corpus.image_path(image).resolve() for image in images if image.path is not None}
    outside = [path.parent for path in paths.values() if not path.is_relative_to(source)]
    inside_root = _add_corpus_root(found, corpus, source)
    # Imported images may have stayed where they were: that folder is then a root of its own.
    elsewhere = Path(os.path.commonpath(outside)) if outside else source
    outside_root = _add_corpus_root(found, corpus, elsewhere) if outside else inside_root
    for image in images:
        if image.path is None:
            found.images.append(Found(inside_root, "", None, "", metadata=_corpus_facts(image), image=image))
            continue
        path = paths[image.id]
        if not path.is_file():
            found.unreadable.append((str(path), "does not exist; was it moved or deleted?"))
            continue
        here, start = (inside_root, source) if path.is_relative_to(source) else (outside_root, elsewhere)
        facts = path.stat()
        metadata = _corpus_facts(image) | file_facts(facts.st_size, facts.st_mtime_ns)
        name = path.relative_to(start).as_posix()
        found.images.append(Found(here, name, path, file_stamp(facts), metadata=metadata, image=image))


def _add_corpus_root(found: Sources, corpus: Corpus, folder: Path) -> int:
    root = found.add_root("corpus", folder)
    found.corpora[root] = corpus
    return root


def _corpus_facts(image: Image) -> dict[str, str | int | float | bool]:
    return plain_fields(image.extra) | {"image": image.id, "group": image.group}


# Tar shards: their images are unpacked into the index, named by their content, so that they can be shown


def find_in_shards(
    found: Sources, start: Path, shards: Sequence[Path], index: Path, before: Mapping[tuple[str, str], Entry]
) -> None:
    """`before`: entries of the last build; a shard that did not change since is not read again."""
    root = found.add_root("shards", start)
    source = found.roots[root].path
    for shard in shards:
        name, stamp = shard.relative_to(start).as_posix(), file_stamp(shard.stat())
        kept = [entry for (where, path), entry in before.items() if where == source and path.startswith(f"{name}/")]
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
            file = _unpacked_path(index, content, path.suffix)
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
    return _unpacked_path(index, entry.content, PurePosixPath(entry.item.path or "").suffix)


def _unpacked_path(index: Path, content: str, suffix: str) -> Path:
    return index / "images" / content[:2] / f"{content}{suffix.lower()}"


# Metadata: size and date from the file, all else from a JSON file beside it


def image_facts(size: tuple[int, int], exif: Exif) -> dict[str, Scalar]:
    """Fields from the image itself; `date`, `time` and `year` only where its EXIF says when it was taken."""
    facts: dict[str, Scalar] = {"width": size[0], "height": size[1]}
    taken = exif_date(exif)
    if taken is not None:
        facts |= {"date": taken.date().isoformat(), "time": taken.time().isoformat("seconds"), "year": taken.year}
    return facts


def exif_date(exif: Exif) -> datetime | None:
    """When an image was taken.

    >>> exif = Exif()
    >>> exif[ExifTags.Base.DateTime] = "2024:05:01 10:11:12"
    >>> exif_date(exif)
    datetime.datetime(2024, 5, 1, 10, 11, 12)
    """
    found: dict[int, Any] = dict(exif)
    with contextlib.suppress(KeyError, ValueError, TypeError, OSError, SyntaxError):  # damaged EXIF is no EXIF
        found |= exif.get_ifd(ExifTags.IFD.Exif)
    for tag in _DATES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(str(found.get(tag, "")).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S")
    return None


def file_facts(size: int, changed_ns: int) -> dict[str, Scalar]:
    """
    >>> file_facts(1024, 1714557600 * 10**9)
    {'bytes': 1024, 'modified': '2024-05-01'}
    """
    return {"bytes": size, "modified": datetime.fromtimestamp(changed_ns / 1e9, UTC).date().isoformat()}


def sidecar(image: Path) -> dict[str, Scalar]:
    """The fields of `photo.jpg.json` or `photo.json` beside `photo.jpg`; none where there is no such file."""
    for path in (image.with_name(image.name + ".json"), image.with_suffix(".json")):
        try:
            value = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        return plain_fields(value)
    return {}


def plain_fields(value: Any) -> dict[str, Scalar]:
    """The fields that filters can compare: texts, numbers, true and false. Lists and objects are left out.

    >>> plain_fields({"album": "sea", "taken at": 4, "tags": ["a"], "none": None})
    {'album': 'sea', 'taken_at': 4}
    """
    if not isinstance(value, Mapping):
        return {}
    return {_field_name(str(key)): field for key, field in value.items() if _is_plain(field)}


def _field_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if FIELD.fullmatch(plain) else f"_{plain}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_VALUE and is_text(value)
    if isinstance(value, int):  # booleans too
        return abs(value) <= LARGEST_INTEGER
    return isinstance(value, float) and math.isfinite(value)


# Texts


@dataclass(frozen=True)
class IndexedText:
    text: str
    metadata: dict[str, Scalar] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The checksum by which a text is known."""
        return f"text-{hashlib.sha256(self.text.encode()).hexdigest()[:32]}"


def find_texts(source: Path, *, split: str | None = None) -> list[IndexedText]:
    """Of a corpus; of a .jsonl file, whose rows have `text` and any other fields; or of a file with one a line."""
    if (source / "corpus.json").is_file():
        corpus = Corpus.open(source)
        texts = corpus.texts if split is None else corpus.split(split).texts
        found = [IndexedText(text.text, {"caption": text.id, "group": text.group}) for text in texts]
    elif not source.is_file():
        raise SearchError(f"{source} is neither a file of texts nor a corpus; the index is as it was")
    elif source.suffix.lower() == ".jsonl":
        found = [_from_row(source, number, row) for number, row in enumerate(read_jsonl(source), 1)]
    else:
        found = [IndexedText(line) for line in read_lines(source)]
    found = [text for text in found if text.text.strip()]
    if not found:
        raise SearchError(f"{source} holds no texts; the index is as it was")
    for number, text in enumerate(found, 1):
        if not is_text(text.text) or len(text.text) > LONGEST_TEXT:
            raise SearchError(f"{source}, text {number}: no text, or more than {LONGEST_TEXT:,} characters")
    return found


def _from_row(source: Path, number: int, row: dict[str, object]) -> IndexedText:
    text = row.get("text")
    if not isinstance(text, str):
        raise SearchError(f"{source}, row {number}: no field `text` with a text")
    return IndexedText(text, plain_fields({key: row[key] for key in row if key != "text"}))
