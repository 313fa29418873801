"""Parquet files with images in them, as `datasets` and the hub write them: one row an image, or one row a caption.

train-00000-of-00010.parquet:  image {bytes, path} | caption: text, list of texts, list of {raw, sentid} | split | ids
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from quintet.data.corpus import Corpus
from quintet.data.formats import columns as columns_file
from quintet.data.formats.assembly import ImageFolder, Notes, assemble, parse_fractions
from quintet.data.formats.columns import Asked, Columns, Rows, find_columns, image_column, named_images
from quintet.data.formats.import_journal import Journal
from quintet.data.formats.shards import Shard, describe, find_shards, local_shards, read_ahead, source_name
from quintet.errors import CorpusError

PATTERNS = ("*.parquet",)
BATCH = 2**20  # bytes of rows that are decoded at once; more memory than this is given back and taken again
MOST_ROWS = 8192
PART = 256 * 2**20  # bytes of row groups after which an import that is killed goes on
OPTIONS = columns_file.OPTIONS


def read(
    source: Sequence[Path | str],
    *,
    out: ImageFolder,
    image: str | None = None,
    caption: str | None = None,
    split: str | None = None,
    id: str | None = None,
    group: str | None = None,
    language: str | None = None,
    keep: str | None = None,
    images: Path | None = None,
    restval: str = "train",
    max_captions: int | None = None,
    fractions: str = "0.8,0.1,0.1",
    seed: int = 0,
    strict: bool = False,
) -> Corpus:
    notes = Notes(strict)
    shares = parse_fractions(fractions)
    asked = Asked(image, caption, split, id, group, language, keep, images, restval, max_captions)
    shards = find_shards(source, PATTERNS, "Parquet files", notes)
    rows = Rows(out, asked, notes)
    journal = Journal(out, {"files": describe(shards), "part": PART, "options": str((asked, strict))}, notes)
    for entry in journal.entries():
        rows.know(entry)
    with local_shards([shard for shard in shards if _end(shard) not in journal], out.out) as local:
        for shard, path in local:
            _read_file(shard, path, rows, asked, journal)
    del rows
    name = source_name(source)
    return assemble(name, journal.all_entries(), notes, fractions=shares, seed=seed, splits=("train", "dev", "test"))


def _end(shard: Shard) -> str:
    return f"{shard}: all"


@contextmanager
def _opened(path: Path, shown: str) -> Iterator[Any]:
    """A Parquet file; `shown` in messages, also of what goes wrong while it is read."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise CorpusError(
            f"{shown}: Parquet needs pyarrow, which comes with the extra `data`: pip install 'quintet-retrieval[data]'"
        ) from None
    try:
        # Neither mapped nor read ahead: a row group may be larger than the memory.
        checked = {"page_checksum_verification": True}  # of files that have checksums
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20, **checked) as file:
            yield file
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CorpusError(f"{shown} cannot be read as Parquet: {error}; fetch it again, or leave it out") from None


def _read_file(shard: Shard, path: Path, rows: Rows, asked: Asked, journal: Journal) -> None:
    with _opened(path, str(shard)) as file:
        columns = find_columns(file.schema_arrow, asked, str(shard))
        first = 0
        for part in _parts(file.metadata):
            if part.name(shard) not in journal:
                journal.add(part.name(shard), _entries(file, part, columns, first, shard, rows))
            first += part.rows
        journal.add(_end(shard), ())


def parquet_images(path: Path, notes: Notes, shown: str) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """The images of a file: a name, the bytes, and the row's texts and numbers. `shown`: the file in messages.

    An image that comes again, as in files of one row a caption, is passed over.
    """
    seen: dict[str, bytes] = {}  # name -> checksum
    with _opened(path, shown) as file:
        image, fields = image_column(file.schema_arrow, shown)
        first = 0
        for part in _parts(file.metadata):
            for batch in file.iter_batches(
                _rows_at_once(part), row_groups=list(part.groups), columns=[image, *fields], use_threads=False
            ):
                values = [batch.column(name).to_pylist() for name in fields]
                for row, found in enumerate(named_images(batch.column(image)), first):
                    if found is None:
                        notes.skip("rows without an image", f"row {row}")
                        continue
                    content, given = found
                    checksum = hashlib.sha256(content).digest()
                    name = f"{row:06d}{given}" if given.startswith(".") else PurePosixPath(given).name
                    if seen.get(name) == checksum:
                        continue
                    if name in seen:
                        name = f"{row:06d}-{name}"
                    seen[name] = checksum
                    of_row = [column[row - first] for column in values]
                    yield name, content, dict(zip(fields, of_row, strict=True))
                first += batch.num_rows


class _Part:
    """Row groups that are imported before the next mark in the journal."""

    def __init__(self, first: int) -> None:
        self.groups = range(first, first)
        self.rows = self.bytes = 0

    def name(self, shard: Shard) -> str:
        return f"{shard}: row groups {self.groups.start} to {self.groups.stop - 1}"


def _parts(metadata: Any) -> Iterator[_Part]:
    part = _Part(0)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        part.groups = range(part.groups.start, number + 1)
        part.rows += group.num_rows
        part.bytes += group.total_byte_size
        if part.bytes >= PART:
            yield part
            part = _Part(number + 1)
    if part.rows:
        yield part


def _rows_at_once(part: _Part) -> int:
    return max(1, min(MOST_ROWS, BATCH * part.rows // max(part.bytes, 1)))


def _entries(file: Any, part: _Part, columns: Columns, first: int, shard: Shard, rows: Rows) -> Iterator[Any]:
    batches = file.iter_batches(
        _rows_at_once(part), row_groups=list(part.groups), columns=columns.all, use_threads=False
    )
    stem = shard.name.partition(".")[0]
    for batch in read_ahead(batches):
        yield from rows.entries(batch, columns, first, str(shard), stem, shard.split)
        first += batch.num_rows
