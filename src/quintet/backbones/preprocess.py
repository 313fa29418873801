"""From an image to the tensor an image tower was trained on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from quintet.errors import QuintetError

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[float, float, float, float]  # left, top, right, bottom
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SPARE = 1.5  # times the tower's input, of an image that is decoded at less than its size
# Pillow's own numbers, so that this file can be read where Pillow is not installed.
MOST_RESIZED = 20_000  # pixels of the long side, above which crop "resize" resizes only the part that is kept
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


@dataclass(frozen=True)
class Preprocess:
    """What a tower wants: its size, which part of the image, and how bytes become numbers.

    `crop="center"` is the usual evaluation view: short side to `short_side`, then the middle `size`. `crop="squeeze"`
    keeps the whole image and changes its aspect ratio instead, so that nothing a caption mentions is cut away.
    The part is chosen in the source and resized once, so the cost does not depend on how long a thin image is.

    `crop="resize"` is what the image processors of transformers do, to the bit: the whole image is resized in whole
    pixels, its short side to `short_side`, and then cropped, or filled up with black where it is smaller.

    `mean` and `std` are in the order of `channels`, on the scale of the values after `bytes * scale`.
    """

    size: tuple[int, int]  # height, width
    crop: Literal["squeeze", "center", "resize"] = "center"
    short_side: int | None = None  # for "center"; None: the largest part that has the tower's aspect ratio
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    scale: float = 1 / 255  # 1 for towers that were trained on 0..255
    channels: Literal["RGB", "BGR"] = "RGB"
    resample: str = "bilinear"

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise ValueError(f"size must be positive, got {self.size}")
        if self.crop not in ("squeeze", "center", "resize"):
            raise ValueError(f"crop must be 'squeeze', 'center' or 'resize', got {self.crop!r}")
        if self.crop == "resize" and self.short_side is None:
            raise ValueError("crop 'resize' needs a short_side")
        if self.channels not in ("RGB", "BGR"):
            raise ValueError(f"channels must be 'RGB' or 'BGR', got {self.channels!r}")
        if self.resample not in RESAMPLE:
            raise ValueError(f"resample must be one of {', '.join(RESAMPLE)}, got {self.resample!r}")
        if self.crop == "center" and self.short_side is not None and self.short_side < max(self.size):
            raise ValueError(f"short_side {self.short_side} is smaller than the crop {self.size}")

    def __call__(self, image: Image) -> Tensor:
        """(3, height, width) float32."""
        return self.normalise(self.view(image))

    def view(self, image: Image) -> Image:
        """The part of the image that the tower sees, in the tower's size."""
        height, width = self.size
        if self.crop == "squeeze" and image.size == (width, height):
            return image
        if image.mode != "RGB":  # a palette or an alpha channel cannot be interpolated
            image = image.convert("RGB")
        if self.crop == "resize" and (whole := self._whole_pixels(*image.size)) is not None:
            left, top = (whole[0] - width) // 2, (whole[1] - height) // 2
            resized = image if image.size == whole else image.resize(whole, RESAMPLE[self.resample])
            return resized.crop((left, top, left + width, top + height))
        return image.resize((width, height), RESAMPLE[self.resample], box=self.source_box(*image.size))

    def _whole_pixels(self, width: int, height: int) -> tuple[int, int] | None:
        """(width, height) of the resized image; None where it is so thin that only the part that is kept is resized."""
        assert self.short_side is not None
        short, long = min(width, height), max(width, height)
        longer = int(self.short_side * long / short)
        if longer > MOST_RESIZED:
            return None
        return (longer, self.short_side) if width > height else (self.short_side, longer)

    def normalise(self, image: Image) -> Tensor:
        """(3, height, width) float32 of an image that has its final size already (after an augmentation)."""
        values = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))  # (height, width, 3) uint8
        if self.channels == "BGR":
            values = values[..., ::-1]
        planes = [table[values[..., channel]] for channel, table in enumerate(self._table)]
        return torch.from_numpy(np.stack(planes))  # (3, height, width)

    @cached_property
    def _table(self) -> np.ndarray:
        """(3, 256): what each byte of each channel becomes."""
        scaled = (np.arange(256) * self.scale).astype(np.float32)  # step by step, as transformers rounds
        mean, std = np.array(self.mean, np.float32)[:, None], np.array(self.std, np.float32)[:, None]
        return (scaled - mean) / std

    def normalise_bytes(self, pixels: Tensor) -> Tensor:
        """`normalise` for bytes of several images, (n, 3, height, width), wherever they are."""
        if self.channels == "BGR":
            pixels = pixels.flip(1)
        factor, offset = (torch.from_numpy(part).to(pixels.device) for part in self._factor_and_offset())
        return pixels.float() * factor[:, None, None] - offset[:, None, None]

    def _factor_and_offset(self) -> tuple[np.ndarray, np.ndarray]:
        """One pass: (bytes * scale - mean) / std = bytes * (scale / std) - mean / std."""
        std = np.asarray(self.std, dtype=np.float64)
        return (self.scale / std).astype(np.float32), (np.asarray(self.mean) / std).astype(np.float32)

    def source_box(self, width: int, height: int) -> Box:
        """The part of an image of this size that the tower sees, in its pixels.

        >>> Preprocess((224, 224), short_side=256).source_box(512, 256)
        (144.0, 16.0, 368.0, 240.0)
        >>> Preprocess((224, 224), crop="squeeze").source_box(512, 256)
        (0.0, 0.0, 512.0, 256.0)
        """
        if self.crop == "squeeze":
            return (0.0, 0.0, float(width), float(height))
        tall, wide = self.size
        zoom = self.short_side / min(width, height) if self.short_side else max(wide / width, tall / height)
        # min(): rounding must not push the box over the edge, which Pillow refuses.
        part_width, part_height = min(wide / zoom, float(width)), min(tall / zoom, float(height))
        left, top = (width - part_width) / 2, (height - part_height) / 2
        return (left, top, min(left + part_width, float(width)), min(top + part_height, float(height)))

    def least(self, width: int, height: int) -> tuple[int, int]:
        """The smallest size that an image of this size may be decoded at: what the tower sees of it stays at least
        one and a half times as large as its input on either axis, so that resizing still has pixels to average.

        >>> Preprocess((224, 224), crop="squeeze").least(4000, 3000)
        (448, 336)
        """
        left, top, right, bottom = self.source_box(width, height)
        tall, wide = self.size
        factor = min(1.0, SPARE * max(wide / (right - left), tall / (bottom - top)))
        return math.ceil(width * factor - 1e-6), math.ceil(height * factor - 1e-6)  # a factor is rounded

    def relative_box(self, width: int, height: int) -> Box:
        """`source_box` in 0..1 of the image."""
        left, top, right, bottom = self.source_box(width, height)
        return (left / width, top / height, right / width, bottom / height)

    def squeezed(self) -> Preprocess:
        """The same tower's input from the whole image."""
        return replace(self, crop="squeeze")

    def state(self) -> dict[str, Any]:
        """Plain values for JSON.

        >>> preprocess = Preprocess((96, 96), crop="squeeze")
        >>> Preprocess.from_state(preprocess.state()) == preprocess
        True
        """
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @staticmethod
    def from_state(state: dict[str, Any]) -> Preprocess:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in state.items()
        }
        try:
            return PatchPreprocess(**values) if "patch" in values else Preprocess(**values)
        except (TypeError, ValueError) as error:
            raise QuintetError(f"the description of how images are prepared is not valid: {error}") from None


@dataclass(frozen=True)
class PatchPreprocess(Preprocess):
    """The whole image in its own aspect ratio, as at most `max_patches` patches (NaFlex, SigLIP 2).

    Gives (1, 1 + max_patches, patch * patch * 3): the first row says how many rows and columns of patches follow.
    """

    patch: int = 16
    max_patches: int = 256

    @staticmethod
    def of(patch: int, max_patches: int, **numbers: Any) -> PatchPreprocess:
        """`size` is that of a square image."""
        side = patch * math.isqrt(max_patches)
        numbers = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)} | numbers
        return PatchPreprocess((side, side), crop="squeeze", patch=patch, max_patches=max_patches, **numbers)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of the patches of an image of this size.

        >>> PatchPreprocess.of(16, 256).grid(640, 480), PatchPreprocess.of(16, 256).grid(10, 4000)
        ((14, 18), (256, 1))
        """
        low, high = 1e-6, 100.0  # factors of the image's size: the largest whose patches are not too many

        def patches(factor: float) -> tuple[int, int]:
            return tuple(max(1, math.ceil(side * factor / self.patch)) for side in (height, width))  # type: ignore[return-value]

        while high - low >= 1e-5:
            middle = (low + high) / 2
            if math.prod(patches(middle)) <= self.max_patches:
                low = middle
            else:
                high = middle
        return patches(low)

    def __call__(self, image: Image) -> Tensor:
        rows, columns = self.grid(*image.size)
        whole = replace(self, size=(rows * self.patch, columns * self.patch))
        pixels = self.normalise(whole.view(image))  # (3, rows * p, columns * p)
        cells = pixels.unflatten(2, (columns, self.patch)).unflatten(1, (rows, self.patch))  # (3, rows, p, columns, p)
        patches = cells.permute(1, 3, 2, 4, 0).flatten(0, 1).flatten(1)  # (rows * columns, p * p * 3)
        table = torch.zeros(1, 1 + self.max_patches, patches.shape[1])
        table[0, 0, :2] = torch.tensor([rows, columns])
        table[0, 1 : 1 + len(patches)] = patches
        return table
