from __future__ import annotations

import torch
import torch.nn.functional as F

from quintet.backbones.create import TOWERS
from quintet.backbones.vgg import VGG, VGGFc7, vgg16, vgg16_fc7, vgg19


def test_names_and_size_are_torchvisions() -> None:
    tower = vgg19()
    indices = [0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34]
    assert list(tower.state_dict()) == [f"features.{index}.{leaf}" for index in indices for leaf in ("weight", "bias")]
    assert sum(parameter.numel() for parameter in tower.parameters()) == 20_024_384
    assert tower.dim == 512


def test_the_16_layers_have_torchvisions_names_and_size_too() -> None:
    tower = vgg16()
    indices = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    assert list(tower.state_dict()) == [f"features.{index}.{leaf}" for index in indices for leaf in ("weight", "bias")]
    assert sum(parameter.numel() for parameter in tower.parameters()) == 14_714_688
    with torch.device("meta"):
        whole = vgg16_fc7()
    classes = 4096 * 1000 + 1000
    assert sum(parameter.numel() for parameter in whole.parameters()) + classes == 138_357_544, "torchvision's VGG-16"


def test_it_is_convolutions_and_pooling() -> None:
    torch.manual_seed(0)
    tower = VGG((4, 0, 8, 8, 0))
    state, pixels = tower.state_dict(), torch.randn(2, 3, 12, 8)
    x = F.relu(F.conv2d(pixels, state["features.0.weight"], state["features.0.bias"], padding=1))
    x = F.max_pool2d(x, 2)
    for index in (3, 5):
        x = F.relu(F.conv2d(x, state[f"features.{index}.weight"], state[f"features.{index}.bias"], padding=1))
    assert torch.allclose(tower(pixels), F.max_pool2d(x, 2), atol=1e-6)


def test_fc7_is_the_second_fully_connected_layer_before_its_relu() -> None:
    torch.manual_seed(0)
    tower = VGGFc7((4, 0, 8, 0), width=5)
    state, pixels = tower.state_dict(), torch.randn(2, 3, 28, 28)
    grid = VGG.forward(tower, pixels)
    assert grid.shape == (2, 8, 7, 7)
    fc6 = F.relu(grid.flatten(1) @ state["classifier.0.weight"].T + state["classifier.0.bias"])
    fc7 = fc6 @ state["classifier.3.weight"].T + state["classifier.3.bias"]
    assert torch.allclose(tower.pooled(pixels), fc7, atol=1e-5)
    assert (fc7 < 0).any()
    assert tower(pixels).shape == (2, 5, 1, 1)
    assert tower(torch.randn(1, 3, 64, 64)).shape == (1, 5, 1, 1)


def test_fc7_leaves_only_the_classes_of_a_published_file_out() -> None:
    assert list(VGGFc7((4, 0), width=5).classifier.state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert TOWERS["vgg19-fc7"].heads == TOWERS["vgg16-fc7"].heads == ("classifier.6.",)
