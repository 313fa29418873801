from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.backbones.extractor import FeatureExtractor
from quintet.search import StaleIndex
from quintet.search.encoder import keep_tower, kept_tower


def test_a_kept_tower_is_the_same_tower(tower: dict[str, Any], tmp_path: Path) -> None:
    kept = keep_tower(tmp_path, tower, {})
    state, weights = kept_tower(tmp_path / "towers", tower)
    assert weights.is_relative_to(tmp_path)
    pixels = torch.randn(2, 3, *tower["preprocess"]["size"])
    first, second = FeatureExtractor.from_state(tower), FeatureExtractor.from_state(state, weights=weights)
    assert (first.features(pixels) == second.features(pixels)).all()
    before, changed = weights.read_bytes(), weights.stat().st_mtime_ns
    assert keep_tower(tmp_path, tower, kept) == kept
    assert weights.stat().st_mtime_ns == changed
    weights.write_bytes(before[:-1] + b"x")
    mended = keep_tower(tmp_path, tower, kept)
    assert mended.keys() == kept.keys()
    assert keep_tower(tmp_path, tower, mended) == mended
    assert (FeatureExtractor.from_state(state, weights=weights).features(pixels) == first.features(pixels)).all()


def test_what_is_not_known_is_not_kept_and_what_is_lost_is_told(tower: dict[str, Any], tmp_path: Path) -> None:
    keep_tower(tmp_path, None, {})
    keep_tower(tmp_path, {"name": "imported"}, {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StaleIndex, match="build the index again"):
        kept_tower(tmp_path, tower)


def test_a_tower_of_hugging_face_is_kept_with_its_description(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    transformers.ViTModel(config).eval().save_pretrained(tmp_path / "vit")
    view = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}, "resample": 2}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(view))
    first = FeatureExtractor.create(f"hf:{tmp_path / 'vit'}", grid=(2, 2))
    keep_tower(tmp_path, first.state(), {})
    shutil.rmtree(tmp_path / "vit")
    state, weights = kept_tower(tmp_path / "towers", first.state())
    second = FeatureExtractor.from_state(state, weights=weights)
    pixels = torch.randn(1, 3, 32, 32)
    assert (first.features(pixels) == second.features(pixels)).all()
