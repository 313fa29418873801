"""K-means over the training images: batches of images that look alike, and pseudo-categories for the instance loss.

Both need scikit-learn. Labels are computed by the first process and kept in the stage's folder: the others read them
there, and so does a run that is resumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from quintet import distributed
from quintet.data.arrays import read_array, write_array
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Split
from quintet.data.loading import image_batches
from quintet.data.sampling import epoch_batches
from quintet.errors import CorpusError, QuintetError, RecipeError, RunError
from quintet.protocols import HasImageFeatures, Matcher, evaluation_mode
from quintet.training.build import Objectives
from quintet.training.inputs import TrainingData
from quintet.training.recipe_models import BatchRecipe

KMEANS_BATCH, KMEANS_ROUNDS = 4096, 10  # vectors between two updates of the centres, passes over all vectors
NEIGHBOURS = 2  # the stream of random numbers that shuffles bunches
BATCH = 128  # images encoded at a time


def kmeans(vectors: np.ndarray, clusters: int, *, seed: tuple[int, ...]) -> np.ndarray:
    """(n,) int64: the cluster of each row of (n, d), a function of the vectors and the seed. A cluster may be empty.

    >>> np.bincount(kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), 2, seed=(0,))).tolist()
    [2, 2]
    """
    if not 1 <= clusters <= len(vectors):
        raise ValueError(f"{len(vectors)} vectors cannot make {clusters} clusters")
    found = require_clustering().MiniBatchKMeans(
        clusters,
        batch_size=KMEANS_BATCH,
        max_iter=KMEANS_ROUNDS,
        max_no_improvement=None,  # early stopping depends on sums, whose rounding depends on the number of threads
        n_init=1,
        random_state=int(np.random.SeedSequence(seed).generate_state(1)[0]),
    )
    return found.fit_predict(np.ascontiguousarray(vectors)).astype(np.int64)


def require_clustering() -> Any:
    """The module `sklearn.cluster`, or an error that says how to install it."""
    try:
        return import_module("sklearn.cluster")
    except ImportError:
        raise QuintetError(
            "k-means (batches of neighbours, pseudo-categories) needs scikit-learn: "
            "`pip install 'quintet-retrieval[cluster]'`; or set batches.kind=random, or leave `categories` out"
        ) from None


# Batches of neighbours.


def neighbour_batches(
    split: Split,
    clusters: np.ndarray,
    batch_size: int,
    per_cluster: int,
    *,
    seed: tuple[int, ...],
    per: Literal["texts", "images"] = "texts",
    drop_last: bool = False,
) -> list[np.ndarray]:
    """Batches, each (n, 2) of image row and text row, made of bunches of `per_cluster` images of one cluster.

    `clusters` (n_images,) holds the cluster of each image. A batch has batch_size / per_cluster bunches (P x K), and
    different images with one of their texts each, unless there are fewer images than that. As with random batches, an
    epoch visits every text once (`per="texts"`) or every image once (`per="images"`), in as many batches. Images that
    are left over after the full bunches of their cluster make mixed batches.
    """
    [pairs] = epoch_batches(split, len(split.images) + len(split.texts), seed=seed, per=per)  # all, in random order
    rng = np.random.default_rng((*seed, NEIGHBOURS))
    bunches, further, rest = [], [], []
    for visit in _visits(pairs):  # the images of a visit differ
        full, left = _bunches(visit, clusters[visit[:, 0]], per_cluster)
        shuffled = [full[index] for index in rng.permutation(len(full))]
        whole = len(full) - len(full) % (batch_size // per_cluster)  # bunches of batches within this visit
        bunches += shuffled[:whole]
        further += shuffled[whole:]
        rest.append(left)
    mixed = np.concatenate(rest)
    pairs = np.concatenate([*bunches, *further, mixed[rng.permutation(len(mixed))]])
    _part_repeats(pairs, batch_size, first=sum(map(len, bunches)))
    batches = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
    if len(batches) > 1 and len(batches[-1]) < (batch_size if drop_last else 2):
        batches.pop()
    return [batches[index] for index in rng.permutation(len(batches))]


def _part_repeats(pairs: np.ndarray, batch_size: int, first: int) -> None:
    """Swap pairs, in place, until no batch has an image twice, as far as that can be; those from `first` on are moved
    before others."""
    held = [Counter(batch[:, 0].tolist()) for batch in np.split(pairs, range(batch_size, len(pairs), batch_size))]
    images = pairs[:, 0].tolist()
    seen: set[tuple[int, int]] = set()
    positions = [*range(first, len(pairs)), *range(first)]
    for here in range(len(pairs)):
        batch, image = here // batch_size, images[here]
        if (batch, image) not in seen:
            seen.add((batch, image))
            continue
        for there in positions:
            other = there // batch_size
            if other != batch and not held[batch][images[there]] and not held[other][image]:
                held[batch] += Counter({images[there]: 1, image: -1})
                held[other] += Counter({image: 1, images[there]: -1})
                pairs[[here, there]] = pairs[[there, here]]
                images[here], images[there] = images[there], image
                seen.add((batch, images[here]))
                break


def _visits(pairs: np.ndarray) -> list[np.ndarray]:
    """The first pair of every image, the second of every image that has one, and so on."""
    order = np.argsort(pairs[:, 0], kind="stable")
    images = pairs[order, 0]
    first = np.searchsorted(images, images)  # where the image's pairs begin
    visit = np.empty(len(pairs), dtype=np.int64)
    visit[order] = np.arange(len(pairs)) - first
    return [pairs[visit == number] for number in range(int(visit.max()) + 1)]


def _bunches(pairs: np.ndarray, labels: np.ndarray, size: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Full bunches of one cluster each, and the pairs that are left over."""
    order = np.argsort(labels, kind="stable")
    members = np.split(pairs[order], np.flatnonzero(np.diff(labels[order])) + 1)
    full = [part[start : start + size] for part in members for start in range(0, len(part) - size + 1, size)]
    return full, np.concatenate([part[len(part) - len(part) % size :] for part in members])


def refresh_epoch(batches: BatchRecipe, epoch: int) -> int:
    """The epoch at whose start the clusters of `epoch` are computed.

    >>> [refresh_epoch(BatchRecipe(kind="neighbours", from_epoch=4, refresh=3), epoch) for epoch in (4, 6, 7)]
    [4, 4, 7]
    """
    return epoch - (epoch - batches.from_epoch) % batches.refresh


def cluster_count(batches: BatchRecipe, images: int) -> int:
    """The number in the recipe, or one that gives a cluster four bunches on average."""
    return min(images, batches.clusters or max(1, images // (4 * batches.per_cluster)))


def image_clusters(
    batches: BatchRecipe,
    epoch: int,
    matcher: Matcher,
    data: TrainingData,
    *,
    folder: Path,
    seed: tuple[int, ...],
    device: torch.device,
    at_start: bool,
) -> np.ndarray:
    """(n_images,): the cluster of each training image by its current embedding, computed as an epoch starts.

    A run that is resumed in the middle of an epoch reads the clusters, because its weights have moved on.
    """
    since = refresh_epoch(batches, epoch)
    path = folder / f"clusters-{since}.npy"
    if since == epoch and at_start:
        vectors = _of_all_images(matcher, data, device, lambda batch: _embeddings(matcher, batch)).numpy()
        if distributed.is_main():
            write_array(path, kmeans(vectors, cluster_count(batches, len(vectors)), seed=(*seed, epoch)))
            for old in folder.iterdir():
                if old != path and re.fullmatch(r"clusters-\d+\.npy", old.name):
                    old.unlink()
        distributed.barrier()
    labels = _load(path, f"without it epoch {epoch + 1} cannot be resumed exactly")
    if labels.shape != (len(data.train.images),):
        raise RunError(f"{path} is of another training split: {labels.shape[0]} images, not {len(data.train.images)}")
    return labels


def _embeddings(matcher: Matcher, images: ImageBatch) -> Tensor:
    codes = matcher.encode_images(images)
    if codes.embedding is None:
        raise RecipeError(
            "batches of neighbours need a matcher with one vector an image; use kind: random with this one"
        )
    return codes.embedding


# Pseudo-categories (Dual-Path, Table IV).


def assign_categories(
    objective: Objectives,
    matcher: Matcher,
    data: TrainingData,
    *,
    folder: Path,
    seed: tuple[int, ...],
    device: torch.device,
) -> None:
    """Give the losses that classify pseudo-categories the category of every training group.

    Categories are clusters of the groups' image features as the stage starts. A loss that continues from an earlier
    stage keeps its own: its classifier was trained on them.
    """
    for part in objective.categorised:
        if not part.assigned:
            assert part.categories is not None
            part.assign(torch.from_numpy(_categories(part.categories, matcher, data, folder, seed, device)))


def _categories(
    count: int, matcher: Matcher, data: TrainingData, folder: Path, seed: tuple[int, ...], device: torch.device
) -> np.ndarray:
    path = folder / "categories.npy"
    if not path.is_file():
        vectors = _group_features(matcher.to(device), data, device)
        if distributed.is_main():
            write_array(path, kmeans(vectors, count, seed=seed))
    distributed.barrier()
    labels = _load(path, "without it the stage cannot continue")
    if labels.shape != (len(data.train.groups),) or labels.max() >= count:
        raise RunError(f"{path} is of another training split or another number of categories; train into a new folder")
    return labels


def _group_features(matcher: Matcher, data: TrainingData, device: torch.device) -> np.ndarray:
    """(groups, d): the input of the matcher's image head, averaged over the images of a group."""
    if not isinstance(matcher, HasImageFeatures):
        raise RecipeError("pseudo-categories need the pooled features of an image tower; use them with dual-path")
    features = _of_all_images(matcher, data, device, matcher.image_features)  # (images, d)
    groups = torch.from_numpy(data.train.image_groups)
    sums = torch.zeros(len(data.train.groups), features.shape[1]).index_add_(0, groups, features)
    return (sums / torch.bincount(groups, minlength=len(sums))[:, None]).numpy()


# What both share.


def _of_all_images(
    matcher: Matcher, data: TrainingData, device: torch.device, encode: Callable[[ImageBatch], Tensor]
) -> Tensor:
    """(n_images, d) float32 on the CPU: `encode` of all training images, a share in each process."""
    images = data.train.images
    if len(images) < distributed.world_size():
        raise RecipeError("there are fewer training images than processes; use fewer processes")
    source, size = data.image_source(matcher), distributed.even_batch_size(len(images), BATCH)
    with torch.no_grad(), evaluation_mode(matcher):
        parts = [
            encode(batch.to(device)).float()
            for batch in image_batches(source, images[distributed.share(len(images))], size)
        ]
        return distributed.gather_rows(torch.cat(parts), len(images)).cpu()


def _load(path: Path, consequence: str) -> np.ndarray:
    try:
        labels = read_array(path, consequence, "i")
    except CorpusError as error:
        raise RunError(str(error)) from None
    if labels.min(initial=0) < 0:
        raise RunError(f"{path} is damaged: it holds a negative label; {consequence}")
    return labels
