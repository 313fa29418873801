"""VGG-16 and VGG-19 (Simonyan and Zisserman 2015) with torchvision's names, up to the last grid or fc7."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower

# The widths of the 3x3 convolutions; 0 is a max pooling that halves both sides.
LAYERS_16 = (*(64,) * 2, 0, *(128,) * 2, 0, *(256,) * 3, 0, *(512,) * 3, 0, *(512,) * 3, 0)
LAYERS_19 = (*(64,) * 2, 0, *(128,) * 2, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0)


class VGG(ImageTower):
    """Grid of 1/32 of the input's size, 512 channels."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        inputs = 3
        for width in layers:
            if width == 0:
                modules.append(nn.MaxPool2d(2))
                continue
            convolution = nn.Conv2d(inputs, width, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            modules += [convolution, nn.ReLU(inplace=True)]
            inputs = width
        self.features = nn.Sequential(*modules)
        self.dim = inputs
        self.preprocess = Preprocess((224, 224), short_side=256)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.features(pixels)  # (n, 512, H/32, W/32)


class VGGFc7(VGG):
    """A grid of one cell: the second fully connected layer before its ReLU, as Dual-Path takes it."""

    GRID = 7

    def __init__(self, layers: tuple[int, ...], width: int = 4096) -> None:
        super().__init__(layers)
        self.classifier = nn.ModuleDict({"0": nn.Linear(self.dim * self.GRID**2, width), "3": nn.Linear(width, width)})
        self.dim = width

    def forward(self, pixels: Tensor) -> Tensor:
        grid = F.adaptive_avg_pool2d(self.features(pixels), self.GRID)  # (n, 512, 7, 7)
        fc6 = F.relu(self.classifier["0"](grid.flatten(1)))  # (n, 4096)
        return self.classifier["3"](fc6)[:, :, None, None]  # (n, 4096, 1, 1)


def vgg16() -> VGG:
    return VGG(LAYERS_16)


def vgg16_fc7() -> VGGFc7:
    return VGGFc7(LAYERS_16)


def vgg19() -> VGG:
    return VGG(LAYERS_19)


def vgg19_fc7() -> VGGFc7:
    return VGGFc7(LAYERS_19)
