"""What the readers share: reading lines, notes on what was skipped, image files, splits, and assembling a corpus."""

from __future__ import annotations

import filecmp
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from quintet.data.corpus import Corpus, Image, Text, is_text
from quintet.errors import CorpusError, QuintetError
from quintet.files import atomic_write, make_folder, open_regular, read_bytes, read_jsonl, remove_empty

LARGEST_TEXT = 2**30  # bytes of a file with captions
LONGEST_NAME = 200  # bytes of an image's path below OUT/images; a longer one is replaced by its checksum


@dataclass(slots=True)
class Entry:
    """One image as a source describes it."""

    id: str
    captions: list[str]  # including empty ones: the position numbers the text
    split: str | None  # None: chosen by hash
    path: Path | None = None
    group: str | None = None  # None: the image is a group of its own
    extra: dict[str, Any] = field(default_factory=dict)
    numbers: list[int] | None = None  # of the captions, where the source numbers them; None: 0, 1, 2, ...
    caption_facts: list[dict[str, Any]] | None = None  # of each caption's row: caption_id, language
    more: bool = False  # further captions, with their numbers, of an image that an entry before has


class Notes:
    """Counts what was left out, with the first example of each kind. Where `strict`, leaving out is an error."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.found: dict[str, list[Any]] = {}  # what -> how many, and the first
        self._said: list[str] = []

    def skip(self, what: str, example: object) -> None:
        """Something is missing or broken in the source and is left out."""
        if self.strict:
            raise CorpusError(f"{what}: {example}; mend the source, or import without `strict` to leave it out")
        self.leave_out(what, example)

    def leave_out(self, what: str, example: object, count: int = 1) -> None:
        """Something is left out on purpose, also where `strict`."""
        self.found.setdefault(what, [0, str(example)])[0] += count

    def say(self, text: str) -> None:
        self._said.append(text)

    def lines(self) -> list[str]:
        """
        >>> notes = Notes()
        >>> notes.skip("empty captions", "7#1")
        >>> notes.skip("empty captions", "9#0")
        >>> notes.lines()
        ['skipped 2 empty captions, first 7#1']
        """
        return [*self._said, *(f"skipped {count} {what}, first {first}" for what, (count, first) in self.found.items())]


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, stripped. Only a newline ends a line: captions may hold any other separator."""
    rows = read_text(path).split("\n")
    if not rows[-1]:
        rows.pop()  # what follows the last newline
    return [row.strip() for row in rows]


def read_text(path: Path) -> str:
    """A whole UTF-8 file; an undecodable byte is reported with its line."""
    try:
        data = read_bytes(path, LARGEST_TEXT)
    except QuintetError as error:
        raise CorpusError(str(error)) from None
    return decode(data, str(path))


def decode(data: bytes, where: str) -> str:
    """UTF-8 with or without a byte order mark."""
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorpusError(
            f"{where}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8, for instance with "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from None


def value_of(row: Any, key: str, kind: type | UnionType, where: str) -> Any:
    """A field that a row of JSON must have.

    >>> value_of({"split": 3}, "split", str, "images[7]")
    Traceback (most recent call last):
        ...
    quintet.errors.CorpusError: images[7]: 'split' must be of type str, found 3
    """
    if not isinstance(row, dict):
        raise CorpusError(f"{where} must be an object, found {row!r:.60}")
    if key not in row:
        raise CorpusError(f"{where} lacks {key!r}")
    if not isinstance(row[key], kind):
        name = getattr(kind, "__name__", str(kind))
        raise CorpusError(f"{where}: {key!r} must be of type {name}, found {row[key]!r:.60}")
    return row[key]


def files_below(folder: Path, notes: Notes) -> list[Path]:
    """All files in a folder and below it, sorted; links to folders are not followed."""
    found: list[Path] = []
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else found).append(Path(entry.path))
        except OSError as error:
            notes.skip("folders that cannot be read", f"{error.filename}: {error.strerror}")
    return sorted(found)


IMAGE_FOLDERS = (  # usual names of Flickr8k's and Flickr30k's
    "images", "Images", "pictures", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr8k-images",
    "flickr30k-images", "flickr30k_images", "Flickr30k_Dataset",
)  # fmt: skip
SPLIT_NAMES = {"training": "train", "val": "dev", "valid": "dev", "validation": "dev", "testing": "test"}


def split_name(name: str) -> str:
    """The name Quintet uses for a split: train, dev, test; other names stay.

    >>> [split_name(name) for name in ("Train", "validation", "extra")]
    ['train', 'dev', 'extra']
    """
    return SPLIT_NAMES.get(name.strip().lower(), name.strip().lower())


def find(folder: Path, names: Sequence[str], what: str, option: str) -> Path:
    """The first of some usual names (patterns) that exists in a folder; "." is the folder itself."""
    for name in names:
        found = [folder] if name == "." else sorted(folder.glob(name))  # glob(".") is an error in Python 3.11
        if found:
            return found[0]
    raise CorpusError(f"no {what} in {folder} (looked for {', '.join(names)}); name it with the option {option}=PATH")


def given_or_found(given: Path | None, folder: Path, names: Sequence[str], what: str, option: str) -> Path:
    """The path the user gave (relative to the working directory, else to the source), or a usual name."""
    if given is None:
        return find(folder, names, what, option)
    for candidate in (given, folder / given):
        if candidate.exists():
            return candidate
    raise CorpusError(f"{what} {given} does not exist (option {option})")


COPIED = "copied"  # a field of images.jsonl: an import wrote the image file
_IS_COPIED = {COPIED: True}  # one for all rows: a million of their own would take 200 MB


class ImageFolder:
    """`OUT/images`, where an import writes images. Only files that an earlier import wrote are replaced.

    `progress` is called with (images so far, None).
    """

    def __init__(self, out: Path, progress: Callable[[int, int | None], None] | None = None) -> None:
        self.out = out
        self.resumed = False  # a killed import of the same source has written what is found here
        self.journal: Path | None = None  # removed with the images by `undo`
        self._progress = progress
        self._done = 0
        self._names: set[str] = set()
        self._written: set[str] = set()
        self._new: list[str] = []  # relative to `out`
        with suppress(QuintetError):  # no earlier import, or a damaged one: then nothing is replaced
            self._written = {row["path"] for row in read_jsonl(out / "images.jsonl") if row.get(COPIED)}
        earlier = any(path.startswith("pictures/") for path in self._written)  # the name that the folder had
        self._folder = "pictures" if earlier else "images"

    def add(self, id_: str, suffix: str, content: Path | bytes | memoryview) -> tuple[Path, dict[str, Any]]:
        """Write an image, a copy of a file or bytes. Its path, and the fields for its row of images.jsonl."""
        name = f"{self._folder}/{image_name(id_, suffix, self._names)}"
        path = self.out / name
        self._done += 1
        if self._progress is not None and self._done % 100 == 0:
            self._progress(self._done, None)
        if self._create(path, content):
            self._new.append(name)
            return path, _IS_COPIED
        written = name in self._written
        if path.is_file() and _holds(path, content):
            if self.resumed and not written:
                self._new.append(name)
            return path, _IS_COPIED if written or self.resumed else {}
        if not written and not (path.is_file() and _begins(path, content)):
            raise CorpusError(
                f"{path} is in the way of an image, and no import is known to have written it; move it, "
                "or choose another folder"
            )
        with atomic_write(path, sync=False) as temporary:
            if isinstance(content, Path):
                shutil.copyfile(content, temporary)
            else:
                temporary.write_bytes(content)
        if not written:
            self._new.append(name)
        return path, _IS_COPIED

    def holds(self, path: Path, content: bytes | memoryview) -> bool:
        """Whether an image that was added has this content."""
        return _holds(path, content)

    def known(self, name: str) -> None:
        """An image that a killed import of the same source has added, relative to `out`."""
        self._names.add(name.removeprefix(f"{self._folder}/").lower())

    def _create(self, path: Path, content: Path | bytes | memoryview) -> bool:
        """Write a file that is not there yet; without a temporary one, which takes as long again for a small image.

        A kill leaves the beginning of the image, which the next import recognises.
        """
        try:
            try:
                handle = _open_new(path)
            except FileNotFoundError:
                make_folder(path.parent)
                handle = _open_new(path)
        except (FileExistsError, NotADirectoryError):
            return False
        except OSError as error:
            raise QuintetError(f"could not write {path}: {error.strerror or error}") from error
        try:
            try:
                if isinstance(content, Path):
                    with content.open("rb") as source, os.fdopen(handle, "wb", closefd=False) as file:
                        shutil.copyfileobj(source, file, 2**20)
                else:
                    rest = memoryview(content)
                    while rest:
                        rest = rest[os.write(handle, rest) :]
            finally:
                os.close(handle)
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise QuintetError(f"could not write {path}: {error.strerror or error}") from error
            raise
        return True

    def settle(self) -> None:
        """What was added is in the journal now, from which `undo` knows it."""
        self._new = []

    def close(self) -> None:
        """Nothing more is added; the names of a million images take 150 MB."""
        self._names = set()

    def undo(self) -> None:
        """Remove what was added, after a failure."""
        for name in itertools.chain(self._new, _journalled(self.journal)):
            path = self.out / name
            if name not in self._written:
                path.unlink(missing_ok=True)
                remove_empty(folder for folder in path.parents if self.out in folder.parents)
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)
        self._names, self._new, self.journal = set(), [], None


def _journalled(journal: Path | None) -> Iterator[str]:
    """The images that an import has written, by its journal."""
    for _, row in () if journal is None else read_journal(journal):
        if row.get(COPIED) and not row.get("more"):
            yield row["path"]


def read_journal(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a journal and where they end, up to the first that a kill has cut."""
    end = 0
    with open_regular(path) as file:
        for line in file:
            end += len(line)
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                return
            if not isinstance(row, dict):
                return
            yield end, row


def _open_new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _holds(path: Path, content: Path | bytes | memoryview) -> bool:
    if isinstance(content, Path):
        return path.samefile(content) or filecmp.cmp(path, content, shallow=False)
    return path.stat().st_size == len(content) and path.read_bytes() == content


def _begins(path: Path, content: Path | bytes | memoryview) -> bool:
    """Whether a file holds the beginning of an image and no more: a killed import left it."""
    size = path.stat().st_size
    if isinstance(content, Path):
        with content.open("rb") as source:
            content = source.read(size + 1)
    return size < len(content) and path.read_bytes() == content[:size]


def image_name(id_: str, suffix: str, taken: set[str]) -> str:
    """A file name for an image, made of its id, that stays inside its folder and differs from those taken.

    >>> taken = set()
    >>> [image_name(id_, ".jpg", taken) for id_ in ("a/1", "../1.jpg", "A/1", "/etc/x")]
    ['a/1.jpg', '1.jpg', 'A/1-2.jpg', 'etc/x.jpg']
    """
    stem = id_ if _PLAIN.fullmatch(id_) else _plain_stem(id_, suffix)
    if len(stem.encode()) > LONGEST_NAME:
        stem = hashlib.sha256(stem.encode()).hexdigest()
    name, number = f"{stem}{suffix}", 1
    while name.lower() in taken:  # lower-case: some file systems do not tell A from a
        number += 1
        name = f"{stem}-{number}{suffix}"
    taken.add(name.lower())
    return name


_PLAIN = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")  # nearly all ids


def _plain_stem(id_: str, suffix: str) -> str:
    parts = [part for part in id_.replace("\\", "/").split("/") if part.strip(". \0")]
    # A folder is never called like an image: a.jpg/b.jpg may stand beside a.jpg.
    parts[:-1] = [f"{part}_" if suffix and part.lower().endswith(suffix.lower()) else part for part in parts[:-1]]
    stem = "/".join(part.replace("\0", "").replace(":", "_") for part in parts) or "image"
    return stem[: -len(suffix)] if suffix and stem.lower().endswith(suffix.lower()) else stem


def parse_fractions(fractions: str) -> dict[str, float]:
    """
    >>> parse_fractions("0.8,0.1,0.1")
    {'train': 0.8, 'dev': 0.1, 'test': 0.1}
    """
    try:
        values = [float(part) for part in fractions.split(",")]
    except ValueError:
        values = []
    if len(values) != 3 or min(values) < 0 or abs(sum(values) - 1) > 1e-6:
        raise CorpusError(f"fractions={fractions}: expected three shares of train, dev, test that sum to 1")
    return dict(zip(("train", "dev", "test"), values, strict=True))


def split_by_hash(group: str, fractions: dict[str, float], seed: int = 0) -> str:
    """A split that depends on the group's name only: a group stays where it is when others are added.

    >>> [split_by_hash(str(n), {"train": 0.5, "test": 0.5}) for n in range(4)]
    ['test', 'test', 'test', 'train']
    """
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    position, limit = int.from_bytes(digest[:8], "big") / 2**64, 0.0
    for name, share in fractions.items():
        limit += share
        if position < limit:
            return name
    return max(fractions, key=lambda name: fractions[name])  # by rounding, the shares can sum to just below 1


def assemble(
    name: str,
    entries: Iterable[Entry],
    notes: Notes,
    *,
    fractions: dict[str, float] | None = None,
    seed: int = 0,
    splits: Sequence[str] = (),
) -> Corpus:
    """A corpus of entries: empty captions, missing images and groups without a text are left out with a note.

    `splits` fixes the order of the splits; others follow as they appear.
    """
    images: list[Image] = []
    texts: list[Text] = []
    split_of: dict[str, str | None] = {}  # of each group, in the order in which they come
    for entry in _with_images(entries, notes):
        group = entry.group if entry.group is not None else entry.id
        if split_of.setdefault(group, entry.split) != entry.split:
            raise CorpusError(
                f"group {group!r} is in both split {split_of[group]!r} and split {entry.split!r} (image {entry.id!r}); "
                "all images of a group belong to one split"
            )
        if not entry.more:
            images.append(Image(entry.id, group, None if entry.path is None else str(entry.path), entry.extra))
        numbers, facts = entry.numbers or range(len(entry.captions)), entry.caption_facts or itertools.repeat(_NO_FACTS)
        for number, caption, extra in zip(numbers, entry.captions, facts, strict=entry.caption_facts is not None):
            id_ = f"{entry.id}#{number}"
            if not isinstance(caption, str):
                raise CorpusError(f"{name}: caption {id_!r} is {type(caption).__name__}, not text")
            if not is_text(caption):
                notes.skip("captions that UTF-8 cannot hold", id_)
                continue
            if not caption.strip():
                notes.skip("empty captions", id_)
                continue
            texts.append(Text(id_, group, caption.strip(), None if entry.group is None else entry.id, extra))
    described = {text.group for text in texts}
    for image in images:
        if image.group not in described:
            notes.skip("images without a caption", image.id)
    images = [image for image in images if image.group in described]
    if not images:
        raise CorpusError(f"{name}: nothing to import. {'; '.join(notes.lines()) or 'The source has no images'}")
    chosen = _splits(split_of, described, fractions, seed, splits, notes)
    del split_of, described  # of a million images 150 MB, which the checks of the corpus need
    return Corpus(name, images, texts, chosen, notes=notes.lines())


_NO_FACTS: dict[str, Any] = {}  # one for all texts


def _with_images(entries: Iterable[Entry], notes: Notes) -> Iterator[Entry]:
    for entry in entries:
        if not all(map(is_text, (entry.id, str(entry.path or ""), entry.group or ""))):
            notes.skip("images whose names UTF-8 cannot hold", entry.path or entry.id)
        elif entry.path is None or entry.extra.get(COPIED):  # an import has written it
            yield entry
        elif not is_file(entry.path):
            notes.skip("images that do not exist", entry.path)
        elif not os.access(entry.path, os.R_OK):
            notes.skip("images that may not be read", entry.path)
        else:
            yield entry


def is_file(path: Path) -> bool:
    """Whether a path that a source names is a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a null byte
        return False


def _splits(
    split_of: dict[str, str | None],
    described: set[str],
    fractions: dict[str, float] | None,
    seed: int,
    order: Sequence[str],
    notes: Notes,
) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {name: [] for name in order}
    for group, split in split_of.items():
        if group not in described:
            continue
        if split is None:
            assert fractions is not None, "entries without a split need fractions"
            split = split_by_hash(group, fractions, seed)
        result.setdefault(split, []).append(group)
    for name in [name for name, groups in result.items() if not groups]:
        notes.say(f"split {name!r} came out empty and was left out")
        del result[name]
    return result
