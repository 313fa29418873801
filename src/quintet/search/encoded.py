"""What is encoded: which contents have codes in the files of an index, and how new ones get theirs, batch by batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from quintet.backbones.tower import same_tower
from quintet.codes import Codes
from quintet.data.corpus import Corpus
from quintet.data.feature_store import FeatureStore
from quintet.data.images import decoded, image_header
from quintet.data.loading import batches_ahead
from quintet.errors import ImageError, QuintetError
from quintet.files import open_regular
from quintet.runs.devices import side_by_side
from quintet.runs.run import Run
from quintet.search.encoder import Encoder, Prepared
from quintet.search.fields import image_facts
from quintet.search.found import Found, Sources
from quintet.search.items import ItemDatabase, Kind, content_of
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

MAX_BYTES = 512 * 2**20  # of one image file


@dataclass(frozen=True)
class Encoded:
    """A content that has a code, and what was learned while the image was read (its size, its date)."""

    content: str
    facts: dict[str, Scalar] = field(default_factory=dict)


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


@dataclass(frozen=True)
class _Read:
    """An image that was looked at."""

    content: str
    facts: dict[str, Scalar] = field(default_factory=dict)
    prepared: Prepared | None = None  # None where its code is known already, or its features are read from a store


class ImageEncoder:
    """Encodes the images of sources that have no code yet."""

    def __init__(self, items: EncodedItems, encoder: Encoder, *, batch_size: int, workers: int) -> None:
        self.items, self.encoder = items, encoder
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
            stores = _stores(self.encoder.runs, sources.corpora.get(root))
            if stores is None:
                self.encoder.require_views()
            results = self._encode_root([sources.images[row] for row in rows], stores, progress)
            for row, result in zip(rows, results, strict=True):
                contents[row] = result if isinstance(result, str) else None
                if isinstance(result, ImageError):
                    found = sources.images[row]
                    sources.unreadable.append((str(found.file or found.path), str(result)))
        return contents

    def _encode_root(
        self, images: Sequence[Found], stores: list[FeatureStore] | None, progress: Callable[[int], None]
    ) -> Iterator[str | ImageError]:
        """For each image its content, or why it cannot be read."""

        def look(found: Found) -> _Read | ImageError:
            try:
                return self._look(found, stores)
            except ImageError as error:
                return error
            except MemoryError:
                return ImageError(f"{found.file} needs more memory than there is; make a smaller copy of it")

        with side_by_side(self.encoder.device) as in_parts, closing(self.items):
            for batch, results in batches_ahead(images, look, self.batch_size, self.workers):
                fresh: dict[str, tuple[Found, _Read]] = {}  # of equal images in one batch one is encoded
                for found, result in zip(batch, results, strict=True):
                    if isinstance(result, _Read) and result.content not in self.items.rows:
                        fresh.setdefault(result.content, (found, result))
                if fresh:
                    encoded = [Encoded(read.content, read.facts) for _, read in fresh.values()]
                    self.items.append(self._encode(list(fresh.values()), stores, in_parts), encoded)
                    self.encoded += len(encoded)
                progress(len(batch))
                yield from (result.content if isinstance(result, _Read) else result for result in results)

    def _look(self, found: Found, stores: list[FeatureStore] | None) -> _Read:
        if stores is not None:
            assert found.image is not None
            if any(found.image.id not in store for store in stores):
                raise ImageError(f"image {found.image.id!r} has no features; it was left out when they were made")
        if found.file is None:
            if stores is None or found.image is None:
                raise ImageError("has neither an image file nor features of the kind this run reads")
            features = [store.batch([found.image.id]).fragments for store in stores]
            return _Read(content_of(b"".join(part.numpy().tobytes() for part in features if part is not None)))
        name = str(found.file)
        with _opened(found.file) as file:
            content = content_of(file)
            if content in self.items.rows:
                return _Read(content)
            if stores is not None:
                header = image_header(file, name=name)
                return _Read(content, image_facts(header.size, header.exif))
            with decoded(file, name=name, least=self.encoder.least) as (image, header):
                facts = image_facts(header.size, header.exif)
                return _Read(content, facts, self.encoder.prepare(image, header.size))

    def _encode(
        self,
        reads: Sequence[tuple[Found, _Read]],
        stores: list[FeatureStore] | None,
        in_parts: Callable[[Callable[[Any], list[Codes]], Any], list[list[Codes]]],
    ) -> list[Codes]:
        if stores is not None:
            ids = [found.image.id for found, _ in reads if found.image is not None]
            return self.encoder.encode_batches([store.batch(ids) for store in stores])
        images = [read.prepared for _, read in reads if read.prepared is not None]
        parts = in_parts(self.encoder.encode_images, images)
        return [Codes.cat(of_run) for of_run in zip(*parts, strict=True)]


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise ImageError(f"{path} has {size >> 20} MiB, above the limit of {MAX_BYTES >> 20}")
            yield file
    except ImageError:
        raise
    except QuintetError as error:
        raise ImageError(str(error)) from None
    except OSError as error:
        raise ImageError(f"could not read {path}: {error.strerror or error}") from None


def _stores(runs: Sequence[Run], corpus: Corpus | None) -> list[FeatureStore] | None:
    """The features every run reads, where a corpus has them all; otherwise they are made of the images."""
    if corpus is None:
        return None
    found = []
    for run in runs:
        folder = corpus.root / "features" / str(run.image_input.get("name"))
        if run.image_input["kind"] == "pixels" or not (folder / "manifest.json").is_file():
            return None
        store = FeatureStore(folder)
        if not same_tower(run.image_input.get("tower"), store.manifest.get("tower")):
            return None
        found.append(store)
    return found


def encode_texts(
    items: EncodedItems,
    encoder: Encoder,
    texts: Sequence[IndexedText],
    batch_size: int,
    progress: Callable[[int], None],
) -> int:
    """Encode what is not encoded yet; how many were."""
    contents = {text.content: text.text for text in texts}
    todo = [(content, text) for content, text in contents.items() if content not in items.rows]
    progress(len(texts) - len(todo))
    with closing(items):
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            items.append(encoder.encode_texts([text for _, text in batch]), [Encoded(content) for content, _ in batch])
            progress(len(batch))
    return len(todo)
