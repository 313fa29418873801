"""Size augmentation (VSE-infinity, HREM's code): fewer regions, and words hidden, replaced or left out, in training.

Draws belong to the pair and to nothing else. An item that would lose everything stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quintet.data.batches import ImageBatch
from quintet.data.corpus import Image
from quintet.data.loading import ImageSource
from quintet.data.tokenizers import TokenKinds

HIDDEN, REPLACED = 0.5, 0.1  # of the words that are changed; the others are left out


class FewerRegions:
    """Another source's features, each real region left out with a probability in training."""

    def __init__(self, source: ImageSource, probability: float) -> None:
        self.source = source
        self.probability = probability

    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        batch = self.source.batch(images, seeds)
        if seeds is None or not len(batch):
            return batch
        assert batch.fragments is not None
        n, length = batch.fragments.shape[:2]
        # On the CPU, wherever the features are: an accelerator need not wait for the number that remains.
        real = torch.ones(n, length, dtype=torch.bool) if batch.mask is None else batch.mask.cpu()
        draws = np.stack([np.random.default_rng(seed).random(length) for seed in seeds])  # (n, L)
        kept = real & torch.from_numpy(draws >= self.probability)
        return select_regions(batch, torch.where(kept.any(dim=1, keepdim=True), kept, real))


def select_regions(batch: ImageBatch, kept: Tensor) -> ImageBatch:
    """The regions where (n, L) says so, in their order and without gaps, padded to the longest."""
    assert batch.fragments is not None
    longest = int(kept.sum(dim=1).max())
    order = kept.int().argsort(dim=1, descending=True, stable=True)[:, :longest]  # (n, longest), kept ones first
    mask, order = (part.to(batch.fragments.device) for part in (kept.gather(1, order), order))

    def take(values: Tensor) -> Tensor:
        taken = values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))
        return taken.masked_fill(~mask[..., None], 0)

    boxes = None if batch.boxes is None else take(batch.boxes)
    return ImageBatch(fragments=take(batch.fragments), mask=mask, boxes=boxes)


class ChangedWords:
    """A sentence with each word changed with a probability: half of those hidden, a tenth replaced, the rest left out.

    A word is all of its pieces; hidden and replaced ones keep their number. Marks for start and end stay.
    """

    def __init__(self, kinds: TokenKinds, probability: float) -> None:
        self.kinds = kinds
        self.probability = probability
        self.ordinary = np.flatnonzero(~kinds.mark)  # what may replace a piece

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(n,) ids -> at most as many."""
        inside = ~self.kinds.mark[ids]  # (n,) part of a word
        word = np.cumsum(inside & ~self.kinds.continues[ids]) - 1  # (n,) which one
        draws = rng.random(max(1, word[-1] + 1)) / self.probability  # changed: below one
        draw = np.where(inside, draws[np.maximum(word, 0)], 1.0)
        others = self.ordinary[rng.integers(len(self.ordinary), size=len(ids))]
        changed = np.where(draw < HIDDEN, self.kinds.mask, np.where(draw < HIDDEN + REPLACED, others, ids))
        kept = (draw < HIDDEN + REPLACED) | (draw >= 1)
        return changed[kept].astype(ids.dtype) if (kept & inside).any() else ids
