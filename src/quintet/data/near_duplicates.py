"""Images that are nearly the same file: resized, stored again, brightened. By their pixels, without a model.

An image is described by 16 x 16 grey values, centred and of length one; two images are near-duplicates when the product
of their descriptions is at least `SIMILAR`. Photographs of different scenes stay below that, and a photograph that was
scaled or compressed again stays above it with itself. Crops and mirror images are different images.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image

SIDE = 16
SIMILAR = 0.98
FLAT = 8.0  # length of the centred grey values below which an image has one colour: its description would be noise
BLOCK = 2_048  # images compared at a time
MOST_PAIRS = 1_000_000


def describe_image(image: Image.Image) -> np.ndarray:
    """(256,) float32 of length one; zeros for an image of one colour.

    >>> float(np.linalg.norm(describe_image(Image.linear_gradient("L")))).__round__(3)
    1.0
    """
    grey = np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), np.float32).ravel()
    grey = grey - grey.mean()
    length = float(np.linalg.norm(grey))
    return grey / length if length > FLAT else np.zeros(SIDE * SIDE, np.float32)


def similar_pairs(
    descriptions: np.ndarray, similar: float = SIMILAR, progress: Callable[[int], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(pairs, 2) rows, the first below the second, most similar first, and (pairs,) their similarity.

    Every pair is compared, a block of products at a time. `progress` is called with the rows that are done. At most
    `MOST_PAIRS` are kept, which a corpus of thousands of copies of one image would pass.
    """
    rows = torch.from_numpy(np.ascontiguousarray(descriptions, np.float32))
    found, values, count = [], [], 0
    for start in range(0, len(rows), BLOCK):
        for other in range(start, len(rows), BLOCK):
            products = rows[start : start + BLOCK] @ rows[other : other + BLOCK].T
            near = (products >= similar).nonzero()
            near = near[near[:, 0] + start < near[:, 1] + other]
            if len(near) and count < MOST_PAIRS:
                near = near[: MOST_PAIRS - count]
                count += len(near)
                values.append(products[near[:, 0], near[:, 1]].numpy())
                found.append((near + torch.tensor([start, other])).numpy())
        if progress is not None:
            progress(min(start + BLOCK, len(rows)))
    if not found:
        return np.empty((0, 2), np.int64), np.empty(0, np.float32)
    pairs, similarity = np.concatenate(found), np.concatenate(values)
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -similarity))
    return pairs[order], similarity[order]
