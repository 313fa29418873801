"""timm itself is not installed where the tests run: a module with its interface stands in for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quintet.backbones.create import create_tower
from quintet.backbones.timm_models import preprocess_from_config
from quintet.errors import QuintetError

CONFIG = {
    "input_size": (3, 32, 32),
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.25, 0.25, 0.25),
    "crop_pct": 0.8,
    "crop_mode": "center",
}


class Stub(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.patches = nn.Conv2d(3, 16, 8, stride=8)
        if kind == "vit":
            self.num_prefix_tokens = 5
        if kind == "swin":
            self.output_fmt = "NHWC"

    def forward_features(self, pixels: Tensor) -> Tensor:
        grid = self.patches(pixels)
        if self.kind == "swin":
            return grid.permute(0, 2, 3, 1)
        if self.kind == "vit":
            tokens = grid.flatten(2).transpose(1, 2)
            return torch.cat([torch.zeros(len(tokens), 5, 16), tokens], 1)
        return grid.mean((2, 3)) if self.kind == "flat" else grid


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls of timm.create_model."""
    calls: list[dict[str, Any]] = []

    def create_model(name: str, **arguments: Any) -> nn.Module:
        if name == "unknown":
            raise RuntimeError("Unknown model (unknown)")
        calls.append({"name": name} | arguments)
        return Stub(name)

    def resolve_data_config(args: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        return dict(CONFIG)

    package, data = ModuleType("timm"), ModuleType("timm.data")
    _set(package, create_model=create_model, data=data)
    _set(data, resolve_data_config=resolve_data_config)
    monkeypatch.setitem(sys.modules, "timm", package)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return calls


def _set(module: ModuleType, **values: Callable[..., Any] | ModuleType) -> None:
    for key, value in values.items():
        setattr(module, key, value)


@pytest.mark.parametrize("kind", ["resnet", "vit", "swin"])
def test_maps_and_tokens_become_a_grid(timm: list[dict[str, Any]], kind: str) -> None:
    tower = create_tower(f"timm:{kind}")
    assert timm == [{"name": kind, "pretrained": True, "num_classes": 0}]
    assert tower.dim == 16
    pixels = torch.randn(2, 3, 32, 64)
    assert torch.equal(tower(pixels), tower.get_submodule("model.patches")(pixels))
    assert tower.preprocess.size == (32, 32)
    assert tower.preprocess.short_side == 40


def test_weights_from_a_file_mean_that_none_are_fetched(timm: list[dict[str, Any]], tmp_path: Path) -> None:
    source = Stub("resnet")
    torch.save(source.state_dict() | {"head.weight": torch.zeros(3)}, tmp_path / "w.pth")
    tower = create_tower("timm:resnet", tmp_path / "w.pth")
    assert timm[0]["pretrained"] is False
    assert torch.equal(tower.get_submodule("model.patches").state_dict()["weight"], source.patches.weight)


def test_errors(timm: list[dict[str, Any]]) -> None:
    with pytest.raises(QuintetError, match="Unknown model"):
        create_tower("timm:unknown")
    with pytest.raises(QuintetError, match="neither a feature map"):
        create_tower("timm:flat")


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(QuintetError, match="pip install timm"):
        create_tower("timm:resnet50")


def test_squash_is_squeeze() -> None:
    assert preprocess_from_config(CONFIG | {"crop_mode": "squash"}).crop == "squeeze"
    assert preprocess_from_config(CONFIG | {"crop_pct": 1.0}).short_side == 32
