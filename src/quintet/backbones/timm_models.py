"""Any timm model as a tower: `timm:NAME`, where timm is installed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower, fold_tokens
from quintet.errors import QuintetError


class TimmTower(ImageTower):
    """`forward_features` of a timm model: a feature map, or patch tokens folded back to their grid."""

    def __init__(self, name: str, pretrained: bool = True) -> None:
        super().__init__()
        self.name = name
        self.model, config = _load(name, pretrained)
        self.preprocess = preprocess_from_config(config)
        self.prefix = int(getattr(self.model, "num_prefix_tokens", 0))
        self.channels_last = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
        height, width = self.preprocess.size
        with torch.no_grad():  # a blank image tells the dimension, and whether the output is a grid at all
            self.dim = self.eval()(torch.zeros(1, 3, height, width)).shape[1]

    def forward(self, pixels: Tensor) -> Tensor:
        output = self.model.forward_features(pixels)  # type: ignore[operator]
        if output.dim() == 4:
            return output.permute(0, 3, 1, 2) if self.channels_last else output  # (n, dim, h, w)
        height, width = pixels.shape[2:]
        patches = output.shape[1] - self.prefix if output.dim() == 3 else 0
        rows = round(math.sqrt(patches * height / width))
        if rows == 0 or patches % rows:
            raise QuintetError(
                f"timm:{self.name}: an output of shape {tuple(output.shape)} for {height} x {width} pixels is neither "
                "a feature map nor a grid of patch tokens; this model cannot serve as an image tower"
            )
        return fold_tokens(output, rows, patches // rows)  # (n, prefix + h w, dim) -> (n, dim, h, w)


def _load(name: str, pretrained: bool) -> tuple[nn.Module, dict[str, Any]]:
    try:
        import timm
        from timm.data import resolve_data_config
    except ImportError as error:
        raise QuintetError(f"the image tower timm:{name} needs timm: `pip install timm` ({error})") from None
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=0)  # without its classifier
    except (RuntimeError, OSError, ValueError) as error:
        raise QuintetError(f"timm:{name} cannot be made: {error}") from None
    return model, resolve_data_config({}, model=model)


def preprocess_from_config(config: dict[str, Any]) -> Preprocess:
    """The `Preprocess` that timm's data configuration describes.

    >>> preprocess_from_config({"input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic",
    ...                         "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}).short_side
    256
    """
    _, height, width = config["input_size"]
    squeeze = config.get("crop_mode", "center") == "squash"
    return Preprocess(
        (height, width),
        crop="squeeze" if squeeze else "center",
        short_side=None
        if squeeze
        else max(height, width, math.floor(min(height, width) / config.get("crop_pct", 0.875))),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        resample=config.get("interpolation", "bilinear"),
    )
