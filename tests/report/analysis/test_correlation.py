"""Correlation maps of image features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PILImage
from torch import nn

from quintet.backbones.create import create_tower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Corpus, Image, Text
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import QuintetError
from quintet.models import create_model
from quintet.report.analysis import Options, Subject, analyse, open_subjects
from quintet.report.analysis.correlation import (
    choose_images,
    code_features,
    correlation_map,
    find_tower,
    input_features,
    map_summary,
)
from quintet.runs.checkpoint import write_run


def test_the_map_is_numpys() -> None:
    features = np.random.default_rng(0).normal(size=(7, 5))
    assert correlation_map(features) == pytest.approx(np.corrcoef(features))


def test_equal_features_are_refused() -> None:
    with pytest.raises(QuintetError, match="image 1"):
        correlation_map([[1.0, 2.0], [3.0, 3.0]])


def test_the_summary_leaves_the_diagonal_out() -> None:
    found = map_summary(np.array([[1.0, 0.2, -0.4], [0.2, 1.0, 0.5], [-0.4, 0.5, 1.0]]))
    assert found["mean"] == pytest.approx(0.1)
    assert found["mean_absolute"] == pytest.approx(1.1 / 3)
    assert found["largest"] == 0.5
    with pytest.raises(QuintetError, match="two images"):
        map_summary(np.ones((1, 1)))


def test_chosen_images_are_of_different_groups(make_split: Callable[..., object]) -> None:
    split = make_split([0, 0, 1, 1, 2, 2, 3], [0, 1, 2, 3])
    chosen = choose_images(split, 3, seed=1)  # type: ignore[arg-type]
    assert len({image.group for image in chosen}) == 3
    assert chosen == choose_images(split, 3, seed=1)  # type: ignore[arg-type]
    assert len(choose_images(split, 100)) == 4  # type: ignore[arg-type]


def test_padding_is_no_feature() -> None:
    fragments = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [90.0, 90.0]]])
    mask = torch.tensor([[True, True, False]])
    assert code_features(Codes(fragments=fragments, mask=mask)).tolist() == [[2.0, 3.0]]
    assert input_features(ImageBatch(fragments=fragments, mask=mask)).tolist() == [[2.0, 3.0]]
    assert code_features(Codes(embedding=torch.ones(1, 2), fragments=fragments)).tolist() == [[1.0, 1.0]]


def test_pixels_go_through_the_tower() -> None:
    tower = create_tower("small-cnn")
    pixels = torch.randn(2, 3, 32, 32)
    matcher = nn.Sequential(nn.Sequential(tower), nn.Linear(2, 2))
    assert find_tower(matcher) is tower
    expected = tower(pixels).mean((2, 3))
    assert torch.equal(input_features(ImageBatch(pixels=pixels), tower), expected)
    with pytest.raises(QuintetError, match="no image tower"):
        find_tower(nn.Linear(2, 2))


def test_correlations_before_are_of_the_stored_features(subjects: list[Subject], tmp_path: Path, few: Options) -> None:
    found = analyse(subjects, tmp_path, ["correlation"], options=few)["correlation"]
    assert list(found["maps"]) == ["before a", "a", "b"]  # both runs read the same features
    images = [image for image in subjects[0].split.images if image.id in found["images"]]
    (batch,) = subjects[0].run.image_batches(subjects[0].corpus, images)
    assert batch.fragments is not None
    expected = map_summary(correlation_map(batch.fragments.mean(1).numpy()))
    assert found["maps"]["before a"] == pytest.approx(expected)
    assert found["maps"]["a"]["images"] == 4


def test_correlations_before_of_pixels_are_of_the_tower_before_training(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    images, texts = [], []
    for group in "abc":
        pixels = rng.integers(0, 255, size=(32, 32, 3), dtype=np.uint8)
        PILImage.fromarray(pixels).save(tmp_path / f"{group}.png")
        images.append(Image(f"{group}.png", group, f"{group}.png"))
        texts.append(Text(group, group, f"image {group}"))
    Corpus("pixels", images, texts, {"test": list("abc")}, root=tmp_path).save(tmp_path)
    arguments = {"vocabulary_size": 9, "embed_dim": 8, "word_dim": 6, "tower": "small-cnn"}
    trained = create_model("vse++", **arguments)
    torch.manual_seed(1)
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter)
    write_run(
        tmp_path / "run",
        name="pixels",
        model={"name": "vse++", "arguments": arguments},
        state_dict=trained.state_dict(),
        tokenizer=WordVocabulary.build(["image a b c"], min_count=1),
        image_input={"kind": "pixels"},
    )
    subjects = open_subjects([tmp_path / "run"], Corpus.open(tmp_path), "test", device=torch.device("cpu"))
    found = analyse(subjects, tmp_path / "out", ["correlation"])["correlation"]["maps"]
    torch.manual_seed(0)
    fresh: Any = create_model("vse++", **arguments).eval()
    (batch,) = subjects[0].run.image_batches(subjects[0].corpus, subjects[0].split.images)
    with torch.no_grad():
        expected = map_summary(correlation_map(fresh.image_encoder.tower.pooled(batch.pixels).numpy()))
    assert found["before pixels"] == pytest.approx(expected, rel=1e-4)
    assert found["pixels"]["mean"] != pytest.approx(expected["mean"], rel=1e-3)
    assert "reason" in analyse(subjects, tmp_path / "out")["curves"]  # it was not trained here
