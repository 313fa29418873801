"""`Corpus`: images, texts, and which belong together.

Three tables: images, texts, splits. A text is relevant to an image when both carry the same *group*, so five
captions per image, one caption per image and several images of one person are the same case. Rows are addressed by id.

On disk a corpus is a folder:

    corpus.json     {"format": "quintet-corpus", "version": 1, "name": ..., "notes": [...], "checksums": {...}}
    images.jsonl    {"id": "12", "group": "12", "path": "images/12.jpg", ...anything else}
    texts.jsonl     {"id": "12#0", "group": "12", "text": "A dog.", "image": "12", ...}     ("image" is optional)
    splits.json     {"train": ["12", ...groups], "dev": [...], "test": [...]}
    features/NAME/  see `quintet.data.feature_store`
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.vocabulary import split_words
from quintet.errors import CorpusError, QuintetError, suggest
from quintet.files import (
    begin_folder,
    check_shape,
    checksums,
    read_header,
    read_json,
    read_jsonl,
    user_path,
    verify_checksums,
    write_json,
    write_jsonl,
)

FORMAT, VERSION = "quintet-corpus", 1
HEADER, TABLES = "corpus.json", ("images.jsonl", "texts.jsonl", "splits.json")
MAX_WORDS = 1_000  # a longer "text" is a mistake in the source, and would cost memory in every batch it is in


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    group: str
    path: str | None = None  # relative to the corpus folder, or absolute; None where only features exist
    extra: dict[str, Any] = field(default_factory=dict)  # objects with boxes, size, url: kept, never interpreted


@dataclass(frozen=True, slots=True)
class Text:
    id: str
    group: str
    text: str
    image: str | None = None  # the image it was written for; None: any image of the group
    extra: dict[str, Any] = field(default_factory=dict, hash=False)  # caption_id (the source's number), language: kept


@dataclass(frozen=True)
class Split:
    """The part of a corpus whose groups are in one split, with groups as dense integers 0..n_groups-1."""

    name: str
    images: list[Image]
    texts: list[Text]
    groups: list[str]  # code -> group
    image_groups: np.ndarray  # (n_images,) int64 codes
    text_groups: np.ndarray  # (n_texts,) int64 codes

    @cached_property
    def images_of_text(self) -> list[np.ndarray]:
        """For each text the rows of the images it may be paired with: its own image, or all of its group."""
        row_of = {image.id: row for row, image in enumerate(self.images)}
        of_group = rows_by_group(self.image_groups, len(self.groups))
        return [
            np.array([row_of[text.image]]) if text.image is not None else of_group[code]
            for text, code in zip(self.texts, self.text_groups, strict=True)
        ]

    @cached_property
    def texts_of_image(self) -> list[np.ndarray]:
        """For each image the rows of the texts it may be paired with: the mirror of `images_of_text`."""
        rows: list[list[int]] = [[] for _ in self.images]
        for text, images in enumerate(self.images_of_text):
            for image in images:
                rows[image].append(text)
        return [np.array(texts, dtype=np.int64) for texts in rows]

    @cached_property
    def texts_of_group(self) -> list[np.ndarray]:
        return rows_by_group(self.text_groups, len(self.groups))

    @cached_property
    def images_of_group(self) -> list[np.ndarray]:
        return rows_by_group(self.image_groups, len(self.groups))

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the ids and groups, in order: data addressed by row is for the split with this checksum."""
        digest = hashlib.sha256()
        digest.update("".join(f"image\t{row.id}\t{row.group}\n" for row in self.images).encode())
        digest.update("".join(f"text\t{row.id}\t{row.group}\n" for row in self.texts).encode())
        return digest.hexdigest()

    def without_images(self, dropped: Collection[str]) -> Split:
        """The split without some images: their own texts go too, and groups without images or texts afterwards."""
        images = [image for image in self.images if image.id not in dropped]
        texts = [text for text in self.texts if text.image not in dropped]
        left = {image.group for image in images} & {text.group for text in texts}
        return _make_split(self.name, [group for group in self.groups if group in left], images, texts)

    def take_groups(self, codes: Sequence[int]) -> Split:
        """The split cut down to some of its groups, in the order given (folds, dev cuts, small trials)."""
        return _make_split(self.name, [self.groups[code] for code in codes], self.images, self.texts)


@dataclass(frozen=True)
class _Head:
    name: str
    notes: list[str] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=dict)


def read_corpus_head(folder: Path) -> dict[str, Any]:
    """corpus.json, checked."""
    missing = f"{folder} is not a corpus (no finished {HEADER}); make one with `quintet data import FORMAT SOURCE OUT`"
    return read_header(folder / HEADER, FORMAT, VERSION, missing)


def split_checksum(split: Split) -> str:
    """SHA-256 of the ids and groups of a split, in order."""
    return split.checksum


def rows_by_group(groups: np.ndarray, count: int) -> list[np.ndarray]:
    """For each group code, the rows that carry it, ascending.

    >>> [rows.tolist() for rows in rows_by_group(np.array([0, 1, 0]), 2)]
    [[0, 2], [1]]
    """
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.cumsum(np.bincount(groups, minlength=count)))[:count]


class Corpus:
    """Images, texts and splits, checked when made. `root` is where relative image paths start."""

    def __init__(
        self,
        name: str,
        images: Iterable[Image],
        texts: Iterable[Text],
        splits: dict[str, list[str]],
        root: Path | str = ".",
        notes: Sequence[str] = (),
    ) -> None:
        self.name = _printable(name)
        self.root = Path(root)
        self.images = list(images)
        self.texts = list(texts)
        self.splits = splits
        self.notes = [_printable(note) for note in notes]  # what the importer skipped or changed, in words
        self._check_types()
        self._check()

    def _check_types(self) -> None:
        """Tables may be written by hand or made from file names: everything must be text that UTF-8 can hold."""
        for kind, rows in (("image", self.images), ("text", self.texts)):
            for row in rows:
                optional = row.path if isinstance(row, Image) else row.image
                values = (row.id, row.group, *([row.text] if isinstance(row, Text) else []), optional)
                if not all(map(is_text, values if optional is not None else values[:-1])):
                    raise CorpusError(
                        f"corpus {self.name!r}: {kind} {row.id!r:.80}: id, group, path, text and image must be "
                        f"strings that UTF-8 can hold, found {values!r:.200}"
                    )
        lists = self.splits.values() if isinstance(self.splits, dict) else [None]
        if not all(isinstance(groups, list) and all(map(is_text, groups)) for groups in lists):
            raise CorpusError(f"corpus {self.name!r}: splits must be an object of lists of groups, as strings")

    def _check(self) -> None:
        where = f"corpus {self.name!r}"
        for kind, rows in (("image", self.images), ("text", self.texts)):
            twice = [id_ for id_, count in Counter(row.id for row in rows).items() if count > 1]
            if twice:
                raise CorpusError(
                    f"{where}: {len(twice)} {kind} ids occur more than once, first {twice[0]!r}; ids must be unique"
                )
        for text in self.texts:
            if not text.text.strip():
                raise CorpusError(f"{where}: text {text.id!r} is empty; remove it from the source or give it words")
            words = _count_words(text.text) if len(text.text) > MAX_WORDS else 0
            if words > MAX_WORDS:
                raise CorpusError(
                    f"{where}: text {text.id!r} has {words} words (limit {MAX_WORDS}); "
                    "is the source one caption a line?"
                )
        group_of = {image.id: image.group for image in self.images}
        for text in self.texts:
            if text.image is not None and group_of.get(text.image) != text.group:
                raise CorpusError(
                    f"{where}: text {text.id!r} names image {text.image!r}, which is not in its group {text.group!r}"
                )
        with_images = set(group_of.values())
        with_texts = {text.group for text in self.texts}
        for name, groups in self.splits.items():
            if len(set(groups)) != len(groups):
                raise CorpusError(f"{where}: split {name!r} lists a group twice")
            for kind, present in (("images", with_images), ("texts", with_texts)):
                missing = [group for group in groups if group not in present]
                if missing:
                    raise CorpusError(
                        f"{where}: {len(missing)} groups of split {name!r} have no {kind}, first {missing[0]!r}; "
                        "a group needs at least one of each to be trained on or measured"
                    )

    def __repr__(self) -> str:
        splits = ", ".join(self.splits)
        return f"<Corpus {self.name!r}: {len(self.images)} images, {len(self.texts)} texts, splits {splits}>"

    def split(self, name: str) -> Split:
        if name not in self.splits:
            raise CorpusError(f"corpus {self.name!r} has no split {name!r}; {suggest(name, self.splits)}")
        return _make_split(name, self.splits[name], self.images, self.texts)

    def image_path(self, image: Image) -> Path:
        """Where the image file is."""
        if image.path is None:
            raise CorpusError(f"image {image.id!r} of corpus {self.name!r} has features only, no image file")
        return self.root / image.path  # an absolute path stays itself

    def save(self, folder: Path | str) -> None:
        """Write the tables. A corpus in `folder` is replaced; files of the same names that are no corpus are kept.

        `CorpusError` names a file that is in the way.
        """
        folder = user_path(folder)
        begin_folder(folder, HEADER, FORMAT, TABLES)
        write_jsonl(folder / "images.jsonl", (_image_row(image) for image in self.images))
        write_jsonl(folder / "texts.jsonl", (_text_row(text) for text in self.texts))
        write_json(folder / "splits.json", self.splits)
        head = {"format": FORMAT, "version": VERSION, "name": self.name, "notes": self.notes}
        write_json(folder / HEADER, head | {"checksums": checksums(folder, TABLES)})

    @staticmethod
    def open(folder: Path | str) -> Corpus:
        """Read a corpus folder, as `quintet data import` and `quintet.import_corpus` write it."""
        folder = user_path(folder)
        head = check_shape(read_corpus_head(folder), _Head, str(folder / HEADER))
        try:
            images = [_read_image(row) for row in read_jsonl(folder / "images.jsonl")]
            texts = [_read_text(row) for row in read_jsonl(folder / "texts.jsonl")]
            splits = read_json(folder / "splits.json")
            corpus = Corpus(head.name, images, texts, splits, root=folder, notes=head.notes)
            known = {name: head.checksums[name] for name in TABLES if name in head.checksums}
            verify_checksums(folder, known, f"import it again, or, if you changed it, delete checksums in {HEADER}")
        except KeyError as error:
            raise CorpusError(f"{folder}: a row lacks the field {error}") from None
        except CorpusError:
            raise
        except QuintetError as error:
            raise CorpusError(str(error)) from None
        return corpus


def as_corpus(corpus: Corpus | Path | str) -> Corpus:
    """A corpus, or its folder opened."""
    return corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)


def is_text(value: object) -> bool:
    """Whether a value is a string that UTF-8 can hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, or a file name in another encoding
        return False
    return True


def _count_words(text: str) -> int:
    return len(text.split() if text.isascii() else split_words(text))  # some scripts have no spaces


def _printable(text: str) -> str:
    """Bytes of a file name that are not UTF-8 become \\udc.. escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _make_split(name: str, groups: Sequence[str], images: Sequence[Image], texts: Sequence[Text]) -> Split:
    code_of = {group: code for code, group in enumerate(groups)}
    # Ordered by group, so that folds of consecutive groups are folds of consecutive rows.
    chosen_images = sorted((row for row in images if row.group in code_of), key=lambda row: code_of[row.group])
    chosen_texts = sorted((row for row in texts if row.group in code_of), key=lambda row: code_of[row.group])
    return Split(
        name,
        chosen_images,
        chosen_texts,
        list(groups),
        np.array([code_of[row.group] for row in chosen_images], dtype=np.int64),
        np.array([code_of[row.group] for row in chosen_texts], dtype=np.int64),
    )


def _image_row(image: Image) -> dict[str, Any]:
    row: dict[str, Any] = {"id": image.id, "group": image.group}
    if image.path is not None:
        row["path"] = image.path
    return image.extra | row  # an extra field never replaces an id


def _read_image(row: dict[str, Any]) -> Image:
    extra = {key: value for key, value in row.items() if key not in ("id", "group", "path")}
    return Image(row["id"], row["group"], row.get("path"), extra)


def _text_row(text: Text) -> dict[str, Any]:
    row = {"id": text.id, "group": text.group, "text": text.text}
    return text.extra | (row if text.image is None else row | {"image": text.image})


def _read_text(row: dict[str, Any]) -> Text:
    extra = {key: value for key, value in row.items() if key not in ("id", "group", "text", "image")}
    return Text(row["id"], row["group"], row["text"], row.get("image"), extra)
