"""Which pairs make up which batch of an epoch: a function of the seed and the epoch, so that resuming is exact."""

from __future__ import annotations

from typing import Literal

import numpy as np

from quintet.data.corpus import Split
from quintet.errors import CorpusError


def epoch_batches(
    split: Split,
    batch_size: int,
    *,
    seed: tuple[int, ...],
    per: Literal["texts", "images"] = "texts",
    drop_last: bool = False,
) -> list[np.ndarray]:
    """Random batches, each (n, 2) of image row and text row.

    One epoch visits every text once with its image (`per="texts"`, as SCAN and its successors do) or every image
    once with one of its texts (`per="images"`, as Dual-Path does). A last batch of one pair has no negatives and is
    left out.
    """
    rng = np.random.default_rng(seed)
    pairs = _pairs_per_text(split, rng) if per == "texts" else _pairs_per_image(split, rng)
    if len(pairs) < 2:
        raise CorpusError(f"split {split.name!r} has {len(pairs)} pair; training needs at least two")
    pairs = pairs[rng.permutation(len(pairs))]
    batches = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
    too_small = batch_size if drop_last else 2
    if len(batches) > 1 and len(batches[-1]) < too_small:
        batches.pop()
    return batches


def _pairs_per_text(split: Split, rng: np.random.Generator) -> np.ndarray:
    options = split.images_of_text
    counts = np.array([len(rows) for rows in options])
    picks = rng.integers(counts) if len(counts) else counts
    images = np.array([rows[pick] for rows, pick in zip(options, picks, strict=True)], dtype=np.int64)
    return np.stack([images, np.arange(len(options))], axis=1)  # (n_texts, 2)


def _pairs_per_image(split: Split, rng: np.random.Generator) -> np.ndarray:
    options = split.texts_of_image
    counts = np.array([len(rows) for rows in options])
    has_text = np.flatnonzero(counts)
    picks = rng.integers(counts[has_text])
    texts = np.array([options[image][pick] for image, pick in zip(has_text, picks, strict=True)], dtype=np.int64)
    return np.stack([has_text, texts], axis=1)  # (n_images with a text, 2)
