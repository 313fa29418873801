"""What is encoded: which contents have codes in the files of an index, and how new ones get theirs, batch by batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from quintet.cluster import Pool
from quintet.codes import Codes
from quintet.errors import ImageError
from quintet.search import SearchError
from quintet.search.encoder import Encoder
from quintet.search.found import Found, Sources
from quintet.search.index_batches import (
    Batch,
    BatchEncoder,
    Encoded,
    ImageTask,
    NotThereError,
    TextTask,
    feature_stores,
)
from quintet.search.items import ItemDatabase, Kind
from quintet.search.sources import IndexedText
from quintet.search.stores import Scalar
from quintet.search.vectors import (
    CodeWriter,
    FileSet,
    copy_rows,
    damaged_rows,
    new_name,
    read_file_sets,
    write_file_set,
)


class EncodedItems:
    """The contents of one kind that the same runs have encoded, in finished builds and in one that was killed."""

    def __init__(self, database: ItemDatabase, folder: Path, kind: Kind, encoder: str, precision: str) -> None:
        self.database, self.folder, self.kind, self.precision = database, folder, kind, precision
        self.damaged: list[str] = []  # files
        self.files, bad = FileSet(new_name(database, folder, kind), kind, encoder, {}, 0, 0.0), dict[int, str]()
        for files in read_file_sets(database).values():
            if (files.kind, files.encoder) != (kind, encoder) or files.rows <= self.files.rows:
                continue
            found = damaged_rows(database, folder, files)
            self.damaged += sorted(set(found.values()))
            if len(found) < files.rows:  # else all is encoded again, into new files
                self.files, bad = files, found
        rows = database.query("SELECT content, row, facts FROM codes WHERE file = ?", (self.files.name,))
        self.rows: dict[str, int] = {content: row for content, row, _ in rows if row not in bad}
        self.facts: dict[str, dict[str, Scalar]] = {content: json.loads(facts) for content, _, facts in rows}
        self._writer: CodeWriter | None = None
        self._must_copy, self._compacted_from = bool(bad), self.files

    def append(self, codes: Sequence[Codes], encoded: Sequence[Encoded]) -> None:
        """One `Codes` of a batch for each run. Committed when it returns: a kill costs no more than one batch."""
        if self._writer is None:
            self._writer = CodeWriter(self.database, self.folder, self.files, self.precision)

        def commit(first: int) -> None:
            self._insert({each.content: row for row, each in enumerate(encoded, first)}, encoded)

        first = self.files.rows
        self._writer.append(codes, commit)
        self.files = self._compacted_from = self._writer.files
        for row, each in enumerate(encoded, first):
            self.rows[each.content], self.facts[each.content] = row, each.facts

    def contents(self) -> np.ndarray:
        """(n,): all that have a code, sorted."""
        return np.array(sorted(self.rows), dtype=bytes)

    def compact(self, used: Collection[str]) -> None:
        """Copy the codes in use to new files where more than half of the rows are not, or some are damaged."""
        if not used or (self.files.rows <= 2 * len(used) and not self._must_copy):
            return
        self.close()
        kept = sorted(used, key=self.rows.__getitem__)
        old = np.array([self.rows[content] for content in kept], dtype=np.int64)
        self.files = copy_rows(self.database, self.folder, self.files, old, self.precision)
        self.rows = {content: row for row, content in enumerate(kept)}

    def commit(self) -> None:
        """Inside of the transaction that makes the build count."""
        if self.files is not self._compacted_from:
            self.files = replace(self.files, encoder=self._compacted_from.encoder)
            write_file_set(self.database, self.files)
            self._insert(self.rows, [Encoded(content, self.facts[content]) for content in self.rows])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _insert(self, rows: dict[str, int], encoded: Sequence[Encoded]) -> None:
        facts = ((each.content, json.dumps(each.facts, ensure_ascii=False)) for each in encoded)
        self.database.insert("codes", ((self.files.name, content, rows[content], text) for content, text in facts))


class ImageEncoder:
    """Encodes the images of sources that have no code yet: here, or on the workers of a cluster."""

    def __init__(
        self, items: EncodedItems, encoder: Encoder, *, batch_size: int, workers: int, pool: Pool | None = None
    ) -> None:
        self.items, self.encoder, self.pool = items, encoder, pool
        self.batch_size, self.workers = batch_size, workers
        self.encoded = 0

    def encode(
        self, sources: Sources, known: Sequence[str | None], progress: Callable[[int], None]
    ) -> list[str | None]:
        """The content of every image; None where it cannot be read, and `sources.unreadable` says why.

        `known`: contents of images that need not be read again.
        """
        contents = list(known)
        todo = [row for row, content in enumerate(known) if content is None or content not in self.items.rows]
        progress(len(known) - len(todo))
        for root in sorted({sources.images[row].root for row in todo}):
            rows = [row for row in todo if sources.images[row].root == root]
            corpus = sources.corpora[root].root if root in sources.corpora else None
            stores = feature_stores(self.encoder.runs, corpus)
            if stores is None:
                self.encoder.require_views()
            images = [sources.images[row] for row in rows]
            if self.pool is None:
                batches = BatchEncoder(self.encoder, self.items.rows)
                made = batches.batches(images, stores, self.batch_size, self.workers)
            else:
                made = self._on_workers(self.pool, images, corpus)
            results = self._committed(made, progress)
            for row, result in zip(rows, results, strict=True):
                contents[row] = result if isinstance(result, str) else None
                if isinstance(result, ImageError):
                    found = sources.images[row]
                    sources.unreadable.append((str(found.file or found.path), str(result)))
        return contents

    def _committed(self, batches: Iterator[Batch], progress: Callable[[int], None]) -> Iterator[str | ImageError]:
        """For each image its content, or why it cannot be read; a batch is committed before the next is looked at."""
        with closing(self.items):
            for batch in batches:
                if batch.encoded:
                    self.items.append(batch.codes, batch.encoded)
                    self.encoded += len(batch.encoded)
                progress(len(batch.contents))
                yield from batch.contents

    def _on_workers(self, pool: Pool, images: Sequence[Found], corpus: Path | None) -> Iterator[Batch]:
        def known_by_now(task: ImageTask, batch: Batch) -> ImageTask | None:
            """An earlier batch, encoded elsewhere meanwhile, had an equal image: the same batch without it."""
            known = {each.content for each in batch.encoded if each.content in self.items.rows}
            return replace(task, known=task.known | known) if known else None

        size = self.batch_size
        tasks = (ImageTask(images[at : at + size], corpus=corpus) for at in range(0, len(images), size))
        for task, batch in pool.map(tasks, known_by_now):
            for found, result in zip(task.items, batch.contents, strict=True):
                if isinstance(result, NotThereError) and found.file is not None and os.path.lexists(found.file):
                    raise SearchError(
                        f"{found.file} is here, but not on the node {result.node}: the images must be at the same path "
                        "on every node; mount them there. What is encoded is kept, and the same command goes on"
                    )
            yield batch


def encode_texts(
    items: EncodedItems,
    encoder: Encoder,
    texts: Sequence[IndexedText],
    batch_size: int,
    progress: Callable[[int], None],
    pool: Pool | None = None,
) -> int:
    """Encode what is not encoded yet; how many were."""
    contents = {text.content: text.text for text in texts}
    todo = [(content, text) for content, text in contents.items() if content not in items.rows]
    progress(len(texts) - len(todo))
    batches = [todo[at : at + batch_size] for at in range(0, len(todo), batch_size)]
    tasks = (TextTask(texts=[text for _, text in batch]) for batch in batches)
    made = (
        map(encoder.encode_texts, (task.texts for task in tasks))
        if pool is None
        else map(itemgetter(1), pool.map(tasks))
    )
    with closing(items):
        for batch, codes in zip(batches, made, strict=True):
            items.append(codes, [Encoded(content) for content, _ in batch])
            progress(len(batch))
    return len(todo)
