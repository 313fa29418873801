"""Pseudo-categories for the instance loss: groups whose pictures look alike, found by k-means (Dual-Path, Table IV)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from quintet import processes
from quintet.data.loading import image_batches
from quintet.data.neighbours import kmeans
from quintet.errors import RecipeError, RunError
from quintet.files import complete_or_absent
from quintet.losses.instance import InstanceObjective
from quintet.models.matcher import evaluation_mode
from quintet.training.build import Objectives, TrainingData

BATCH = 128
FILE = "categories.npy"


def assign_categories(
    objective: Objectives,
    matcher: Any,
    data: TrainingData,
    *,
    folder: Path,
    seed: tuple[int, ...],
    device: torch.device,
) -> None:
    """Give the losses that want them the categories of all training groups.

    They come from the matcher's image features as the stage starts, are found once and kept in the stage's folder. A
    loss that goes on from an earlier stage has them already: its classifier has learned these and no others.
    """
    for part in objective.parts.values():
        if isinstance(part, InstanceObjective) and part.categories is not None and not part.assigned:
            part.assign(torch.from_numpy(_kept_or_found(part.categories, matcher, data, folder, seed, device)))


def _kept_or_found(
    count: int, matcher: Any, data: TrainingData, folder: Path, seed: tuple[int, ...], device: torch.device
) -> np.ndarray:
    path = folder / FILE
    if not path.is_file():
        vectors = _group_features(matcher.to(device), data, device)
        if processes.is_first():  # the others read what it found
            labels = kmeans(vectors, count, seed=seed)
            with complete_or_absent(path) as temporary, temporary.open("wb") as file:
                np.save(file, labels, allow_pickle=False)
    processes.barrier()
    try:
        labels = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from None
    if labels.shape != (len(data.train.groups),) or labels.max() >= count:
        raise RunError(f"{path} is of another training split or another number of categories; train into a new folder")
    return labels


def _group_features(matcher: Any, data: TrainingData, device: torch.device) -> np.ndarray:
    """(groups, d): what the image head is given, averaged over the pictures of a group; each process does its share."""
    if not hasattr(matcher, "image_features"):
        raise RecipeError("pseudo-categories need the pooled features of an image tower; use them with dual-path")
    images, groups = data.train.images, torch.from_numpy(data.train.image_groups)
    source = data.image_source(matcher)
    with torch.no_grad(), evaluation_mode(matcher):
        parts = [
            matcher.image_features(batch.to(device)).float()
            for batch in image_batches(source, images[processes.share(len(images))], BATCH)
        ]
        features = processes.gather_rows(torch.cat(parts), len(images)).cpu()  # (images, d)
    sums = torch.zeros(len(data.train.groups), features.shape[1]).index_add_(0, groups, features)
    return (sums / torch.bincount(groups, minlength=len(sums))[:, None]).numpy()
