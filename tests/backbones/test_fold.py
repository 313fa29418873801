from __future__ import annotations

import pytest
import torch
from torch import nn

from quintet.backbones import ImageTower, create_tower
from quintet.backbones.extractor import fold_batch_norms
from quintet.backbones.resnet import ResNet


def disturbed(tower: ImageTower) -> ImageTower:
    for part in tower.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.weight, 0.5, 1)
            nn.init.normal_(part.bias)
    return tower.double().eval()


@pytest.mark.parametrize("kind", ["efficientnet-lite0", "basic", "bottleneck"])
def test_a_folded_tower_gives_the_same_features(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "efficientnet-lite0":
        tower = disturbed(create_tower(kind, pretrained=False))
        wanted_convolutions = 49
    else:
        tower = disturbed(ResNet((1, 1, 1, 1), bottleneck=kind == "bottleneck"))
        wanted_convolutions = 17 if kind == "bottleneck" else 12
    pixels = torch.randn(2, 3, 70, 96, dtype=torch.float64)
    with torch.no_grad():
        before = tower(pixels)
        after = fold_batch_norms(tower)(pixels)
    assert torch.allclose(before, after, rtol=1e-9, atol=1e-9 * before.abs().max().item())
    assert not any(isinstance(part, nn.BatchNorm2d) for part in tower.modules())
    biases = [part.bias is not None for part in tower.modules() if isinstance(part, nn.Conv2d)]
    assert biases == [True] * wanted_convolutions


def test_a_tower_in_training_is_refused_and_one_without_batch_norms_stays() -> None:
    with pytest.raises(ValueError, match="evaluation mode"):
        fold_batch_norms(ResNet((1, 1, 1, 1), bottleneck=False).train())
    small = create_tower("small-cnn")
    names = list(small.state_dict())
    assert list(fold_batch_norms(small).state_dict()) == names
