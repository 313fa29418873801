"""Which pictures look alike to the matcher as it is now: the clusters that neighbour batches are drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet import processes
from quintet.codes import Codes
from quintet.data.loading import image_batches
from quintet.data.neighbours import kmeans
from quintet.errors import RecipeError, RunError
from quintet.files import complete_or_absent
from quintet.training.build import TrainingData
from quintet.training.recipe_models import BatchRecipe

BATCH = 128


def refresh_epoch(batches: BatchRecipe, epoch: int) -> int:
    """The epoch whose first weights the clusters of `epoch` come from.

    >>> [refresh_epoch(BatchRecipe(kind="neighbours", from_epoch=4, refresh=3), epoch) for epoch in (4, 6, 7)]
    [4, 4, 7]
    """
    return epoch - (epoch - batches.from_epoch) % batches.refresh


def image_clusters(
    batches: BatchRecipe,
    epoch: int,
    matcher: Any,
    data: TrainingData,
    *,
    folder: Path,
    seed: tuple[int, ...],
    device: torch.device,
    at_start: bool,
) -> np.ndarray:
    """(n_images,): the cluster of each training picture, computed as an epoch starts and kept in the stage's folder.

    A run that is resumed later in the epoch reads them back, because its weights are no longer those of the start.
    """
    since = refresh_epoch(batches, epoch)
    path = folder / f"clusters-{since}.npy"
    if since == epoch and at_start:
        vectors = _vectors(matcher, data, device)
        if processes.is_first():  # the others read what it found
            labels = kmeans(vectors, cluster_count(batches, len(vectors)), seed=(*seed, epoch))
            with complete_or_absent(path) as temporary, temporary.open("wb") as file:
                np.save(file, labels, allow_pickle=False)
            for old in folder.glob("clusters-*.npy"):
                if old != path:
                    old.unlink()
        processes.barrier()
    try:
        labels = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} is missing or damaged, so epoch {epoch + 1} cannot be resumed exactly: {error}"
        ) from None
    if labels.shape != (len(data.train.images),):
        raise RunError(f"{path} is of another training split: {labels.shape[0]} pictures, not {len(data.train.images)}")
    return labels


def _vectors(matcher: Any, data: TrainingData, device: torch.device) -> np.ndarray:
    """(n_images, d): the embeddings of all training pictures, each process encoding its share."""
    images = data.train.images
    if len(images) < processes.count():
        raise RecipeError("there are fewer training pictures than processes; use fewer processes")
    matcher.eval()
    source = data.image_source(matcher)
    with torch.no_grad():
        parts = [
            _embeddings(matcher.encode_images(batch.to(device)))
            for batch in image_batches(source, images[processes.share(len(images))], BATCH)
        ]
        return processes.gather_rows(torch.cat(parts).float(), len(images)).cpu().numpy()


def cluster_count(batches: BatchRecipe, images: int) -> int:
    """As the recipe says, or so many that a cluster has four bunches on average."""
    return min(images, batches.clusters or max(1, images // (4 * batches.per_cluster)))


def _embeddings(codes: Codes) -> torch.Tensor:
    if codes.embedding is None:
        raise RecipeError(
            "batches of neighbours need a matcher with one vector a picture; use kind: random with this one"
        )
    return codes.embedding
