"""From an image to the tensor an image tower was trained on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from quintet.errors import QuintetError

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[float, float, float, float]  # left, top, right, bottom
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Pillow's own numbers, so that this file can be read where Pillow is not installed.
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


@dataclass(frozen=True)
class Preprocess:
    """What a tower wants: its size, which part of the image, and how bytes become numbers.

    `crop="center"` is the usual evaluation view: short side to `short_side`, then the middle `size`. `crop="squeeze"`
    keeps the whole image and changes its aspect ratio instead, so that nothing a caption mentions is cut away.
    The part is chosen in the source and resized once, so the cost does not depend on how long a thin image is.

    `mean` and `std` are in the order of `channels`, on the scale of the values after `bytes * scale`.
    """

    size: tuple[int, int]  # height, width
    crop: Literal["squeeze", "center"] = "center"
    short_side: int | None = None  # for "center"; None: the largest part that has the tower's aspect ratio
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    scale: float = 1 / 255  # 1 for towers that were trained on 0..255
    channels: Literal["RGB", "BGR"] = "RGB"
    resample: str = "bilinear"

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise ValueError(f"size must be positive, got {self.size}")
        if self.crop not in ("squeeze", "center"):
            raise ValueError(f"crop must be 'squeeze' or 'center', got {self.crop!r}")
        if self.channels not in ("RGB", "BGR"):
            raise ValueError(f"channels must be 'RGB' or 'BGR', got {self.channels!r}")
        if self.resample not in RESAMPLE:
            raise ValueError(f"resample must be one of {', '.join(RESAMPLE)}, got {self.resample!r}")
        if self.short_side is not None and self.short_side < max(self.size):
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
        return image.resize((width, height), RESAMPLE[self.resample], box=self.source_box(*image.size))

    def normalise(self, image: Image) -> Tensor:
        """(3, height, width) float32 of an image that has its final size already (after an augmentation)."""
        values = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))  # (height, width, 3) uint8
        if self.channels == "BGR":
            values = values[..., ::-1]
        factor, offset = self._factor_and_offset()
        normal = values * factor - offset
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))  # (3, height, width)

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
        twice as large as its input on either axis, so that resizing still has pixels to average.

        >>> Preprocess((224, 224), crop="squeeze").least(4000, 3000)
        (598, 449)
        """
        left, top, right, bottom = self.source_box(width, height)
        tall, wide = self.size
        factor = min(1.0, max(2 * wide / (right - left), 2 * tall / (bottom - top)))
        return math.ceil(width * factor), math.ceil(height * factor)

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
            return Preprocess(**values)
        except (TypeError, ValueError) as error:
            raise QuintetError(f"the description of how images are prepared is not valid: {error}") from None
