"""Correlation maps of image features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from quintet.backbones import create_tower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch
from quintet.errors import QuintetError
from quintet.evaluation.correlation import (
    choose_images,
    code_features,
    correlation_map,
    find_tower,
    input_features,
    map_summary,
)


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
