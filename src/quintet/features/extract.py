"""`extract_features`: features of every image of a corpus, written batch by batch (`quintet features`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quintet.backbones.create import DEFAULT_TOWER
from quintet.backbones.extractor import Crop, FeatureExtractor
from quintet.cluster import Cluster, Pool, Task, worker_pool
from quintet.data.corpus import Corpus, as_corpus
from quintet.data.images import open_image
from quintet.data.loading import batches_ahead
from quintet.errors import CorpusError, ImageError, QuintetError
from quintet.features.job import Dtype, FeatureJob, Skipped, finished_features, image_fingerprint
from quintet.runs.devices import pick_device, side_by_side
from quintet.runs.encoding import Progress, reported

MAX_SIDE = 64  # cells along a side of an image


@dataclass(frozen=True)
class ExtractReport:
    folder: Path
    images: int  # in the corpus
    skipped: list[Skipped]
    resumed: int  # images that an earlier run had done
    seconds: float

    @property
    def written(self) -> int:
        return self.images - len(self.skipped)

    @property
    def per_second(self) -> float:
        return (self.images - self.resumed) / self.seconds if self.seconds else 0.0


def extract_features(
    corpus: Corpus | Path | str,
    backbone: str = DEFAULT_TOWER,
    *,
    weights: Path | str | None = None,
    name: str | None = None,
    grid: int | str | tuple[int, int] = 6,
    crop: Crop = "squeeze",
    batch_size: int = 16,
    dtype: Dtype = "float16",
    device: torch.device | str = "auto",
    workers: int = 4,
    overwrite: bool = False,
    progress: bool | Progress = False,
    ray: str | None = None,
    ray_workers: int | None = None,
    ray_gpus: float = 0.0,
) -> ExtractReport:
    """Write the features of a corpus's images under `CORPUS/features/NAME`, or resume where an earlier call stopped.

    `corpus` is a `Corpus` or its folder. Each image becomes rows x columns cells (`grid`: 6 for 6 x 6, "4x8" or (4, 8)
    for 4 rows of 8) with a feature vector and a box each. `name` is the backbone's name unless given. `weights` is a
    file for a backbone that brings none. `progress=True` draws a bar; a function is called with (done, total).

    The whole image is squeezed into the backbone's square unless `crop="center"`: a caption may be about what a central
    crop cuts away. Images that cannot be read are reported and left out. `overwrite` replaces features, or an
    unfinished extraction, made with other settings; the previous features are kept until the new ones are complete.

    `ray`: a Ray cluster whose workers extract (auto, local, ray://HOST:PORT); images must be at the same path on every
    node. `ray_workers`: how many, by default one a CPU. `ray_gpus`: GPUs of each, 0.5 for two on one.

    >>> from tempfile import mkdtemp
    >>> from quintet.data.formats import import_corpus
    >>> corpus = import_corpus("scenes", "-", mkdtemp(), train=2, dev=1, test=1, size=32)
    >>> report = extract_features(corpus, "efficientnet-lite0", grid=3)
    >>> report.written, report.folder.relative_to(corpus.root).as_posix()
    (4, 'features/efficientnet-lite0')
    """
    began = time.monotonic()
    cluster = Cluster.of(ray, ray_workers, ray_gpus, device)
    corpus = as_corpus(corpus)
    name = name or feature_name(backbone)
    cells = _parse_grid(grid)
    _check_request(corpus, name, dtype, batch_size, workers)
    extractor = FeatureExtractor.create(
        backbone, weights, grid=cells, crop=crop, device=pick_device(device if cluster is None else "cpu")
    )
    total = len(corpus.images)
    folder = corpus.root / "features" / name
    # "pictures": the key in settings.json of features that exist
    settings = {"tower": extractor.state(), "dtype": dtype, "pictures": image_fingerprint(corpus.images)}
    if folder.exists() and not overwrite:
        return ExtractReport(folder, total, finished_features(folder, settings), total, 0.0)
    shape = (total, extractor.fragments, extractor.dim)
    with (
        reported(progress, backbone, total) as report,
        FeatureJob(folder, settings, shape, dtype, overwrite) as job,
        ExitStack() as stack,
    ):
        resumed = job.done
        report(job.done, total)
        images = [_Image(each.id, corpus.image_path(each) if each.path else None) for each in corpus.images[job.done :]]
        if cluster is None or not images:
            made = _Batches(extractor, dtype).made(images, batch_size, workers)
        else:
            made_by = FeatureWorker, extractor, dtype, cluster.device, workers
            made = _on_workers(stack.enter_context(worker_pool(cluster, *made_by)), images, batch_size)
        for batch in made:
            job.write(batch.features, batch.boxes, batch.skipped)
            report(job.done, total)
        job.finish([image.id for image in corpus.images])
    return ExtractReport(folder, total, job.skipped, resumed, time.monotonic() - began)


def feature_name(backbone: str) -> str:
    """The folder name of a backbone's features, where none is given.

    >>> feature_name("efficientnet-lite0"), feature_name("hf:facebook/dinov2-small")
    ('efficientnet-lite0', 'facebook-dinov2-small')
    """
    return re.sub(r"[^\w.-]+", "-", backbone.split(":", 1)[-1]).strip("-.") or "features"


def _parse_grid(grid: int | str | tuple[int, int]) -> tuple[int, int]:
    """
    >>> _parse_grid(6), _parse_grid("6"), _parse_grid("4x8"), _parse_grid((4, 8))
    ((6, 6), (6, 6), (4, 8), (4, 8))
    """
    sides = [str(side).strip() for side in (grid if isinstance(grid, tuple) else str(grid).lower().split("x"))]
    if len(sides) > 2 or not all(side.isdecimal() and 1 <= int(side) <= MAX_SIDE for side in sides):
        raise QuintetError(f"grid {grid!r}: give 6 for 6 x 6 cells, or 4x8 for 4 rows of 8; at most {MAX_SIDE} a side")
    return int(sides[0]), int(sides[-1])


def _check_request(corpus: Corpus, name: str, dtype: str, batch_size: int, workers: int) -> None:
    if Path(name).name != name or name.startswith("."):
        raise CorpusError(f"{name!r} cannot be the name of features: it becomes a folder name")
    if dtype not in ("float16", "float32"):
        raise CorpusError(f"features are written as float16 or float32, not {dtype!r}")
    if batch_size < 1:
        raise CorpusError(f"a batch has at least one image, got batch_size={batch_size}")
    if workers < 1:
        raise CorpusError(f"at least one thread decodes images, got workers={workers}")
    if not any(image.path for image in corpus.images):
        raise CorpusError(f"corpus {corpus.name!r} has no image files to extract features from")


@dataclass(frozen=True)
class _Image:
    id: str
    path: Path | None


@dataclass(frozen=True)
class _Batch:
    features: np.ndarray  # (n, L, dim), zeros where an image was skipped
    boxes: np.ndarray  # (n, L, 4)
    skipped: list[Skipped]
    missing: list[int]  # positions of images that are not there


class _Batches:
    """Features of images, batch by batch."""

    def __init__(self, extractor: FeatureExtractor, dtype: Dtype) -> None:
        self.extractor, self.dtype = extractor, dtype

    def made(self, images: Sequence[_Image], batch_size: int, workers: int) -> Iterator[_Batch]:
        """In order, decoded ahead."""

        def decode(image: _Image) -> tuple[Tensor, tuple[int, int]] | ImageError:
            if image.path is None:
                return ImageError("this image has no image file")
            try:
                opened = open_image(image.path)
            except ImageError as error:
                return error
            return self.extractor.preprocess(opened), opened.size

        with side_by_side(self.extractor.device) as in_parts:
            for batch, decoded in batches_ahead(images, decode, batch_size, workers):
                yield self._batch(batch, decoded, in_parts)

    def _batch(
        self,
        images: Sequence[_Image],
        decoded: Sequence[tuple[Tensor, tuple[int, int]] | ImageError],  # pixels with the image's (width, height)
        in_parts: Callable[[Callable[[Tensor], np.ndarray], Tensor], list[np.ndarray]],
    ) -> _Batch:
        good = [row for row, value in enumerate(decoded) if not isinstance(value, ImageError)]
        refused = [row for row, value in enumerate(decoded) if isinstance(value, ImageError)]
        shape = (len(images), self.extractor.fragments)
        features = np.zeros((*shape, self.extractor.dim), dtype=self.dtype)
        boxes = np.zeros((*shape, 4), dtype=np.float32)
        if good:
            pixels, sizes = zip(*(decoded[row] for row in good), strict=True)
            with np.errstate(over="ignore"):  # an overflow is found in the next lines
                features[good] = np.concatenate(in_parts(self.extractor.features, torch.stack(pixels)))
            for row in good:
                if not np.isfinite(features[row]).all():
                    raise CorpusError(
                        f"features of image {images[row].id!r} do not fit {self.dtype} (NaN, infinity, too big); "
                        "try --dtype float32, and check that the weights belong to this tower"
                    )
            boxes[good] = self.extractor.boxes(sizes)
        missing = [row for row in refused if (path := images[row].path) is not None and not path.exists()]
        return _Batch(features, boxes, [Skipped(images[row].id, str(decoded[row])) for row in refused], missing)


class FeatureWorker:
    """Makes the features of a batch, on a cluster."""

    def __init__(self, extractor: FeatureExtractor, dtype: Dtype, device: str, workers: int) -> None:
        self.batches, self.workers = _Batches(extractor.to(device), dtype), workers

    def work(self, task: Task) -> _Batch:
        """What kills the process counts as an image without a file."""
        images = [replace(each, path=None) if at in task.lost else each for at, each in enumerate(task.items)]
        batch = next(self.batches.made(images, len(images), self.workers))
        why = {task.items[at].id: f"kills the process that reads it ({told})" for at, told in task.lost.items()}
        return replace(batch, skipped=[replace(each, reason=why.get(each.id, each.reason)) for each in batch.skipped])


def _on_workers(pool: Pool, images: Sequence[_Image], batch_size: int) -> Iterator[_Batch]:
    tasks = (Task(images[at : at + batch_size]) for at in range(0, len(images), batch_size))
    for task, batch in pool.map(tasks):
        for path in (task.items[row].path for row in batch.missing):
            if path.exists():
                raise CorpusError(
                    f"{path} is here, but not on another node: the images must be at the same path on every node; "
                    "mount them there. What is done is kept, and the same command goes on"
                )
        yield batch
