"""Rows of a caption table, whatever its format, with the number people would use to find them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintet.data.formats.assembly import read_text
from quintet.errors import CorpusError, QuintetError
from quintet.files import read_jsonl

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def read_table(path: Path, delimiter: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) pairs; any other suffix than .tsv, .jsonl and .parquet is read as CSV with a header line."""
    if path.suffix == ".jsonl":
        return _jsonl(path)
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


def _jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        yield from enumerate(read_jsonl(path), 1)
    except CorpusError:
        raise
    except QuintetError as error:
        raise CorpusError(str(error)) from None


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise CorpusError(
            f"{path}: Parquet needs pyarrow, which comes with the extra `data`: pip install 'quintet[data]'"
        ) from None
    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read as Parquet: {error}") from None
