"""Batches of images and texts, read and encoded: in this process, or by a worker on a cluster."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from quintet.backbones.tower import same_tower
from quintet.cluster import Task
from quintet.codes import Codes
from quintet.data.feature_store import FeatureStore
from quintet.data.images import decoded, image_header
from quintet.data.loading import batches_ahead
from quintet.errors import ImageError, QuintetError
from quintet.files import open_regular
from quintet.runs.devices import side_by_side
from quintet.runs.run import Run
from quintet.search.encoder import Encoder, Prepared
from quintet.search.fields import image_facts
from quintet.search.found import Found
from quintet.search.items import content_of
from quintet.search.shard_sources import UnpackTask, work_on
from quintet.search.stores import Scalar, Store, open_store

MAX_BYTES = 512 * 2**20  # of one image file


@dataclass(frozen=True)
class Encoded:
    """A content that has a code, and what was learned while the image was read (its size, its date)."""

    content: str
    facts: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class _Read:
    """An image that was looked at."""

    content: str
    facts: dict[str, Scalar] = field(default_factory=dict)
    prepared: Prepared | None = None  # None where its code is known already, or its features are read from a store


@dataclass(frozen=True)
class Batch:
    """What became of a batch of images."""

    contents: list[str | ImageError]  # of each image, or why it cannot be read
    encoded: list[Encoded]  # those that are new, in the order of their codes
    codes: list[Codes]  # of each run; none where nothing is new


class BatchEncoder:
    """Reads and encodes batches of images. `known`: contents that have a code already."""

    def __init__(self, encoder: Encoder, known: Container[str]) -> None:
        self.encoder, self.known = encoder, known

    def batches(
        self, images: Sequence[Found], stores: list[FeatureStore] | None, batch_size: int, workers: int
    ) -> Iterator[Batch]:
        """`stores`: the features that every run reads; None: they are made of the images."""

        def look(found: Found) -> _Read | ImageError:
            try:
                return self._look(found, stores)
            except ImageError as error:
                return error
            except MemoryError:
                return ImageError(f"{found.file} needs more memory than there is; make a smaller copy of it")

        with side_by_side(self.encoder.device) as in_parts:
            for batch, results in batches_ahead(images, look, batch_size, workers):
                fresh: dict[str, tuple[Found, _Read]] = {}  # of equal images in one batch one is encoded
                for found, result in zip(batch, results, strict=True):
                    if isinstance(result, _Read) and result.content not in self.known:
                        fresh.setdefault(result.content, (found, result))
                yield Batch(
                    [result.content if isinstance(result, _Read) else result for result in results],
                    [Encoded(read.content, read.facts) for _, read in fresh.values()],
                    self._encode(list(fresh.values()), stores, in_parts) if fresh else [],
                )

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
            if content in self.known:
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


def feature_stores(runs: Sequence[Run], corpus: Path | None) -> list[FeatureStore] | None:
    """The features every run reads, where a corpus has them all; otherwise they are made of the images."""
    if corpus is None:
        return None
    found = []
    for run in runs:
        folder = corpus / "features" / str(run.image_input.get("name"))
        if run.image_input["kind"] == "pixels" or not (folder / "manifest.json").is_file():
            return None
        store = FeatureStore(folder)
        if not same_tower(run.image_input.get("tower"), store.manifest.get("tower")):
            return None
        found.append(store)
    return found


# On a cluster


@dataclass(frozen=True)
class ImageTask(Task):
    """A batch of images. `corpus`: the folder with their features; `known`: contents that need no code."""

    corpus: Path | None = None
    known: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TextTask(Task):
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class StoreTask(Task):
    """Vectors for a store that takes many writers."""

    address: str = ""
    ids: Sequence[str] = ()
    vectors: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))  # (n, dim)
    facts: Sequence[dict[str, Scalar]] = ()


class NotThereError(ImageError):
    """A worker does not find a file."""

    def __init__(self, message: str, node: str) -> None:
        super().__init__(message, node)
        self.node = node

    def __str__(self) -> str:
        return str(self.args[0])


class IndexWorker:
    """Encodes batches of images and of texts, and writes to stores."""

    def __init__(self, runs: Sequence[Run], device: str, workers: int, known: np.ndarray) -> None:
        """`known`: contents that have a code, sorted, in the memory that all workers of a node share."""
        self.encoder, self.workers, self.known = Encoder(runs, device=device), workers, known
        self._stores: dict[Path | None, list[FeatureStore] | None] = {None: None}
        self._open: tuple[str, Store] | None = None

    def work(self, task: ImageTask | TextTask | StoreTask | UnpackTask) -> Any:
        if isinstance(task, ImageTask):
            return self._images(task)
        if isinstance(task, UnpackTask):
            return work_on(task)
        if isinstance(task, TextTask):
            return self.encoder.encode_texts(task.texts)
        return self._store(task)

    def _images(self, task: ImageTask) -> Batch:
        if task.corpus not in self._stores:
            self._stores[task.corpus] = feature_stores(self.encoder.runs, task.corpus)
        stores = self._stores[task.corpus]
        known = _Known(self.known, task.known)
        images = [found for position, found in enumerate(task.items) if position not in task.lost]
        batch = Batch([], [], [])
        if images:
            batch = next(BatchEncoder(self.encoder, known).batches(images, stores, len(images), self.workers))
        rest = iter(zip(images, batch.contents, strict=True))
        contents: list[str | ImageError] = []
        for position, found in enumerate(task.items):
            if position in task.lost:
                contents.append(ImageError(f"{found.file} kills the process that reads it ({task.lost[position]})"))
                continue
            _, result = next(rest)
            gone = isinstance(result, ImageError) and found.file is not None and not os.path.lexists(found.file)
            contents.append(NotThereError(str(result), platform.node()) if gone else result)
        return replace(batch, contents=contents)

    def _store(self, task: StoreTask) -> None:
        if self._open is None or self._open[0] != task.address:
            self._open = task.address, open_store(task.address, task.vectors.shape[1], create=True)
        store = self._open[1]
        store.add(task.ids, task.vectors, task.facts)
        store.flush()


@dataclass(frozen=True)
class _Known:
    """Contents: those in a sorted array, and a few more."""

    sorted: np.ndarray  # (n,) bytes
    more: frozenset[str]

    def __contains__(self, content: object) -> bool:
        wanted = str(content).encode()
        at = int(np.searchsorted(self.sorted, wanted))
        return content in self.more or (at < len(self.sorted) and bytes(self.sorted[at]) == wanted)
