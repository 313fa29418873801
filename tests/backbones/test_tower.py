from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from quintet.backbones.create import create_tower, is_trained, read_classifier
from quintet.backbones.extractor import FeatureExtractor
from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower, JoinedTower, fold_tokens
from quintet.errors import QuintetError
from quintet.search.encoder import keep_tower, kept_tower

BOTH = "efficientnet-lite0+resnet50-v1"


@pytest.fixture
def image() -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).resize((300, 240))


def test_each_tower_sees_the_image_in_its_own_numbers(image: Image.Image) -> None:
    torch.manual_seed(0)
    joined = create_tower(BOTH, pretrained=False)
    first, second = joined.members
    assert joined.dim == first.dim + second.dim == 1280 + 2048
    with torch.no_grad():
        grid = joined(joined.preprocess(image)[None])
        for tower, part in zip((first, second), grid.split([first.dim, second.dim], dim=1), strict=True):
            alone = tower(tower.preprocess(image)[None])
            assert torch.allclose(part, alone, atol=1e-4 * float(alone.abs().max()))
    assert first.preprocess != second.preprocess, "RGB and BGR, two scales: what this test is about"


class Cells(ImageTower):
    """The image itself, averaged over so many cells a side."""

    dim = 3
    preprocess = Preprocess((8, 8))

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(pixels, self.side)


def test_a_finer_grid_is_averaged_to_the_coarser() -> None:
    pixels = torch.randn(1, 3, 8, 8)
    grid = JoinedTower([Cells(4), Cells(2)])(pixels)
    assert grid.shape == (1, 6, 2, 2)
    torch.testing.assert_close(grid, Cells(2)(pixels).repeat(1, 2, 1, 1))


def test_weights_of_the_one_that_brings_none(tmp_path: Path) -> None:
    torch.manual_seed(1)
    resnet = create_tower("resnet50-v1", pretrained=False)
    save_file(resnet.state_dict(), tmp_path / "resnet.safetensors")
    joined = create_tower(BOTH, tmp_path / "resnet.safetensors")
    assert all(torch.equal(value, joined.members[1].state_dict()[name]) for name, value in resnet.state_dict().items())
    packaged = create_tower("efficientnet-lite0").state_dict()
    assert all(torch.equal(value, joined.members[0].state_dict()[name]) for name, value in packaged.items())
    with pytest.raises(QuintetError, match=r"2 of 'resnet18\+resnet50'"):
        create_tower("resnet18+resnet50", tmp_path / "resnet.safetensors")
    with pytest.raises(QuintetError, match=r"'resnet18'.*weights=FILE"):
        create_tower("small-cnn+resnet18")


def test_one_size_for_all() -> None:
    first, second = Cells(4), Cells(2)
    second.preprocess = replace(second.preprocess, size=(16, 8))
    with pytest.raises(QuintetError, match="16 x 8"):
        JoinedTower([first, second])


def test_convolutions_take_the_size_of_the_first() -> None:
    joined = create_tower("efficientnet-lite2+efficientnet-lite0", pretrained=False)
    assert joined.preprocess.size == (260, 260)
    pixels = torch.randn(1, 3, 260, 260)
    with torch.inference_mode():
        grid = joined(pixels)
        torch.testing.assert_close(grid[:, 1280:], joined.members[1](pixels))
    assert grid.shape == (1, 2560, 9, 9)


def test_the_joined_classifier_gives_the_mean_of_both() -> None:
    torch.manual_seed(3)
    features = torch.randn(4, 2560)
    weight, bias = read_classifier("efficientnet-lite2+efficientnet-lite0")
    both = []
    for name, part in (("efficientnet-lite2", features[:, :1280]), ("efficientnet-lite0", features[:, 1280:])):
        own_weight, own_bias = read_classifier(name)
        both.append(part @ own_weight.t() + own_bias)
    torch.testing.assert_close(features @ weight.t() + bias, sum(both) / 2, atol=1e-4, rtol=1e-4)
    with pytest.raises(QuintetError, match="classifier of 'resnet50'"):
        read_classifier("resnet50")


def test_which_joined_towers_are_trained() -> None:
    assert is_trained("efficientnet-lite0+efficientnet-lite0")
    assert not is_trained("efficientnet-lite0+small-cnn")


def test_an_index_keeps_both(tmp_path: Path, image: Image.Image) -> None:
    torch.manual_seed(2)
    save_file(create_tower("small-cnn+small-cnn").state_dict(), tmp_path / "both.safetensors")
    extractor = FeatureExtractor.create("small-cnn+small-cnn", tmp_path / "both.safetensors", grid=(2, 2))
    keep_tower(tmp_path, extractor.state(), {})
    (tmp_path / "both.safetensors").unlink()
    state, weights = kept_tower(tmp_path / "towers", extractor.state())
    again = FeatureExtractor.from_state(state, weights=weights)
    assert again([image]).fragments.shape == (1, 4, 256)
    assert torch.equal(again([image]).fragments, extractor([image]).fragments)


def test_tokens_fold_row_by_row_without_their_prefix() -> None:
    patches = torch.arange(2 * 3).float()[None, :, None]  # (1, 6, 1)
    tokens = torch.cat([torch.full((1, 5, 1), -1.0), patches], 1)  # class and register tokens first
    assert fold_tokens(tokens, 2, 3).tolist() == [[[[0, 1, 2], [3, 4, 5]]]]
