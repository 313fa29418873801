"""Random views of a picture for training on pixels. Every draw comes from the generator that is passed in.

Each function returns a picture of the final size; the tower's `Preprocess.normalise` makes the tensor of it. Boxes are
cut from the source and resized once, so that a very long picture costs no more than a square one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

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
    """A box of random area (share of the picture's, uniform in `scale`) and random aspect (log-uniform in `ratio`).

    Where ten draws do not fit a long picture, the central part whose aspect is the nearest allowed one.
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
    """The box of a random crop of `size` (height, width) from a picture whose short side becomes `short_side`."""
    if short_side < max(size):
        raise ValueError(f"short_side {short_side} is smaller than the crop {size}")
    zoom = short_side / min(width, height)
    wide, high = min(size[1] / zoom, width), min(size[0] / zoom, height)
    left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
    return (left, top, min(left + wide, width), min(top + high, height))


def squeezed_crop_box(
    width: int, height: int, rng: np.random.Generator, size: tuple[int, int] = (224, 224), side: int = 256
) -> Box:
    """The box of a random crop of `size` (height, width) from a picture squeezed into a square of `side`."""
    if side < max(size):
        raise ValueError(f"side {side} is smaller than the crop {size}")
    wide, high = width * size[1] / side, height * size[0] / side
    left, top = rng.uniform(0, width - wide), rng.uniform(0, height - high)
    return (left, top, min(left + wide, width), min(top + high, height))


def random_flip(picture: Image, rng: np.random.Generator, probability: float = 0.5) -> Image:
    """The mirror image, sometimes. Use 0 where sentences say left and right."""
    return picture.transpose(FLIP) if rng.random() < probability else picture  # type: ignore[arg-type]


class Prepares(Protocol):
    """What a view has to know about the tower it is for: `quintet.backbones.Preprocess`."""

    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def short_side(self) -> int | None: ...
    @property
    def resample(self) -> str: ...
    def normalise(self, picture: Image) -> Tensor: ...


def random_view(
    picture: Image,
    rng: np.random.Generator,
    size: tuple[int, int],
    *,
    crop: Crop = "resized",
    flip: float = 0.5,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    short_side: int | None = None,
    resample: str = "bilinear",
) -> Image:
    """One random view of `size` (height, width): a crop, then a flip with the probability `flip`.

    `crop="resized"` draws area, aspect and place (VSE++ on pixels), "shift" only the place of a crop of `size` from the
    picture with its short side at `short_side` (by default 8/7 of the size, as 256 is of 224), "squeeze" the same from
    the picture made square (Dual-Path's pedestrians), and "none" squeezes the whole picture into the size.
    """
    width, height = picture.size
    if crop == "resized":
        box = resized_crop_box(width, height, rng, scale, ratio)
    elif crop in ("shift", "squeeze"):
        box_of = shifted_crop_box if crop == "shift" else squeezed_crop_box
        box = box_of(width, height, rng, size, short_side or round(max(size) * 8 / 7))
    elif crop == "none":
        box = (0, 0, width, height)
    else:
        raise ValueError(f"crop must be 'none', 'resized', 'shift' or 'squeeze', got {crop!r}")
    if picture.mode != "RGB":
        picture = picture.convert("RGB")
    from PIL.Image import Resampling

    view = picture.resize((size[1], size[0]), Resampling[resample.upper()], box=box)
    return random_flip(view, rng, flip)


def pixel_augmentation(
    preprocess: Prepares,
    *,
    crop: Crop = "resized",
    flip: bool | float = True,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Callable[[Image, np.random.Generator], Tensor]:
    """A function from (picture, generator) to the tower's tensor of a random view; worker processes can be sent it."""
    probability = 0.5 if flip is True else float(flip)
    return partial(_view_tensor, preprocess=preprocess, crop=crop, flip=probability, scale=scale, ratio=ratio)


def _view_tensor(
    picture: Image,
    rng: np.random.Generator,
    *,
    preprocess: Prepares,
    crop: Crop,
    flip: float,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    view = random_view(
        picture,
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
