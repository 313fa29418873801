"""How alike the features of different images are: a map of Pearson's correlations (Dual-Path, Fig. 4).

Before training the features come from the pretrained image tower, after it from the matcher. The lower the
correlations of different images, the better the features tell them apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.backbones.tower import ImageTower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Image, Split
from quintet.errors import QuintetError
from quintet.protocols import Matcher

IMAGES = 100


def correlation_map(features: Any) -> np.ndarray:
    """(n, n) Pearson's correlation of every two rows of (n, d) features.

    >>> correlation_map([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 2.0, 1.0]]).round(6).tolist()
    [[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]
    """
    rows = np.asarray(features, dtype=np.float64)
    centred = rows - rows.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    flat = np.flatnonzero(norms[:, 0] == 0)
    if flat.size:
        raise QuintetError(f"the features of image {flat[0]} are all equal, so they correlate with nothing")
    centred /= norms
    return centred @ centred.T  # (n, d) -> (n, n)


def map_summary(correlations: np.ndarray) -> dict[str, float]:
    """Of all pairs of different images: mean, mean size, largest.

    >>> map_summary(np.array([[1.0, -0.5], [-0.5, 1.0]]))
    {'images': 2, 'mean': -0.5, 'mean_absolute': 0.5, 'largest': -0.5}
    """
    others = correlations[~np.eye(len(correlations), dtype=bool)]
    if not others.size:
        raise QuintetError("a correlation map needs at least two images")
    return {
        "images": len(correlations),
        "mean": float(others.mean()),
        "mean_absolute": float(np.abs(others).mean()),
        "largest": float(others.max()),
    }


def choose_images(split: Split, count: int = IMAGES, seed: int = 0) -> list[Image]:
    """`count` images of different groups at random, in the order of the split; all groups where there are fewer."""
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.choice(len(split.groups), min(count, len(split.groups)), replace=False))
    return [split.images[split.images_of_group[group][0]] for group in groups]


def code_features(codes: Codes) -> Tensor:
    """(n, d): the embeddings, or the means of the real fragments of a matcher that keeps these."""
    if codes.embedding is not None:
        return codes.embedding
    assert codes.fragments is not None  # Codes have one of the two
    return _mean(codes.fragments, codes.mask)


def input_features(images: ImageBatch, tower: ImageTower | None = None) -> Tensor:
    """(n, d): what the pretrained tower makes of the images, averaged over the grid or over the regions.

    Stored features are what the tower made of them; pixels need the tower itself.
    """
    if images.fragments is not None:
        return _mean(images.fragments, images.mask)
    if tower is None:
        raise ValueError("pixels need the image tower that turns them into features")
    assert images.pixels is not None  # an ImageBatch has one of the two
    with torch.no_grad():
        return tower.pooled(images.pixels)


def find_tower(matcher: Matcher) -> ImageTower:
    """The image tower inside a matcher of pixels."""
    tower = next((part for part in matcher.modules() if isinstance(part, ImageTower)), None)
    if tower is None:
        raise QuintetError(f"{type(matcher).__name__} reads pixels, but no image tower was found in it")
    return tower


def _mean(fragments: Tensor, mask: Tensor | None) -> Tensor:
    """(n, L, d), (n, L) -> (n, d)."""
    if mask is None:
        return fragments.mean(1)
    weights = mask.to(fragments.dtype)[..., None]  # (n, L, 1)
    return (fragments * weights).sum(1) / weights.sum(1).clamp(min=1)
