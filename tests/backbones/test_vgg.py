from __future__ import annotations

import torch
import torch.nn.functional as F

from quintet.backbones.vgg import VGG, vgg19


def test_names_and_size_are_torchvisions() -> None:
    tower = vgg19()
    places = [0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34]
    assert list(tower.state_dict()) == [f"features.{place}.{leaf}" for place in places for leaf in ("weight", "bias")]
    assert sum(parameter.numel() for parameter in tower.parameters()) == 20_024_384
    assert tower.dim == 512


def test_it_is_convolutions_and_pooling() -> None:
    torch.manual_seed(0)
    tower = VGG((4, 0, 8, 8, 0))
    state, pixels = tower.state_dict(), torch.randn(2, 3, 12, 8)
    x = F.relu(F.conv2d(pixels, state["features.0.weight"], state["features.0.bias"], padding=1))
    x = F.max_pool2d(x, 2)
    for place in (3, 5):
        x = F.relu(F.conv2d(x, state[f"features.{place}.weight"], state[f"features.{place}.bias"], padding=1))
    assert torch.allclose(tower(pixels), F.max_pool2d(x, 2), atol=1e-6)
