"""Random changes in training: views of images, fewer regions, changed words.

Images: each function returns an image of the final size, of which the tower's `Preprocess.normalise` makes the tensor.
Boxes are cut from the source and resized once, so that a very long image costs no more than a square one. Every draw
comes from the generator that is passed in.

Regions and words: every draw is a function of the pair's seeds and the position (`pair_keys`, `uniform`), for a whole
batch at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from quintet.data.batches import ImageBatch
from quintet.data.corpus import Image
from quintet.data.loading import ImageSource
from quintet.data.vocabulary import TokenKinds
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

Box = tuple[float, float, float, float]  # left, top, right, bottom
Crop = Literal["none", "resized", "shift", "squeeze"]
FLIP = 0  # Pillow's Transpose.FLIP_LEFT_RIGHT
ATTEMPTS = 10


def resized_crop_box(
    width: int,
    height: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """A box of random area (share of the image's, uniform in `scale`) and random aspect (log-uniform in `ratio`).

    Where ten draws do not fit a long image, the central part whose aspect is the nearest allowed one.
    """
    for _ in range(ATTEMPTS):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if wide <= width and high <= height:
            left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
            return (left, top, min(left + wide, width), min(top + high, height))
    aspect = min(max(width / height, ratio[0]), ratio[1])
    wide, high = min(width, height * aspect), min(height, width / aspect)
    left, top = (width - wide) / 2, (height - high) / 2
    return (left, top, min(left + wide, width), min(top + high, height))


def shifted_crop_box(
    width: int, height: int, rng: np.random.Generator, size: tuple[int, int] = (224, 224), short_side: int = 256
) -> Box:
    """The box of a random crop of `size` (height, width) from an image whose short side becomes `short_side`."""
    if short_side < max(size):
        raise ValueError(f"short_side {short_side} is smaller than the crop {size}")
    zoom = short_side / min(width, height)
    wide, high = min(size[1] / zoom, width), min(size[0] / zoom, height)
    left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
    return (left, top, min(left + wide, width), min(top + high, height))


def squeezed_crop_box(
    width: int, height: int, rng: np.random.Generator, size: tuple[int, int] = (224, 224), side: int = 256
) -> Box:
    """The box of a random crop of `size` (height, width) from an image squeezed into a square of `side`."""
    if side < max(size):
        raise ValueError(f"side {side} is smaller than the crop {size}")
    wide, high = width * size[1] / side, height * size[0] / side
    left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
    return (left, top, min(left + wide, width), min(top + high, height))


def random_flip(image: PILImage, rng: np.random.Generator, probability: float = 0.5) -> PILImage:
    """The mirror image, sometimes. Use 0 where texts say left and right."""
    return image.transpose(FLIP) if rng.random() < probability else image  # type: ignore[arg-type]


class Prepares(Protocol):
    """What augmentation needs of the tower: `quintet.backbones.preprocess.Preprocess`."""

    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def short_side(self) -> int | None: ...
    @property
    def resample(self) -> str: ...
    def normalise(self, image: PILImage) -> Tensor: ...


def random_view(
    image: PILImage,
    rng: np.random.Generator,
    size: tuple[int, int],
    *,
    crop: Crop = "resized",
    flip: float = 0.5,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    short_side: int | None = None,
    resample: str = "bilinear",
) -> PILImage:
    """One random view of `size` (height, width): a crop, then a flip with the probability `flip`.

    `crop="resized"` draws area, aspect and position (VSE++ on pixels), "shift" only the position of a crop of `size`
    from the image with its short side at `short_side` (by default 8/7 of the size, as 256 is of 224), "squeeze" the
    same from the image made square (Dual-Path's pedestrians), and "none" squeezes the whole image into the size.
    """
    width, height = image.size
    if crop == "resized":
        box = resized_crop_box(width, height, rng, scale, ratio)
    elif crop in ("shift", "squeeze"):
        box_of = shifted_crop_box if crop == "shift" else squeezed_crop_box
        box = box_of(width, height, rng, size, short_side or round(max(size) * 8 / 7))
    elif crop == "none":
        box = (0, 0, width, height)
    else:
        raise ValueError(f"crop must be 'none', 'resized', 'shift' or 'squeeze', got {crop!r}")
    if image.mode != "RGB":
        image = image.convert("RGB")
    from PIL.Image import Resampling

    view = image.resize((size[1], size[0]), Resampling[resample.upper()], box=box)
    return random_flip(view, rng, flip)


def pixel_augmentation(
    preprocess: Prepares,
    *,
    crop: Crop = "resized",
    flip: bool | float = True,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Callable[[PILImage, np.random.Generator], Tensor]:
    """A function from (image, generator) to the tower's tensor of a random view; worker processes can be sent it."""
    probability = 0.5 if flip is True else float(flip)
    return partial(_view_tensor, preprocess=preprocess, crop=crop, flip=probability, scale=scale, ratio=ratio)


def _view_tensor(
    image: PILImage,
    rng: np.random.Generator,
    *,
    preprocess: Prepares,
    crop: Crop,
    flip: float,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    view = random_view(
        image,
        rng,
        preprocess.size,
        crop=crop,
        flip=flip,
        scale=scale,
        ratio=ratio,
        short_side=preprocess.short_side,
        resample=preprocess.resample,
    )
    return preprocess.normalise(view)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def pair_keys(seeds: Sequence[Sequence[int]], stream: int = 0) -> np.ndarray:
    """(n,) uint64: one key a row of seeds (n, any number); different streams have nothing in common.

    >>> a, b = pair_keys([(0, 1), (0, 2)])
    >>> bool(a != b), bool(a == pair_keys([(0, 1)])[0])
    (True, True)
    """
    columns = np.asarray(seeds, dtype=np.uint64).reshape(len(seeds), -1).T
    key = np.full(len(seeds), stream + 1, dtype=np.uint64)
    for column in columns:
        key = _mixed(key * _GOLDEN + column)
    return key


def uniform(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) for each key and position, broadcast against each other.

    >>> uniform(pair_keys([(3,), (4,)])[:, None], np.arange(5)).shape
    (2, 5)
    """
    bits = _mixed(keys + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mixed(values: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit given; unsigned arithmetic wraps, as it should here."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


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
    """Texts with each word changed with a probability: half of those hidden, a tenth replaced, the rest left out.

    A word is all of its pieces; hidden and replaced words keep their number of pieces. Special tokens stay.
    """

    def __init__(self, kinds: TokenKinds, probability: float) -> None:
        if kinds.mask is None:
            raise QuintetError("this tokenizer has no token that stands for a hidden word; set augment.words=0")
        self.kinds, self.mask = kinds, kinds.mask
        self.probability = probability
        self.ordinary = np.flatnonzero(~kinds.special)  # what may replace a piece

    def __call__(self, texts: Sequence[np.ndarray], seeds: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Arrays of ids -> as many arrays, none longer than before; `seeds`, one for each, decide.

        The texts are concatenated, (tokens,), and changed together.
        """
        lengths = np.array([len(ids) for ids in texts])
        starts = np.cumsum(lengths) - lengths  # of each text
        ids = np.concatenate(texts)  # (tokens,)
        text = np.repeat(np.arange(len(texts)), lengths)  # (tokens,) which one
        inside = ~self.kinds.special[ids]  # (tokens,) part of a word
        begins = inside & ~self.kinds.continues[ids]
        begun = np.bincount(text, begins, len(texts)).astype(np.int64)  # words of each text
        word = np.cumsum(begins) - (np.cumsum(begun) - begun)[text]  # (tokens,) which of its text
        draw = uniform(pair_keys(seeds)[text], word) / self.probability  # changed: below one
        draw[~inside] = 1.0
        position = np.arange(len(ids)) - starts[text]
        other = (uniform(pair_keys(seeds, stream=1)[text], position) * len(self.ordinary)).astype(np.int64)
        replaced = np.where(draw < HIDDEN + REPLACED, self.ordinary[other], ids)
        changed = np.where(draw < HIDDEN, self.mask, replaced)
        kept = (draw < HIDDEN + REPLACED) | (draw >= 1)
        bare = np.bincount(text, kept & inside, len(texts)) == 0  # only special tokens would be left
        kept |= bare[text]
        changed = np.where(bare[text], ids, changed)[kept].astype(ids.dtype)
        return np.split(changed, np.cumsum(np.bincount(text, kept, len(texts))).astype(np.int64)[:-1])
