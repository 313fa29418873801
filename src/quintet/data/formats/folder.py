"""Your own pictures, with captions in a table (CSV, TSV, JSONL, Parquet) or in .txt files beside the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import Entry, Notes, assemble, parse_fractions, read_lines, split_name
from quintet.data.formats.tables import SUFFIXES, read_table
from quintet.data.pictures import PICTURE_SUFFIXES
from quintet.errors import CorpusError, suggest

USUAL = {
    "image": (
        "image",
        "picture",
        "file_name",
        "filename",
        "file",
        "path",
        "image_path",
        "filepath",
        "image_name",
        "img",
    ),
    "caption": ("caption", "captions", "text", "texts", "sentence", "sentences", "description", "comment"),
    "split": ("split", "subset", "partition"),
    "group": ("group", "identity", "person_id"),
}
OWN_FILES = ("images.jsonl", "texts.jsonl")  # a corpus that was written into its own source
OPTIONS = {
    "table": "the caption table, where the folder holds several",
    "pictures": "the folder that the table's file names start from",
    "image": "the column with the picture's file name",
    "caption": "the column with the caption (or a list of them); several columns as A,B,C",
    "split": "the column with the split; without one, groups are split by a hash of their name",
    "group": "the column that says which pictures belong together; without one every picture is a group",
    "delimiter": "what separates the columns of a text table, when neither .csv nor .tsv says so",
    "fractions": "shares of train, dev and test where there is no split column",
    "seed": "another number gives another split by hash",
    "strict": "true: a missing picture or an empty caption is an error instead of a note",
}


def read(
    source: Path,
    *,
    table: Path | None = None,
    pictures: Path | None = None,
    image: str | None = None,
    caption: str | None = None,
    split: str | None = None,
    group: str | None = None,
    delimiter: str | None = None,
    fractions: str = "0.8,0.1,0.1",
    seed: int = 0,
    strict: bool = False,
) -> Corpus:
    notes = Notes(strict)
    shares = parse_fractions(fractions)
    folder = source if source.is_dir() else source.parent
    path = _table(source, table)
    entries: Iterator[Entry] | list[Entry]
    if path is None:
        entries = _sidecar(folder)
    else:
        asked = {"image": image, "caption": caption, "split": split, "group": group}
        entries = _from_table(path, asked, delimiter, pictures)
    return assemble(folder.resolve().name, entries, notes, fractions=shares, seed=seed, splits=("train", "dev", "test"))


def _table(source: Path, given: Path | None) -> Path | None:
    if source.is_file():
        return source
    if given is not None:
        path = given if given.exists() else source / given
        if not path.is_file():
            raise CorpusError(f"the table {given} does not exist, neither here nor in {source}")
        return path
    found = [path for path in sorted(source.iterdir()) if path.suffix in SUFFIXES and path.name not in OWN_FILES]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CorpusError(f"{source} holds several tables ({names}); say which with the option table=NAME")
    return found[0] if found else None


def _sidecar(folder: Path) -> Iterator[Entry]:
    """Pictures in a folder and below it; captions one a line in NAME.txt or NAME.jpg.txt."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in PICTURE_SUFFIXES or path.name.startswith("."):
            continue
        beside = [text for text in (path.with_suffix(".txt"), path.with_name(f"{path.name}.txt")) if text.is_file()]
        captions = [line for text in beside[:1] for line in read_lines(text) if line]
        yield Entry(path.relative_to(folder).as_posix(), captions, None, path)


def _from_table(path: Path, asked: dict[str, str | None], delimiter: str | None, pictures: Path | None) -> list[Entry]:
    roots = (
        [pictures] if pictures is not None else [path.parent, *(path.parent / name for name in ("images", "pictures"))]
    )
    entries: dict[str, Entry] = {}
    columns: dict[str, list[str]] = {}
    for number, row in read_table(path, delimiter):
        columns = columns or _columns(asked, list(row), path)
        where = f"{path}, row {number}"
        id_ = _text(row, columns["image"][0], where)
        entry = Entry(
            id_,
            [caption for column in columns["caption"] for caption in _captions(row, column, where)],
            split_name(_text(row, columns["split"][0], where)) if columns["split"] else None,
            _locate(id_, roots),
            _text(row, columns["group"][0], where) if columns["group"] else None,
        )
        known = entries.setdefault(id_, entry)
        if known is entry:
            continue
        if (known.split, known.group) != (entry.split, entry.group):
            raise CorpusError(f"{where}: picture {id_!r} was in another split or group before")
        known.captions.extend(entry.captions)
    return list(entries.values())


def _columns(asked: dict[str, str | None], present: list[str], path: Path) -> dict[str, list[str]]:
    """The columns to read for each role; split and group may have none."""
    columns: dict[str, list[str]] = {}
    lower = {name.lower().strip(): name for name in present}
    for role, usual in USUAL.items():
        given = asked[role]
        if given is not None:
            columns[role] = given.split(",")
            for name in columns[role]:
                if name not in present:
                    raise CorpusError(f"{path} has no column {name!r}; {suggest(name, present)}")
            continue
        found = [lower[name] for name in usual if name in lower]
        if not found and role in ("image", "caption"):
            raise CorpusError(
                f"{path}: no {role} column among {', '.join(present)}; name it with the option {role}=COLUMN"
            )
        columns[role] = found[:1]
    return columns


def _text(row: dict[str, Any], column: str, where: str) -> str:
    value = row.get(column)
    if isinstance(value, int):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise CorpusError(f"{where}: column {column!r} should hold text, found {value!r:.60}")
    return value.strip()


def _captions(row: dict[str, Any], column: str, where: str) -> list[str]:
    value = row.get(column)
    captions = value if isinstance(value, list) else ["" if value is None else value]
    if not all(isinstance(caption, str) for caption in captions):
        raise CorpusError(f"{where}: column {column!r} should hold a caption or a list of them, found {value!r:.60}")
    return captions


def _locate(name: str, roots: list[Path]) -> Path:
    for root in roots:
        if (root / name).is_file():
            return root / name
    return roots[0] / name
