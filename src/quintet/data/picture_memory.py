"""Pictures decoded once and kept as bytes in a device's memory: views are cut, flipped and normalised there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from quintet.data.augment import Crop, Prepares
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Corpus, Image
from quintet.data.pictures import open_picture
from quintet.errors import RecipeError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Shrink = Callable[["Picture"], "Picture"]
SHARE = 0.25  # of the free memory of a GPU that pictures may take
SIDE, LONG = 256, 1.5  # the usual short side, and the long one over it, for the estimate of what they take


class PreparesBytes(Prepares, Protocol):
    """A tower's `quintet.backbones.Preprocess`, which can stop at bytes and go on from them."""

    def view(self, picture: Picture) -> Picture: ...
    def normalise_bytes(self, pixels: Tensor) -> Tensor: ...


class PictureMemory:
    """The pictures of a corpus, as far as they were asked for, shrunk in each way that was asked for."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.corpus, self.device = corpus, device
        self._kept: dict[tuple[object, ...], dict[str, Tensor]] = {}

    def plain(self, preprocess: PreparesBytes) -> KeptViews:
        """The views that the tower is evaluated on."""
        return KeptViews(self, preprocess, preprocess.view, ("plain", preprocess))

    def random(self, preprocess: PreparesBytes, crop: Crop, flip: float) -> KeptViews:
        """Random views: a place of the tower's size in a picture that is somewhat larger, sometimes mirrored."""
        side = preprocess.short_side or round(max(preprocess.size) * 8 / 7)
        shrinks: dict[str, tuple[Shrink, tuple[object, ...]]] = {
            "none": (_squeeze(preprocess.size, preprocess.resample), ("squeezed", preprocess.size)),
            "squeeze": (_squeeze((side, side), preprocess.resample), ("squeezed", side)),
            "shift": (_short_side(side, preprocess.resample), ("short side", side)),
        }
        if crop not in shrinks:
            raise RecipeError(
                f"augment.crop: {crop} changes the size of what it cuts, which pictures that are kept cannot serve; "
                "use data.keep: disk, or crop: shift"
            )
        return KeptViews(self, preprocess, *shrinks[crop], flip=flip)

    def take(self, images: Sequence[Image], shrink: Shrink, key: tuple[object, ...]) -> list[Tensor]:
        """(3, h, w) bytes of each picture; what is not there yet is decoded, several at once."""
        kept = self._kept.setdefault(key, {})
        missing = {image.id: image for image in images if image.id not in kept}
        if missing:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                decoded = pool.map(lambda image: self._decode(image, shrink), missing.values())
                kept.update(zip(missing, decoded, strict=True))
        return [kept[image.id] for image in images]

    def _decode(self, image: Image, shrink: Shrink) -> Tensor:
        pixels = np.asarray(shrink(open_picture(self.corpus.picture(image))))  # (h, w, 3)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).to(self.device)


class KeptViews:
    """Views of kept pictures as a matcher wants them; with `seeds`, one per picture, random ones."""

    def __init__(
        self,
        memory: PictureMemory,
        preprocess: PreparesBytes,
        shrink: Shrink,
        key: tuple[object, ...],
        flip: float = 0.0,
    ) -> None:
        self.memory, self.preprocess, self.shrink, self.key, self.flip = memory, preprocess, shrink, key, flip

    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        if seeds is None and self.key[0] != "plain":
            return self.memory.plain(self.preprocess).batch(images)
        pictures = self.memory.take(images, self.shrink, self.key)
        if seeds is not None:
            pictures = [self._cut(picture, seed) for picture, seed in zip(pictures, seeds, strict=True)]
        return ImageBatch(pixels=self.preprocess.normalise_bytes(torch.stack(pictures)))  # (n, 3, height, width)

    def _cut(self, picture: Tensor, seed: Sequence[int]) -> Tensor:
        rng = np.random.default_rng(seed)
        height, width = self.preprocess.size
        top, left = (
            int(rng.integers(whole - part + 1)) for whole, part in zip(picture.shape[1:], (height, width), strict=True)
        )
        view = picture[:, top : top + height, left : left + width]
        return view.flip(2) if rng.random() < self.flip else view


def check_fits(device: torch.device, pictures: int) -> None:
    """Refuse to fill a GPU with pictures that leave too little room for training."""
    if device.type != "cuda":
        return
    needed, free = pictures * 3 * SIDE**2 * LONG, torch.cuda.mem_get_info(device)[0]
    if needed > SHARE * free:
        raise RecipeError(
            f"data.keep: device would fill {needed / 2**30:.1f} of {free / 2**30:.1f} GiB with {pictures} pictures; "
            "use data.keep: disk with data.workers"
        )


def _short_side(side: int, resample: str) -> Shrink:
    def shrink(picture: Picture) -> Picture:
        zoom = side / min(picture.size)
        wide, high = (max(side, round(length * zoom)) for length in picture.size)
        return _resized(picture, (wide, high), resample)

    return shrink


def _squeeze(size: tuple[int, int], resample: str) -> Shrink:
    return lambda picture: _resized(picture, (size[1], size[0]), resample)


def _resized(picture: Picture, size: tuple[int, int], resample: str) -> Picture:
    from PIL.Image import Resampling

    return picture.resize(size, Resampling[resample.upper()])
