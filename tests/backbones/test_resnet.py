from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from quintet.backbones.create import create_tower
from quintet.backbones.resnet import ResNet, resnet18, resnet50, resnet152


@pytest.mark.parametrize(
    ("build", "dim", "parameters"),
    [
        (resnet18, 512, 11_689_512 - 513_000),
        (resnet50, 2048, 25_557_032 - 2_049_000),
        (resnet152, 2048, 60_192_808 - 2_049_000),
    ],
)
def test_sizes_are_those_of_the_published_networks_without_their_classifier(build, dim: int, parameters: int) -> None:  # type: ignore[no-untyped-def]
    tower = build()
    assert tower.dim == dim
    assert sum(parameter.numel() for parameter in tower.parameters()) == parameters


def test_names_are_torchvisions() -> None:
    names, basic = resnet50().state_dict(), resnet18().state_dict()
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv3.weight", "layer4.2.bn3.bias"} <= names.keys()
    assert {name for name in names if "downsample" in name and name.endswith("0.weight")} == {
        f"layer{number}.0.downsample.0.weight" for number in (1, 2, 3, 4)
    }
    assert tuple(names["layer1.0.downsample.0.weight"].shape) == (256, 64, 1, 1)
    assert "layer1.0.downsample.0.weight" not in basic
    assert tuple(basic["layer2.0.downsample.0.weight"].shape) == (128, 64, 1, 1)


def test_the_grid_is_a_thirty_second() -> None:
    with torch.no_grad():
        assert ResNet((1, 1, 1, 1), bottleneck=False).eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 512, 7, 7)


@pytest.mark.parametrize(("bottleneck", "stride_first"), [(True, False), (True, True), (False, False)])
def test_it_computes_what_an_independent_implementation_computes(bottleneck: bool, stride_first: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ours = ResNet((1, 2, 1, 1), bottleneck=bottleneck, stride_first=stride_first).eval()
    _disturb(ours)
    sizes = [width * (4 if bottleneck else 1) for width in (64, 128, 256, 512)]
    config = transformers.ResNetConfig(
        depths=[1, 2, 1, 1],
        hidden_sizes=sizes,
        layer_type="bottleneck" if bottleneck else "basic",
        downsample_in_bottleneck=stride_first,
    )
    theirs = transformers.ResNetModel(config).eval()
    theirs.load_state_dict({_their_name(name): value for name, value in ours.state_dict().items()})
    pixels = torch.randn(2, 3, 70, 96)
    with torch.no_grad():
        found, wanted = ours(pixels), theirs(pixels).last_hidden_state
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


def _disturb(module: nn.Module) -> None:
    """Statistics that are not 0 and 1, so that mistaken BatchNorms show."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.weight, 0.5, 1)
            nn.init.normal_(part.bias)


def _their_name(name: str) -> str:
    kind = {"conv": "convolution", "bn": "normalization"}
    if not name.startswith("layer"):
        part, leaf = name.split(".", 1)
        return f"embedder.embedder.{kind[part.rstrip('1')]}.{leaf}"
    stage, block, part, leaf = name.split(".", 3)
    where = f"encoder.stages.{int(stage[5:]) - 1}.layers.{block}"
    if part == "downsample":
        index, leaf = leaf.split(".", 1)
        return f"{where}.shortcut.{('convolution', 'normalization')[int(index)]}.{leaf}"
    return f"{where}.layer.{int(part[-1]) - 1}.{kind[part[:-1]]}.{leaf}"


def test_the_arrangement_matters_though_the_names_agree() -> None:
    torch.manual_seed(0)
    late, early = ResNet((1, 1, 1, 1)).eval(), ResNet((1, 1, 1, 1), stride_first=True).eval()
    early.load_state_dict(late.state_dict())
    pixels = torch.randn(1, 3, 64, 64)
    assert late(pixels).shape == early(pixels).shape
    assert not torch.allclose(late(pixels), early(pixels), atol=1e-2)


@pytest.mark.slow
def test_the_published_v1_weights_fill_the_tower_and_tell_like_from_unlike(shared: Path) -> None:
    """Mirrored images are alike, different ones are not; in the wrong arrangement or channel order less so."""
    from PIL import ImageOps

    from quintet.data.images import open_image

    file, folder = shared / "weights" / "resnet50-imagenet.safetensors", shared / "flickr8k" / "images"
    if not file.is_file() or not folder.is_dir():
        pytest.skip("no ResNet-50 weights or no photographs")
    tower = create_tower("resnet50-v1", file)
    assert tower.preprocess.channels == "BGR"
    photos = [open_image(path) for path in sorted(folder.glob("*.jpg"))[:8]]
    view = tower.preprocess.squeezed()
    pixels = torch.stack([view(image) for image in photos + [ImageOps.mirror(one) for one in photos]])
    with torch.no_grad():
        features = tower.pooled(pixels)
    features = F.normalize(features - features.mean(0))
    scores = features[:8] @ features[8:].T
    assert (scores.argmax(1) == torch.arange(8)).all()
    assert scores.diag().mean() > 0.7
    assert (scores.sum() - scores.diag().sum()) / 56 < 0.1
