"""CONTRIBUTING says how a method is added. Here a toy one is, and everything works on it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import quintet
from quintet.cli.main import app
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.models import MODELS
from quintet.protocols import Matcher
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


class BestPair(nn.Module):
    """Scores an image and a text by their most alike fragment and word."""

    image_input = "fragments"

    def __init__(self, image_dim: int, vocabulary_size: int, dim: int) -> None:
        super().__init__()
        self.regions = nn.Linear(image_dim, dim)
        self.words = nn.Embedding(vocabulary_size, dim)

    def encode_images(self, images: ImageBatch) -> Codes:
        return Codes(fragments=self.regions(images.fragments), mask=images.real())

    def encode_texts(self, texts: TextBatch) -> Codes:
        return Codes(fragments=self.words(texts.tokens), mask=texts.real())

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        alike = torch.einsum("ird,twd->itrw", image_codes.fragments, text_codes.fragments)
        real = image_codes.real()[:, None, :, None] & text_codes.real()[None, :, None, :]
        return alike.masked_fill(~real, -torch.inf).amax(dim=(2, 3))

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return self.score(image_codes, text_codes).diagonal()


def build_toy(*, image_dim: int, vocabulary_size: int, dim: int = 4) -> BestPair:
    """A toy."""
    return BestPair(image_dim, vocabulary_size, dim)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("toy_method")
    module.build_toy = build_toy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_method", module)
    monkeypatch.setitem(MODELS.entries, "toy", "toy_method:build_toy")


@pytest.mark.usefixtures("toy")
def test_a_toy_method_trains_and_is_measured(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["matcher"] = {"name": "toy", "dim": 3}
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert isinstance(quintet.load(tmp_path / "run").matcher, Matcher)
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    assert "toy" in quintet.list_models()
