"""What a loss is given (`Step`) and what it returns (`Term`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from quintet import distributed
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.errors import RecipeError
from quintet.layers.normalize import BATCH_NORMS, widen
from quintet.protocols import Matcher, Phased

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")
Batch = TypeVar("Batch", ImageBatch, TextBatch)


@dataclass(frozen=True)
class Term:
    """One named part of a loss: (b,) unreduced values, one for each anchor of this process, and their weight."""

    values: Tensor
    weight: float = 1.0
    collapse_value: float | None = None  # of each value when all scores are equal; a loss that stays there collapsed


@dataclass(frozen=True)
class Progress:
    """How far a stage has come, for losses that change over time (see `quintet.protocols.Phased`)."""

    epoch: float = 0.0  # epochs done, with the fraction of the current one
    step: int = 0  # optimizer steps done


class Step:
    """One batch with the matcher's codes and scores of it. Each quantity is computed once, at its first use.

    With several processes `batch` is this process's share of the global batch, (b) of (B) pairs. `scores` spans the
    global batch, and `mine` selects the rows and columns of this process. A loss returns values of these anchors only.

    With `chunk`, so many items are encoded at a time, and backward encodes each chunk again with the same random state:
    gradient caching (Gao, Zhang, Han, Callan: Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup,
    RepL4NLP 2021). Memory holds the codes of the batch and the activations of one chunk; the gradient is the same.
    """

    def __init__(
        self,
        matcher: Matcher,
        batch: PairBatch,
        progress: Progress,
        total: int | None = None,
        chunk: int | None = None,
    ) -> None:
        self.matcher = matcher
        self.batch = batch
        self._progress = progress
        self.progress_was_read = False  # then this step is never recorded: a replay would not see time pass
        self.total = len(batch) if total is None else total  # pairs in the global batch
        self.chunk = chunk
        self._device = batch.text_groups.device.type
        self._half = torch.is_autocast_enabled(self._device)

    @property
    def progress(self) -> Progress:
        """How far the stage has come. A loss that reads this is computed at every step, never replayed."""
        self.progress_was_read = True
        return self._progress

    def phase_of(self, objective: Phased[P]) -> P:
        """The phase that a loss is in. It may be recorded for as long as the phase lasts."""
        return objective.phase(self._progress)

    @cached_property
    def image_codes(self) -> Codes:
        """Codes of this process's images."""
        return self.encode_images(self.batch.images)

    @cached_property
    def text_codes(self) -> Codes:
        """Codes of this process's texts."""
        return self.encode_texts(self.batch.texts)

    def encode_images(self, images: ImageBatch) -> Codes:
        return self._encode(self.matcher.encode_images, images)

    def encode_texts(self, texts: TextBatch) -> Codes:
        return self._encode(self.matcher.encode_texts, texts)

    def _encode(self, encode: Callable[[Batch], Codes], batch: Batch) -> Codes:
        with self._encoding():
            if not self._is_cut(len(batch)):
                return encode(batch)
            parts = [batch.take(rows) for rows in self._chunks(len(batch))]
            return Codes.cat([self._again_in_backward(partial(encode, part)) for part in parts])

    def _is_cut(self, rows: int) -> bool:
        return self.chunk is not None and rows > self.chunk and torch.is_grad_enabled()

    def _chunks(self, rows: int) -> list[slice]:
        assert self.chunk is not None
        return [slice(start, start + self.chunk) for start in range(0, rows, self.chunk)]

    def _again_in_backward(self, compute: Callable[[], T]) -> T:
        # A tensor on the device tells `checkpoint` whose random state to keep.
        return checkpoint(lambda _: compute(), self.batch.text_groups, use_reentrant=False)

    def _encoding(self) -> torch.autocast:
        """Autocast as it was when the step began: a loss may turn it off before it asks for codes."""
        return torch.autocast(self._device, torch.get_autocast_dtype(self._device), enabled=self._half)

    @cached_property
    def scores(self) -> Tensor:
        """(B, B): every image of the global batch against every text of it."""
        # Scores and hinges are float32, even if the encoders ran in bfloat16.
        with torch.autocast(self._device, enabled=False):
            all_texts = distributed.gather_codes(at_least_float32(self.text_codes), self.total)
            images = at_least_float32(self.image_codes)
            # (b, B): each process scores its own images
            if images.fragments is not None and self._is_cut(len(images)):  # a score of fragments has activations, too
                parts = [images[rows] for rows in self._chunks(len(images))]
                scores = [self._again_in_backward(partial(self.matcher.score, part, all_texts)) for part in parts]
                rows = torch.cat(scores)
            else:
                rows = self.matcher.score(images, all_texts)
            return distributed.gather_rows(rows, self.total)

    def encode_offline(self, derived: bool) -> None:
        """Encode the batch together with its offline negatives, and the `derived` ones: fewer, larger products.

        The codes are the same. A matcher with a BatchNorm is left alone: it would see three batches as one.
        """
        if "image_codes" in self.__dict__ or "text_codes" in self.__dict__:
            return  # another loss has encoded the batch
        if any(isinstance(part, BATCH_NORMS) for part in self.matcher.modules()):
            return
        names = ("image_codes", "_offline_image_codes", "_derived_image_codes")[: 2 + derived]
        batches = (self.batch.images, self._offline.images, self._offline.derived_images)[: 2 + derived]
        text_batches = (self.batch.texts, self._offline.texts, self._offline.derived_texts)[: 2 + derived]
        images = self.encode_images(ImageBatch.cat(batches))
        texts = self.encode_texts(TextBatch.cat(text_batches))
        size = len(self.batch)
        for number, name in enumerate(names):
            rows = slice(number * size, (number + 1) * size)
            self.__dict__[name] = images[rows]
            self.__dict__[name.replace("image", "text")] = texts[rows]

    @cached_property
    def off_text(self) -> Tensor:
        """(b,): S(i, t_off), each image against its offline hard negative text."""
        return self.pair_scores(self.image_codes, self._offline_text_codes)

    @cached_property
    def off_image(self) -> Tensor:
        """(b,): S(i_off, t)."""
        return self.pair_scores(self._offline_image_codes, self.text_codes)

    @cached_property
    def off_pair(self) -> Tensor:
        """(b,): S(i_off, t_off)."""
        return self.pair_scores(self._offline_image_codes, self._offline_text_codes)

    @cached_property
    def derived_pair(self) -> Tensor:
        """(b,): S of the image of t_off and a text of i_off."""
        return self.pair_scores(self._derived_image_codes, self._derived_text_codes)

    @property
    def _offline(self) -> OfflineBatch:
        if self.batch.offline is None:
            raise RecipeError(
                "this loss needs offline negatives; give its stage a `negatives:` entry with their source (`from`)"
            )
        return self.batch.offline

    @cached_property
    def _offline_image_codes(self) -> Codes:
        return self.encode_images(self._offline.images)

    @cached_property
    def _offline_text_codes(self) -> Codes:
        return self.encode_texts(self._offline.texts)

    @cached_property
    def _derived_image_codes(self) -> Codes:
        return self.encode_images(self._offline.derived_images)

    @cached_property
    def _derived_text_codes(self) -> Codes:
        return self.encode_texts(self._offline.derived_texts)

    def pair_scores(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n,): row i against row i, in float32."""
        with torch.autocast(self._device, enabled=False):
            return self.matcher.score_pairs(at_least_float32(image_codes), at_least_float32(text_codes))

    @cached_property
    def same_group(self) -> Tensor:
        """(B, B) bool: which image and text are of one group."""
        images = distributed.gather_rows(self.batch.image_groups, self.total)
        texts = distributed.gather_rows(self.batch.text_groups, self.total)
        return images[:, None] == texts[None, :]

    @cached_property
    def diagonal(self) -> Tensor:
        """(B, B) bool: which image and text were drawn as a pair."""
        return torch.eye(self.total, dtype=torch.bool, device=self.same_group.device)

    @property
    def mine(self) -> slice:
        """This process's rows and columns of `scores`."""
        return distributed.share(self.total)


def at_least_float32(codes: Codes) -> Codes:
    """Codes in the precision of scores and hinges."""
    return codes.map(widen)
