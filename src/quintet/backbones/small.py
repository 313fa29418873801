"""A small convolutional network for small drawn images, cheap enough to train on two processor cores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower


class SmallCNN(ImageTower):
    """64 x 64 -> a 4 x 4 grid, 0.1 M parameters: four convolutions, each halving the image.

    GroupNorm, not BatchNorm: an image's features do not depend on the rest of the batch, so one process and several
    processes with the same global batch compute the same. Two channels with the coordinates join the colours, because
    "left of" and "at the top" survive neither convolution nor average pooling otherwise.
    """

    def __init__(self, widths: tuple[int, int, int, int] = (16, 32, 64, 128), size: int = 64) -> None:
        super().__init__()
        first, second, third, last = widths
        self.blocks = nn.Sequential(
            _block(3 + 2, first, kernel=5),
            _block(first, second, kernel=3),
            _block(second, third, kernel=3),
            _block(third, last, kernel=3),
        )
        self.dim = last
        self.preprocess = Preprocess((size, size), crop="squeeze", mean=(0.5,) * 3, std=(0.25,) * 3)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.blocks(_with_coordinates(pixels))  # (n, 5, H, W) -> (n, dim, H/16, W/16)


def _block(inputs: int, outputs: int, kernel: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU())


def _with_coordinates(pixels: Tensor) -> Tensor:
    count, _, height, width = pixels.shape
    y = torch.linspace(-1, 1, height, device=pixels.device, dtype=pixels.dtype)
    x = torch.linspace(-1, 1, width, device=pixels.device, dtype=pixels.dtype)
    position = torch.stack(torch.meshgrid(y, x, indexing="ij")).expand(count, -1, -1, -1)  # (n, 2, H, W)
    return torch.cat([pixels, position], 1)  # (n, 5, H, W)
