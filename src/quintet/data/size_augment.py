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
from quintet.data.pair_random import pair_keys, uniform
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
        draws = uniform(pair_keys(seeds)[:, None], np.arange(batch.fragments.shape[1]))  # (n, L)
        real = batch.real()
        kept = real & torch.from_numpy(draws >= self.probability).to(real.device, non_blocking=True)
        return select_regions(batch, torch.where(kept.any(dim=1, keepdim=True), kept, real))


def select_regions(batch: ImageBatch, kept: Tensor) -> ImageBatch:
    """The regions where (n, L) says so, in their order and without gaps, padded to L."""
    assert batch.fragments is not None
    order = kept.int().argsort(dim=1, descending=True, stable=True)  # (n, L), kept ones first
    mask = kept.gather(1, order)

    def take(values: Tensor) -> Tensor:
        taken = values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))
        return taken.masked_fill(~mask[..., None], 0)

    boxes = None if batch.boxes is None else take(batch.boxes)
    return ImageBatch(fragments=take(batch.fragments), mask=mask, boxes=boxes)


class ChangedWords:
    """Sentences with each word changed with a probability: half of those hidden, a tenth replaced, the rest left out.

    A word is all of its pieces; hidden and replaced ones keep their number. Marks for start and end stay.
    """

    def __init__(self, kinds: TokenKinds, probability: float) -> None:
        self.kinds = kinds
        self.probability = probability
        self.ordinary = np.flatnonzero(~kinds.mark)  # what may replace a piece

    def __call__(self, sentences: Sequence[np.ndarray], seeds: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Arrays of ids -> as many arrays, none longer than before; `seeds`, one for each, decide.

        All sentences lie in one row of tokens while they change.
        """
        lengths = np.array([len(ids) for ids in sentences])
        starts = np.cumsum(lengths) - lengths  # of each sentence
        ids = np.concatenate(sentences)  # (tokens,)
        sentence = np.repeat(np.arange(len(sentences)), lengths)  # (tokens,) which one
        inside = ~self.kinds.mark[ids]  # (tokens,) part of a word
        begins = inside & ~self.kinds.continues[ids]
        begun = np.bincount(sentence, begins, len(sentences)).astype(np.int64)  # words of each sentence
        word = np.cumsum(begins) - (np.cumsum(begun) - begun)[sentence]  # (tokens,) which of its sentence
        draw = uniform(pair_keys(seeds)[sentence], word) / self.probability  # changed: below one
        draw[~inside] = 1.0
        place = np.arange(len(ids)) - starts[sentence]
        other = (uniform(pair_keys(seeds, stream=1)[sentence], place) * len(self.ordinary)).astype(np.int64)
        replaced = np.where(draw < HIDDEN + REPLACED, self.ordinary[other], ids)
        changed = np.where(draw < HIDDEN, self.kinds.mask, replaced)
        kept = (draw < HIDDEN + REPLACED) | (draw >= 1)
        bare = np.bincount(sentence, kept & inside, len(sentences)) == 0  # nothing but marks would be left
        kept |= bare[sentence]
        changed = np.where(bare[sentence], ids, changed)[kept].astype(ids.dtype)
        return np.split(changed, np.cumsum(np.bincount(sentence, kept, len(sentences))).astype(np.int64)[:-1])
