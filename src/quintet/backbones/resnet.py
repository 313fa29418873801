"""ResNet (He et al. 2016) with the state-dict names of torchvision's weights, up to its last grid."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower


class ResNet(ImageTower):
    """Grid of 1/32 of the input's size; 512 channels with basic blocks, 2,048 with bottlenecks."""

    foldable = any_size = True

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        bottleneck: bool = True,
        stride_first: bool = False,
        eps: float = 1e-5,
        preprocess: Preprocess | None = None,
    ) -> None:
        """`stride_first`: a bottleneck halves the image in its first 1x1 convolution (the paper, Keras) instead of
        in its 3x3 (torchvision, "v1.5"). The names are the same, so weights load into either; the results do not agree.
        """
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, eps)
        inputs = 64
        for number, depth in enumerate(depths):
            width, stride = 64 * 2**number, 1 if number == 0 else 2
            blocks: list[nn.Module] = []
            for _ in range(depth):
                if bottleneck:
                    blocks.append(Bottleneck(inputs, width, stride, stride_first, eps))
                    inputs = 4 * width
                else:
                    blocks.append(BasicBlock(inputs, width, stride, eps))
                    inputs = width
                stride = 1
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.dim = inputs
        self.preprocess = preprocess or Preprocess((224, 224), short_side=256)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(pixels)))  # (n, 64, H/2, W/2)
        x = F.max_pool2d(x, 3, stride=2, padding=1)  # (n, 64, H/4, W/4)
        for name in ("layer1", "layer2", "layer3", "layer4"):
            x = self.get_submodule(name)(x)  # each but the first halves both sides
        return x


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, eps: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps)
        self.downsample = _shortcut(inputs, width, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, stride_first: bool, eps: float) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_first else (1, stride)
        self.conv1 = nn.Conv2d(inputs, width, 1, stride=first, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps)
        self.conv2 = nn.Conv2d(width, width, 3, stride=second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width, eps)
        self.downsample = _shortcut(inputs, 4 * width, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


def _shortcut(inputs: int, outputs: int, stride: int, eps: float) -> nn.Module | None:
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs, eps))


def resnet18() -> ResNet:
    return ResNet((2, 2, 2, 2), bottleneck=False)


def resnet50() -> ResNet:
    return ResNet((3, 4, 6, 3))


def resnet152() -> ResNet:
    return ResNet((3, 8, 36, 3))


def resnet50_v1() -> ResNet:
    """The arrangement of the paper with the conventions of Keras Applications: BGR, 0..255, mean subtracted, no std."""
    preprocess = Preprocess(
        (224, 224), short_side=256, mean=(103.939, 116.779, 123.68), std=(1, 1, 1), scale=1.0, channels="BGR"
    )
    return ResNet((3, 4, 6, 3), stride_first=True, eps=1.001e-5, preprocess=preprocess)
