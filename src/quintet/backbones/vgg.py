"""VGG-19 (Simonyan and Zisserman 2015) with the state-dict names of torchvision's weights, up to its last grid."""

from __future__ import annotations

from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower

# The widths of the 3x3 convolutions; 0 is a max pooling that halves both sides.
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


def vgg19() -> VGG:
    return VGG(LAYERS_19)
