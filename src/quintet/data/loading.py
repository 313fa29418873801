"""From rows of a split to batches: sources of images and texts, pairs with their offline negatives, decoding ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch, TextPool
from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.feature_store import FeatureStore, WordFeatures
from quintet.data.images import open_image
from quintet.data.negatives import OfflineRows
from quintet.data.tokenizers import Tokenizer, cuts, tell_cut

BATCHES_AHEAD = 3  # ready and waiting
CACHE_BYTES = 2**30  # decoded images kept in memory, as far as they fit
POSITION_NOISE, POOL = 1, 2  # streams of random numbers beside the one that changes images
WORDS = 1  # within them, the one that changes texts


class ImageSource(Protocol):
    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        """The matcher's input; `seeds`, one per image, ask for random augmentation."""
        ...


class FeatureImages:
    """Features from a store."""

    def __init__(self, store: FeatureStore) -> None:
        self.store = store

    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        return self.store.batch([image.id for image in images])


class PixelImages:
    """Pixels decoded from the corpus's image files.

    `preprocess` turns a PIL image into a (3, height, width) tensor; `augment(image, rng)` replaces it in training.
    Without augmentation, decoded images are kept in memory up to `CACHE_BYTES`.
    """

    def __init__(
        self,
        corpus: Corpus,
        preprocess: Callable[[Any], Tensor],
        augment: Callable[[Any, np.random.Generator], Tensor] | None = None,
    ) -> None:
        self.corpus = corpus
        self.preprocess = preprocess
        self.augment = augment
        self._cache: dict[str, Tensor] = {}
        self._cached_bytes = 0

    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        if seeds is None or self.augment is None:
            return ImageBatch(pixels=torch.stack([self._plain(image) for image in images]))
        return ImageBatch(
            pixels=torch.stack(
                [
                    self.augment(open_image(self.corpus.image_path(image)), np.random.default_rng(seed))
                    for image, seed in zip(images, seeds, strict=True)
                ]
            )
        )

    def _plain(self, image: Image) -> Tensor:
        if image.id in self._cache:
            return self._cache[image.id]
        pixels = self.preprocess(open_image(self.corpus.image_path(image)))
        if self._cached_bytes + pixels.nbytes <= CACHE_BYTES:
            self._cache[image.id] = pixels
            self._cached_bytes += pixels.nbytes
        return pixels


class TokenizedTexts:
    """The texts of a split, tokenized once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[Text],
        features: WordFeatures | None = None,
        change: Callable[[Sequence[np.ndarray], Sequence[Sequence[int]]], list[np.ndarray]] | None = None,
    ) -> None:
        self.features = features  # of the same texts, by a frozen text encoder
        self.change = change  # of the texts' ids, in training
        self.multiple = 1  # the length of a batch is a multiple of this, at most that of the longest text: fewer shapes
        self.pad = tokenizer.pad
        before = cuts(tokenizer)
        self._ids = [np.asarray(tokenizer.ids(text.text), dtype=np.int32) for text in texts]
        tell_cut(tokenizer, before, len(texts))
        self._max_length = max(map(len, self._ids), default=0)

    def __len__(self) -> int:
        return len(self._ids)

    def lengths(self) -> list[int]:
        return [len(ids) for ids in self._ids]

    def batch(self, rows: Iterable[int], seeds: Sequence[Sequence[int]] | None = None) -> TextBatch:
        """These texts; `seeds`, one for each, ask for random changes."""
        rows = list(rows)
        ids = [self._ids[row] for row in rows]
        if seeds and self.change is not None:
            ids = self.change(ids, seeds)
        batch = TextBatch.from_ids(ids, self.pad)
        if self.multiple > 1:
            rounded = -(-batch.tokens.shape[1] // self.multiple) * self.multiple
            batch = batch.padded_to(min(rounded, self._max_length), self.pad)
        if self.features is None:
            return batch
        return replace(batch, features=self.features.batch(rows, batch.tokens.shape[1]))


class _PairData(Dataset):
    """Indexed by whole batches of (image row, text row) pairs: one gather from disk a batch."""

    def __init__(
        self,
        split: Split,
        images: ImageSource,
        texts: TokenizedTexts,
        pairs: Sequence[np.ndarray],
        seed: tuple[int, ...] | None,
        offline: Callable[[int], OfflineRows] | None,
        position_noise: bool,
        pool: Callable[[int], np.ndarray] | None,
    ) -> None:
        self.split, self.images, self.texts = split, images, texts
        self.pairs, self.seed, self.offline, self.position_noise, self.pool = pairs, seed, offline, position_noise, pool

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number: int) -> PairBatch:
        image_rows, text_rows = np.ascontiguousarray(self.pairs[number].T)
        batch = PairBatch(
            images=self._images(image_rows, text_rows),
            texts=self._texts(text_rows, image_rows),
            image_groups=torch.from_numpy(self.split.image_groups[image_rows]),
            text_groups=torch.from_numpy(self.split.text_groups[text_rows]),
            image_rows=torch.from_numpy(image_rows),
            text_rows=torch.from_numpy(text_rows),
            offline=None if self.offline is None else self._offline(self.offline(number)),
            pool=None if self.pool is None else self._pool(self.pool(number)),
        )
        return batch if self.texts.multiple == 1 else batch.of_one_length(self.texts.pad)

    def _images(self, image_rows: np.ndarray, text_rows: np.ndarray) -> ImageBatch:
        return self.images.batch([self.split.images[row] for row in image_rows], self._seeds(image_rows, text_rows))

    def _seeds(self, image_rows: np.ndarray, text_rows: np.ndarray, *stream: int) -> list[tuple[int, ...]] | None:
        """One stream of random numbers per pair: the same whichever worker or process loads it."""
        if self.seed is None:
            return None
        pairs = zip(image_rows.tolist(), text_rows.tolist(), strict=True)
        return [(*self.seed, image, text, *stream) for image, text in pairs]

    def _texts(self, text_rows: np.ndarray, image_rows: np.ndarray, stream: int = POSITION_NOISE) -> TextBatch:
        """Texts, with the random number of each (text, image) pair where the matcher wants one."""
        batch = self.texts.batch(text_rows, self._seeds(image_rows, text_rows, stream, WORDS))
        seeds = self._seeds(image_rows, text_rows, stream)
        if not self.position_noise or seeds is None:
            return batch
        drawn = [np.random.default_rng(seed).random() for seed in seeds]
        return replace(batch, position_noise=torch.tensor(drawn, dtype=torch.float32))

    def _pool(self, rows: np.ndarray) -> TextPool:
        texts = self._texts(rows, np.zeros_like(rows), POOL)
        return TextPool(texts, torch.from_numpy(self.split.text_groups[rows]))

    def _offline(self, rows: OfflineRows) -> OfflineBatch:
        return OfflineBatch(
            texts=self._texts(rows.off_text, rows.derived_image),
            images=self._images(rows.off_image, rows.derived_text),
            derived_images=self._images(rows.derived_image, rows.off_text),
            derived_texts=self._texts(rows.derived_text, rows.off_image),
        )


def load_pairs(
    split: Split,
    images: ImageSource,
    texts: TokenizedTexts,
    pairs: Sequence[np.ndarray],
    *,
    seed: tuple[int, ...] | None = None,
    offline: Callable[[int], OfflineRows] | None = None,
    position_noise: bool = False,
    pool: Callable[[int], np.ndarray] | None = None,
    workers: int = 0,
) -> Iterator[PairBatch]:
    """Batches of pairs in the order of `pairs`, each (n, 2): image row, text row.

    `seed` turns augmentation on. With `position_noise` each text also has a random number. `offline` gives the offline
    negatives of batch number 0, 1, ..., `pool` the rows of further texts.
    """
    data = _PairData(split, images, texts, pairs, seed, offline, position_noise, pool)
    # Its own generator: the loader draws a seed when it starts, which would shift dropout after a resumed epoch.
    yield from DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator().manual_seed(0),
    )


def image_batches(images: ImageSource, rows: Sequence[Image], batch_size: int) -> Iterator[ImageBatch]:
    """All of some images, in order."""
    for start in range(0, len(rows), batch_size):
        yield images.batch(rows[start : start + batch_size])


def text_batches(texts: TokenizedTexts, batch_size: int, part: slice = slice(None)) -> Iterator[TextBatch]:
    """All texts, or a part of them, in order."""
    rows = range(len(texts))[part]
    for start in range(0, len(rows), batch_size):
        yield texts.batch(rows[start : start + batch_size])


Item = TypeVar("Item")
Done = TypeVar("Done")


def batches_ahead(
    items: Iterable[Item], work: Callable[[Item], Done], batch_size: int, workers: int
) -> Iterator[tuple[list[Item], list[Done]]]:
    """Batches of items with what `work` made of each in threads, a few batches ahead.

    >>> [done for _, done in batches_ahead([1, 2, 3], lambda n: n * n, batch_size=2, workers=2)]
    [[1, 4], [9]]
    """
    rest = iter(items)
    waiting: deque[tuple[list[Item], list[Future[Done]]]] = deque()
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="ahead")
    try:
        while True:
            while len(waiting) < BATCHES_AHEAD and (chosen := list(islice(rest, batch_size))):
                waiting.append((chosen, [pool.submit(work, item) for item in chosen]))
            if not waiting:
                return
            chosen, futures = waiting.popleft()
            yield chosen, [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)
