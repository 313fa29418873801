"""CUHK-PEDES: a JSON list of {"split", "file_path", "captions": [...], "id"}; every person (id) is a group.

ICFG-PEDES and RSTPReid have the same list, RSTPReid with "img_path".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import Entry, Notes, assemble, given_or_found, split_name, value_of
from quintet.errors import CorpusError
from quintet.files import read_json

NAMES = ("reid_raw.json", "CUHK-PEDES.json", "caption_all.json")
FILE_ORDER = {"train": 34_054, "dev": 3_078, "test": 3_074}  # images, in the order of the file
OPTIONS = {
    "images": "the folder that `file_path` starts from (usually imgs)",
    "file_order": "true: for caption_all.json, which has no `split` field, cut the 40,206 images into "
    "34,054 / 3,078 / 3,074 by their order in the file",
    "strict": "true: a missing image or an empty caption is an error instead of a note",
}


def read(source: Path, *, images: Path | None = None, file_order: bool = False, strict: bool = False) -> Corpus:
    return read_people("cuhk-pedes", source, NAMES, "file_path", images, strict, file_order)


def read_people(
    name: str,
    source: Path,
    names: Sequence[str],
    field: str,
    images: Path | None,
    strict: bool,
    file_order: bool = False,
) -> Corpus:
    """`field`: the one with the path of the image."""
    folder = source if source.is_dir() else source.parent
    path = given_or_found(None if source.is_dir() else source, folder, names, "JSON file", "SOURCE")
    rows = read_json(path)
    if not isinstance(rows, list):
        raise CorpusError(f"{path}: expected a list of images; is it {' or '.join(names)} of {name}?")
    root = given_or_found(images, folder, ("imgs", "images", "pictures"), "folder of images", "images")
    notes = Notes(strict)
    splits = _splits_by_order(rows, path) if file_order else None
    return assemble(name, _entries(rows, path, root, splits, field), notes, splits=("train", "dev", "test"))


def _splits_by_order(rows: list[Any], path: Path) -> list[str]:
    if len(rows) != sum(FILE_ORDER.values()):
        raise CorpusError(
            f"{path} has {len(rows):,} images, but file_order splits a file of exactly {sum(FILE_ORDER.values()):,}; "
            "use a file with a `split` field"
        )
    return [split for split, count in FILE_ORDER.items() for _ in range(count)]


def _entries(rows: list[Any], path: Path, root: Path, splits: list[str] | None, field: str) -> Iterator[Entry]:
    for number, row in enumerate(rows):
        where = f"{path}: image {number}"
        if splits is None and isinstance(row, dict) and "split" not in row:
            raise CorpusError(
                f"{where} lacks the field 'split' (caption_all.json has none: use reid_raw.json, or the option "
                "file_order=true)"
            )
        file, captions = value_of(row, field, str, where), value_of(row, "captions", object, where)
        person = str(value_of(row, "id", int | str, where))
        split = splits[number] if splits is not None else split_name(value_of(row, "split", str, where))
        if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
            raise CorpusError(f"{where} ({file}): 'captions' must be a list of texts, found {captions!r:.60}")
        yield Entry(file, captions, split, root / file, group=person)
