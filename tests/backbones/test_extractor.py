from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from quintet.backbones.create import create_tower
from quintet.backbones.extractor import FeatureExtractor, cell_boxes, fold_batch_norms, pool_grid
from quintet.backbones.preprocess import Preprocess
from quintet.backbones.resnet import ResNet
from quintet.backbones.tower import ImageTower
from quintet.errors import QuintetError


class Colours(ImageTower):
    """A tower whose features are the mean colours of 8 x 8 pixels: what a cell saw can be read off them."""

    def __init__(self) -> None:
        super().__init__()
        self.dim = 3
        self.preprocess = Preprocess((64, 64), short_side=64, mean=(0, 0, 0), std=(1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(pixels, 8)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_file(create_tower("small-cnn").state_dict(), tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def ramp(width: int, height: int) -> Image.Image:
    """Red grows from left to right, green from top to bottom."""
    horizontal = Image.linear_gradient("L").rotate(90).resize((width, height))
    vertical = Image.linear_gradient("L").resize((width, height))
    return Image.merge("RGB", (horizontal, vertical, Image.new("L", (width, height))))


@pytest.mark.parametrize("grid", [(6, 6), (8, 8), (2, 4), (1, 1)])
@pytest.mark.parametrize("crop", ["squeeze", "center"])
@pytest.mark.parametrize("size", [(300, 100), (100, 250), (128, 128)])
def test_a_cells_box_is_where_its_feature_comes_from(grid: tuple[int, int], crop: str, size: tuple[int, int]) -> None:
    """On a ramp the mean colour of a box is the position of its middle, in the whole image's coordinates."""
    tower = Colours()
    view = tower.preprocess.squeezed() if crop == "squeeze" else tower.preprocess
    batch = FeatureExtractor(tower, "colours", preprocess=view, grid=grid)([ramp(*size)])
    assert batch.fragments is not None
    assert batch.boxes is not None
    assert batch.fragments.shape == (1, grid[0] * grid[1], 3)
    left, top, right, bottom = batch.boxes[0].unbind(1)
    red, green, blue = batch.fragments[0].unbind(1)
    assert torch.allclose((left + right) / 2, red, atol=0.02)
    assert torch.allclose((top + bottom) / 2, green, atol=0.02)
    assert blue.abs().max() == 0
    if crop == "squeeze":
        assert (left.min(), top.min(), right.max(), bottom.max()) == (0, 0, 1, 1)
    elif size == (300, 100):
        assert left.min() == pytest.approx(1 / 3)
        assert right.max() == pytest.approx(2 / 3)


def test_images_of_several_sizes_in_one_batch_have_their_own_boxes() -> None:
    extractor = FeatureExtractor(Colours(), "colours", preprocess=Colours().preprocess, grid=(2, 2))
    both = extractor([ramp(300, 100), ramp(100, 300)])
    assert both.boxes is not None
    assert torch.allclose(both.boxes[0], extractor([ramp(300, 100)]).boxes[0])  # type: ignore[index]
    assert torch.allclose(both.boxes[1], both.boxes[0][:, [1, 0, 3, 2]][[0, 2, 1, 3]])  # the axes swapped


def test_the_state_makes_the_same_extractor_again(weights: Path, tmp_path: Path) -> None:
    extractor = FeatureExtractor.create("small-cnn", weights, grid=(3, 4), crop="center")
    state = json.loads(json.dumps(extractor.state()))
    again = FeatureExtractor.from_state(state)
    first, second = extractor([ramp(50, 40)]), again([ramp(50, 40)])
    assert torch.equal(first.fragments, second.fragments)  # type: ignore[arg-type]
    assert torch.equal(first.boxes, second.boxes)  # type: ignore[arg-type]
    moved = weights.rename(tmp_path / "moved.safetensors")
    with pytest.raises(QuintetError, match=r"small\.safetensors does not exist"):
        FeatureExtractor.from_state(state)
    FeatureExtractor.from_state(state, weights=moved)


def test_other_weights_are_refused(weights: Path, tmp_path: Path) -> None:
    state = FeatureExtractor.create("small-cnn", weights).state()
    torch.manual_seed(9)
    save_file(create_tower("small-cnn").state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(QuintetError, match="the features were made"):
        FeatureExtractor.from_state(state, weights=tmp_path / "other.safetensors")


def test_errors() -> None:
    with pytest.raises(QuintetError, match="no published weights"):
        FeatureExtractor.create("small-cnn")
    with pytest.raises(QuintetError, match="not say which tower"):
        FeatureExtractor.from_state({})
    with pytest.raises(QuintetError, match="0 x 6"):
        FeatureExtractor(Colours(), "colours", grid=(0, 6))


sides = st.tuples(st.integers(1, 12), st.integers(1, 12))


@given(grid=sides, cells=sides)
def test_each_pooled_cell_is_the_mean_of_what_its_box_covers(grid: tuple[int, int], cells: tuple[int, int]) -> None:
    features = torch.randn(2, 3, *grid, dtype=torch.float64)
    pooled = pool_grid(features, cells)
    boxes = cell_boxes(grid, cells)
    assert pooled.shape == (2, cells[0] * cells[1], 3)
    for cell, (left, top, right, bottom) in enumerate(boxes):
        rows = slice(round(top * grid[0]), round(bottom * grid[0]))
        columns = slice(round(left * grid[1]), round(right * grid[1]))
        assert torch.allclose(pooled[:, cell], features[:, :, rows, columns].mean((2, 3)))


@given(grid=sides, cells=sides)
def test_boxes_cover_the_image(grid: tuple[int, int], cells: tuple[int, int]) -> None:
    boxes = cell_boxes(grid, cells)
    assert boxes.dtype == np.float32
    assert (boxes[:, :2] < boxes[:, 2:]).all()
    assert boxes[:, :2].min() == 0
    assert boxes[:, 2:].max() == 1
    columns = boxes[: cells[1]]  # of the first row
    assert (columns[1:, 0] <= columns[:-1, 2]).all(), "no gap between neighbours"


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
