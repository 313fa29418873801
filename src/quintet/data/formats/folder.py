"""Your own images, with captions in a table (CSV, TSV, JSONL, Parquet) or in .txt files beside the images."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus
from quintet.data.formats.assembly import (
    Entry,
    Notes,
    assemble,
    files_below,
    is_file,
    parse_fractions,
    read_lines,
    read_text,
    split_name,
)
from quintet.data.images import IMAGE_SUFFIXES
from quintet.errors import CorpusError, suggest
from quintet.files import lies_in, read_jsonl

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
    "images": "the folder that the table's file names start from",
    "image": "the column with the image's file name",
    "caption": "the column with the caption (or a list of them); several columns as A,B,C",
    "split": "the column with the split; without one, groups are split by a hash of their name",
    "group": "the column that says which images belong together; without one every image is a group",
    "delimiter": "what separates the columns of a text table, when neither .csv nor .tsv says so",
    "fractions": "shares of train, dev and test where there is no split column",
    "seed": "another number gives another split by hash",
    "strict": "true: a missing image or an empty caption is an error instead of a note",
}
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def read(
    source: Path,
    *,
    table: Path | None = None,
    images: Path | None = None,
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
        entries = _sidecar(folder, notes)
    else:
        asked = {"image": image, "caption": caption, "split": split, "group": group}
        entries = _from_table(path, asked, delimiter, images, notes)
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


def _sidecar(folder: Path, notes: Notes) -> Iterator[Entry]:
    """Images in a folder and below it; captions one a line in NAME.txt or NAME.jpg.txt."""
    top = os.path.realpath(folder)
    for path in files_below(folder, notes):
        if path.suffix.lower() not in IMAGE_SUFFIXES or path.name.startswith("."):
            continue
        beside = [text for text in (path.with_suffix(".txt"), path.with_name(f"{path.name}.txt")) if is_file(text)]
        if not all(lies_in(each, top) for each in (path, *beside[:1])):
            notes.skip("images that are, or whose caption files are, links out of the folder", path)
            continue
        try:
            captions = [line for text in beside[:1] for line in read_lines(text) if line]
        except CorpusError as error:
            notes.skip("images whose caption file is damaged", error)
            continue
        yield Entry(path.relative_to(folder).as_posix(), captions, None, path)


def _from_table(
    path: Path, asked: dict[str, str | None], delimiter: str | None, images: Path | None, notes: Notes
) -> list[Entry]:
    roots = [images] if images is not None else [path.parent, *(path.parent / name for name in ("images", "pictures"))]
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
            raise CorpusError(f"{where}: image {id_!r} was in another split or group before")
        known.captions.extend(entry.captions)
    inside = [os.path.realpath(root) for root in roots]
    kept = []
    for entry in entries.values():
        if entry.path is None or any(lies_in(entry.path, root) for root in inside):
            kept.append(entry)
        else:
            notes.skip("images outside of the table's folder (images=FOLDER names another)", str(entry.path))
    return kept


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
        if is_file(root / name):
            return root / name
    return roots[0] / name


def read_table(path: Path, delimiter: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) pairs; any other suffix than .tsv, .jsonl and .parquet is read as CSV with a header line."""
    if path.suffix == ".jsonl":
        return enumerate(read_jsonl(path), 1)
    if path.suffix == ".parquet":
        return _parquet(path)
    return _delimited(path, delimiter or ("\t" if path.suffix == ".tsv" else ","))


def _delimited(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # In a TSV a quotation mark that opens a caption need not close it; only a field quoted as a whole is unquoted.
    plain = delimiter == "\t"
    try:
        reader = csv.DictReader(
            io.StringIO(read_text(path), newline=""),
            delimiter=delimiter,
            quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
        )
        for row in reader:
            if None in row or None in row.values():
                raise CorpusError(
                    f"{path}, line {reader.line_num}: {len(reader.fieldnames or ())} columns in the header, another "
                    "number here; is a caption with a separator in it not quoted?"
                )
            yield reader.line_num, {key: _unquote(value) for key, value in row.items()} if plain else row
    except (csv.Error, TypeError) as error:
        raise CorpusError(f"{path} cannot be read as a table: {error}") from None


def _unquote(value: str) -> str:
    """
    >>> [_unquote(value) for value in ('"a ""b"" c"', '"Go" sign', '"Stop" and "Go"', '"')]
    ['a "b" c', '"Go" sign', '"Stop" and "Go"', '"']
    """
    inner = value[1:-1]
    whole = len(value) > 1 and value[0] == value[-1] == '"' and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if whole else value


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise CorpusError(
            f"{path}: Parquet needs pyarrow, which comes with the extra `data`: pip install 'quintet-retrieval[data]'"
        ) from None
    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CorpusError(f"{path} cannot be read as Parquet: {error}") from None
