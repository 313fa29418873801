"""Codes of what is new in an index: read, checked, encoded and written batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from quintet.backbones.extractor import same_tower
from quintet.codes import Codes
from quintet.data.corpus import Corpus
from quintet.data.feature_store import FeatureStore
from quintet.data.images import image_header, open_image
from quintet.data.loading import batches_ahead
from quintet.errors import ImageError
from quintet.runs.devices import cores_for_decoding
from quintet.runs.run import Run
from quintet.search.codebook import Codebook
from quintet.search.encoder import Encoder, Prepared
from quintet.search.found import Found, Sources, content_of
from quintet.search.metadata import image_facts
from quintet.search.segments import Coded
from quintet.search.stores import Scalar
from quintet.search.texts import IndexedText

MAX_BYTES = 512 * 2**20  # of one image file


@dataclass(frozen=True)
class _Read:
    """An image that was looked at."""

    content: str
    facts: dict[str, Scalar] = field(default_factory=dict)
    prepared: Prepared | None = None  # None where its code is known already, or its features are read from a store


class ImageCoder:
    """Encodes the images of sources that have no code yet."""

    def __init__(self, book: Codebook, encoder: Encoder, *, batch_size: int, workers: int) -> None:
        self.book, self.encoder = book, encoder
        self.batch_size, self.workers = batch_size, workers
        self.encoded = 0

    def code(self, sources: Sources, known: Sequence[str | None], progress: Callable[[int], None]) -> list[str | None]:
        """The content of every image; None where it cannot be read, and `sources.unreadable` says why.

        `known`: contents of images that need not be read again.
        """
        contents = list(known)
        todo = [row for row, content in enumerate(known) if content is None or content not in self.book.places]
        progress(len(known) - len(todo))
        for root in sorted({sources.images[row].root for row in todo}):
            rows = [row for row in todo if sources.images[row].root == root]
            stores = _stores(self.encoder.runs, sources.corpora.get(root))
            if stores is None:
                self.encoder.require_views()
            results = self._code_root([sources.images[row] for row in rows], stores, progress)
            for row, result in zip(rows, results, strict=True):
                contents[row] = result if isinstance(result, str) else None
                if isinstance(result, ImageError):
                    found = sources.images[row]
                    sources.unreadable.append((str(found.file or found.path), str(result)))
        return contents

    def _code_root(
        self, pictures: Sequence[Found], stores: list[FeatureStore] | None, progress: Callable[[int], None]
    ) -> Iterator[str | ImageError]:
        """For each image its content, or why it cannot be read."""

        def look(found: Found) -> _Read | ImageError:
            try:
                return self._look(found, stores)
            except ImageError as error:
                return error

        with cores_for_decoding(self.encoder.device), closing(self.book.new_segment()) as writer:
            for batch, results in batches_ahead(pictures, look, self.batch_size, self.workers):
                fresh: dict[str, tuple[Found, _Read]] = {}  # of equal images in one batch one is coded
                for found, result in zip(batch, results, strict=True):
                    if isinstance(result, _Read) and result.content not in self.book.places:
                        fresh.setdefault(result.content, (found, result))
                if fresh:
                    coded = [Coded(read.content, read.facts) for _, read in fresh.values()]
                    writer.write(self._encode(list(fresh.values()), stores), coded)
                    self.book.add(writer.folder.name, coded)
                    self.encoded += len(coded)
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
        data = _bytes(found.file)
        content = content_of(data)
        if content in self.book.places:
            return _Read(content)
        name = str(found.file)
        if stores is not None:
            return _Read(content, image_facts(*image_header(data, name=name)))
        picture = open_image(data, name=name)
        facts = image_facts(picture.size, image_header(data, name=name)[1])
        return _Read(content, facts, self.encoder.prepare(picture))

    def _encode(self, reads: Sequence[tuple[Found, _Read]], stores: list[FeatureStore] | None) -> list[Codes]:
        if stores is None:
            return self.encoder.encode_pictures([read.prepared for _, read in reads if read.prepared is not None])
        ids = [found.image.id for found, _ in reads if found.image is not None]
        return self.encoder.encode_batches([store.batch(ids) for store in stores])


def _bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ImageError(f"{path} has {size >> 20} MiB, above the limit of {MAX_BYTES >> 20}")
        return path.read_bytes()
    except OSError as error:
        raise ImageError(f"{path} could not be read: {error.strerror or error}") from None


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


def encode_sentences(
    book: Codebook, encoder: Encoder, texts: Sequence[IndexedText], batch_size: int, progress: Callable[[int], None]
) -> int:
    """Encode what is not coded yet; how many were."""
    contents = {sentence.content: sentence.text for sentence in texts}
    todo = [(content, text) for content, text in contents.items() if content not in book.places]
    progress(len(texts) - len(todo))
    with closing(book.new_segment()) as writer:
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            coded = [Coded(content, {}) for content, _ in batch]
            writer.write(encoder.encode_texts([text for _, text in batch]), coded)
            book.add(writer.folder.name, coded)
            progress(len(batch))
    return len(todo)
