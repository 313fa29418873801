"""Dual-Path's text CNN: a ResNet whose pictures are one word high (section III-B, Fig. 3).

A sentence is a fixed number of places (32 or 56), some of them empty. The first layer looks words up; residual blocks
of 1x1, 1x2 and 1x1 convolutions follow. A 1x2 convolution sees a place and the one before it, so that the length stays;
where it halves the length, it sees places 2j and 2j + 1. (The released code pads on the left there, too, so that places
2j - 1 and 2j are seen and the last ones never are: with 32 places those from the 30th on.)
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TextLayout = Literal["resnet50", "resnet152", "released", "small"]
LengthPooling = Literal["average", "max"]
EPS = 1e-3  # the released BatchNorms'; the paper names none


class Stage(NamedTuple):
    """Blocks of one length, in multiples of the base width: `inner` channels inside a block, `outer` after it."""

    blocks: int
    inner: int
    outer: int
    stride: int
    first_inner: int  # of the first block, which is no bottleneck in the released code
    pad_left: bool = False  # also where the length is halved


def _as_resnet(*depths: int) -> tuple[Stage, ...]:
    widths = (2**number for number in range(4))
    strides = (1, 2, 2, 2)
    return tuple(Stage(d, w, 4 * w, stride, w) for d, w, stride in zip(depths, widths, strides, strict=True))


LAYOUTS: dict[str, tuple[Stage, ...]] = {
    "resnet50": _as_resnet(3, 4, 6, 3),
    "resnet152": _as_resnet(3, 8, 36, 3),
    "released": (
        Stage(3, 1, 4, 1, 2, pad_left=True),
        Stage(4, 2, 8, 2, 8, pad_left=True),
        Stage(6, 4, 16, 2, 16, pad_left=True),
        Stage(1, 8, 32, 1, 32, pad_left=True),
    ),
    "small": _as_resnet(1, 1, 1, 1),
}


class ResidualTextCNN(nn.Module):
    """(n, length) word ids, 0 where a place is empty -> (n, 32 width).

    `layout`: the blocks of ResNet-50 (3, 4, 6, 3; the paper), of ResNet-152 (3, 8, 36, 3), the released 14 blocks
    (3, 4, 6, 1, whose last stage keeps its length), or one block a stage for small corpora. The word table starts as
    Glorot and Bengio propose, convolutions as He et al. do.

    The released look-up has a bias. The BatchNorm after it subtracts any constant, so there is none here.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int = 300,
        layout: TextLayout = "resnet50",
        width: int = 64,
        pooling: LengthPooling = "average",
    ) -> None:
        super().__init__()
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        if pooling not in get_args(LengthPooling):
            raise ValueError(f"pooling must be average or max, got {pooling!r}")
        self.pooling = pooling
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        nn.init.xavier_uniform_(self.embed.weight)
        self.norm = nn.BatchNorm1d(word_dim, EPS)
        blocks: list[nn.Module] = []
        inputs = word_dim
        for stage in LAYOUTS[layout]:
            for number in range(stage.blocks):
                inner, stride = (stage.first_inner, stage.stride) if number == 0 else (stage.inner, 1)
                pad_left = stage.pad_left or stride == 1
                blocks.append(TextBlock(inputs, inner * width, stage.outer * width, stride, pad_left))
                inputs = stage.outer * width
        self.blocks = nn.Sequential(*blocks)
        self.dim = inputs

    def forward(self, words: Tensor) -> Tensor:
        empty = words == 0
        x = self.embed(words).masked_fill(empty[..., None], 0)  # (n, length, word_dim)
        x = self.blocks(_normalised(x, self.norm))  # (n, length / 4 or 8, dim)
        return x.mean(dim=1) if self.pooling == "average" else x.amax(dim=1)  # (n, dim)


class TextBlock(nn.Module):
    """1x1, 1x2 and 1x1 convolutions, each with BatchNorm, added to the input: F(x) + x of Fig. 3.

    Channels come last, so that a convolution is a matrix product of all places; the weights of a 1x2 are those of the
    first place beside those of the second.
    """

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, pad_left: bool) -> None:
        super().__init__()
        self.stride, self.pad_left = stride, pad_left
        self.conv1, self.bn1 = _product(inputs, inner), nn.BatchNorm1d(inner, EPS)
        self.conv2, self.bn2 = _product(2 * inner, inner), nn.BatchNorm1d(inner, EPS)
        self.conv3, self.bn3 = _product(inner, outputs), nn.BatchNorm1d(outputs, EPS)
        self.changes_shape = inputs != outputs or stride != 1
        if self.changes_shape:
            self.shortcut, self.shortcut_bn = _product(inputs, outputs), nn.BatchNorm1d(outputs, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, inputs) -> (n, length / stride, rounded up, outputs)."""
        out = F.relu(_normalised(self.conv1(x), self.bn1))
        out = F.relu(_normalised(self.conv2(_pairs(out, self.stride, self.pad_left)), self.bn2))
        out = _normalised(self.conv3(out), self.bn3)
        if self.changes_shape:
            x = _normalised(self.shortcut(x[:, :: self.stride]), self.shortcut_bn)
        return F.relu(out + x)


def _pairs(x: Tensor, stride: int, pad_left: bool) -> Tensor:
    """(n, length, d) -> (n, length / stride, rounded up, 2 d): what a 1x2 convolution sees at each of its places."""
    length = x.shape[1]
    x = F.pad(x, (0, 0, 1, 0) if pad_left else (0, 0, 0, length % 2))
    if stride == 1:
        return torch.cat([x[:, :-1], x[:, 1:]], dim=2)
    count = (length + 1) // 2
    return x[:, : 2 * count].reshape(x.shape[0], count, 2 * x.shape[2])


def _normalised(x: Tensor, norm: nn.Module) -> Tensor:
    return norm(x.flatten(0, 1)).view_as(x)  # statistics over all places of all sentences


def _product(inputs: int, outputs: int) -> nn.Linear:
    product = nn.Linear(inputs, outputs, bias=False)
    nn.init.kaiming_normal_(product.weight)
    return product
