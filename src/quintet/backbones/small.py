"""A small convolutional network for small drawn pictures, cheap enough to train on two processor cores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower


class SmallCNN(ImageTower):
    """96 x 96 -> a 6 x 6 grid, 0.3 M parameters.

    GroupNorm, not BatchNorm: a picture's features do not depend on the rest of the batch, so one process and several
    processes with the same global batch compute the same. Two channels with the coordinates join the colours, because
    "left of" and "at the top" survive neither convolution nor average pooling otherwise.
    """

    def __init__(self, widths: tuple[int, int, int, int] = (24, 48, 96, 128), size: int = 96) -> None:
        super().__init__()
        first, second, third, last = widths
        self.blocks = nn.Sequential(
            _block(3 + 2, first, stride=2),
            _block(first, second, stride=2),
            _block(second, third, stride=2),
            _block(third, third, stride=1),
            _block(third, last, stride=2),
            _block(last, last, stride=1),
        )
        self.dim = last
        self.preprocess = Preprocess((size, size), crop="squeeze", mean=(0.5,) * 3, std=(0.25,) * 3)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.blocks(_with_coordinates(pixels))  # (n, 5, H, W) -> (n, dim, H/16, W/16)


def _block(inputs: int, outputs: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU())


def _with_coordinates(pixels: Tensor) -> Tensor:
    count, _, height, width = pixels.shape
    y = torch.linspace(-1, 1, height, device=pixels.device, dtype=pixels.dtype)
    x = torch.linspace(-1, 1, width, device=pixels.device, dtype=pixels.dtype)
    place = torch.stack(torch.meshgrid(y, x, indexing="ij")).expand(count, -1, -1, -1)  # (n, 2, H, W)
    return torch.cat([pixels, place], 1)  # (n, 5, H, W)
