"""Features or decoded images kept in the memory of the device (`data.keep`): a batch is one gather, without a copy."""

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
from quintet.data.feature_store import FeatureStore
from quintet.data.images import open_image
from quintet.errors import RecipeError

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

READ = 256  # images read from disk at a time
SHARE = 0.25  # of the free memory that features or images may take before they are left on disk


class ResidentFeatures:
    """The features of some images, in the type they are stored in; batches equal those of the store bit for bit."""

    def __init__(self, store: FeatureStore, ids: Sequence[str], device: torch.device) -> None:
        unique = list(dict.fromkeys(ids))
        self._row_of = {id_: row for row, id_ in enumerate(unique)}
        parts = []
        for start in range(0, len(unique), READ):
            batch = store.batch(unique[start : start + READ])
            assert batch.fragments is not None
            parts.append(
                ImageBatch(batch.fragments.to(store.dtype), batch.real(), batch.boxes).to(device)  # (n, L, d)
            )
        self._fragments = torch.cat([_required(part.fragments) for part in parts])
        mask = torch.cat([_required(part.mask) for part in parts])
        self._mask = None if bool(mask.all()) else mask
        boxed = parts[0].boxes is not None
        self._boxes = torch.cat([_required(part.boxes) for part in parts]) if boxed else None

    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        rows = torch.tensor([self._row_of[image.id] for image in images]).to(self._fragments.device, non_blocking=True)
        return ImageBatch(
            fragments=self._fragments[rows].float(),  # (n, L, d)
            mask=None if self._mask is None else self._mask[rows],
            boxes=None if self._boxes is None else self._boxes[rows],
        )


def fits_on(device: torch.device, store: FeatureStore, images: int) -> bool:
    """Whether so many images' features take a small part of an accelerator's free memory."""
    if device.type != "cuda":
        return False
    needed = images * store.fragments * store.dim * store.dtype.itemsize
    free, _ = torch.cuda.mem_get_info(device)
    return needed <= SHARE * free


def _required(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


Shrink = Callable[["PILImage"], "PILImage"]
SIDE, LONG = 256, 1.5  # the usual short side, and the long one over it, for the estimate of what they take


class PreparesBytes(Prepares, Protocol):
    """A tower's `quintet.backbones.preprocess.Preprocess`, which can stop at bytes and go on from them."""

    def view(self, image: PILImage) -> PILImage: ...
    def normalise_bytes(self, pixels: Tensor) -> Tensor: ...


class ImageMemory:
    """The images of a corpus, as far as they were asked for, shrunk in each way that was asked for."""

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.corpus, self.device = corpus, device
        self._kept: dict[tuple[object, ...], dict[str, Tensor]] = {}

    def plain(self, preprocess: PreparesBytes) -> KeptViews:
        """The views that the tower is evaluated on."""
        return KeptViews(self, preprocess, preprocess.view, ("plain", preprocess))

    def random(self, preprocess: PreparesBytes, crop: Crop, flip: float) -> KeptViews:
        """Random views: a crop of the tower's size from an image that is somewhat larger, sometimes mirrored."""
        side = preprocess.short_side or round(max(preprocess.size) * 8 / 7)
        shrinks: dict[str, tuple[Shrink, tuple[object, ...]]] = {
            "none": (_squeeze(preprocess.size, preprocess.resample), ("squeezed", preprocess.size)),
            "squeeze": (_squeeze((side, side), preprocess.resample), ("squeezed", side)),
            "shift": (_short_side(side, preprocess.resample), ("short side", side)),
        }
        if crop not in shrinks:
            raise RecipeError(
                f"augment.crop: {crop} changes the size of what it cuts, which images that are kept cannot serve; "
                "use data.keep: disk, or crop: shift"
            )
        return KeptViews(self, preprocess, *shrinks[crop], flip=flip)

    def take(self, images: Sequence[Image], shrink: Shrink, key: tuple[object, ...]) -> list[Tensor]:
        """(3, h, w) bytes of each image; what is not there yet is decoded, several at once."""
        kept = self._kept.setdefault(key, {})
        missing = {image.id: image for image in images if image.id not in kept}
        if missing:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                decoded = pool.map(lambda image: self._decode(image, shrink), missing.values())
                kept.update(zip(missing, decoded, strict=True))
        return [kept[image.id] for image in images]

    def _decode(self, image: Image, shrink: Shrink) -> Tensor:
        pixels = np.asarray(shrink(open_image(self.corpus.image_path(image))))  # (h, w, 3)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).to(self.device)


class KeptViews:
    """Views of kept images as a matcher wants them; with `seeds`, one per image, random ones."""

    def __init__(
        self,
        memory: ImageMemory,
        preprocess: PreparesBytes,
        shrink: Shrink,
        key: tuple[object, ...],
        flip: float = 0.0,
    ) -> None:
        self.memory, self.preprocess, self.shrink, self.key, self.flip = memory, preprocess, shrink, key, flip

    def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
        if seeds is None and self.key[0] != "plain":
            return self.memory.plain(self.preprocess).batch(images)
        views = self.memory.take(images, self.shrink, self.key)
        if seeds is not None:
            views = [self._cut(view, seed) for view, seed in zip(views, seeds, strict=True)]
        return ImageBatch(pixels=self.preprocess.normalise_bytes(torch.stack(views)))  # (n, 3, height, width)

    def _cut(self, image: Tensor, seed: Sequence[int]) -> Tensor:
        rng = np.random.default_rng(seed)
        height, width = self.preprocess.size
        top, left = (
            int(rng.integers(whole - part + 1)) for whole, part in zip(image.shape[1:], (height, width), strict=True)
        )
        view = image[:, top : top + height, left : left + width]
        return view.flip(2) if rng.random() < self.flip else view


def check_fits(device: torch.device, images: int) -> None:
    """Refuse to fill a GPU with images that leave too little room for training."""
    if device.type != "cuda":
        return
    needed, free = images * 3 * SIDE**2 * LONG, torch.cuda.mem_get_info(device)[0]
    if needed > SHARE * free:
        raise RecipeError(
            f"data.keep: device would fill {needed / 2**30:.1f} of {free / 2**30:.1f} GiB with {images} images; "
            "use data.keep: disk with data.workers"
        )


def _short_side(side: int, resample: str) -> Shrink:
    def shrink(image: PILImage) -> PILImage:
        zoom = side / min(image.size)
        wide, high = (max(side, round(length * zoom)) for length in image.size)
        return _resized(image, (wide, high), resample)

    return shrink


def _squeeze(size: tuple[int, int], resample: str) -> Shrink:
    return lambda image: _resized(image, (size[1], size[0]), resample)


def _resized(image: PILImage, size: tuple[int, int], resample: str) -> PILImage:
    from PIL.Image import Resampling

    return image.resize(size, Resampling[resample.upper()])
