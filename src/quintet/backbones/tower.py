"""What an image tower is: the interface, two towers joined, patch tokens folded back to a grid, and its description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.errors import QuintetError


class ImageTower(nn.Module):
    """Images in, a grid of features out."""

    dim: int
    preprocess: Preprocess  # how the tower was trained and measured by its authors
    # Whether only its BatchNorm reads a convolution's output. Of a network from another library that is not known.
    foldable = False
    # Whether it takes images of another size than its preprocess makes: convolutions only, nothing that counts cells.
    any_size = False

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim, h, w)."""
        raise NotImplementedError

    def pooled(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim): the average of the grid."""
        return self(pixels).mean((2, 3))  # (n, dim, h, w) -> (n, dim)


class JoinedTower(ImageTower):
    """The first tower's view of an image, given to each tower in the numbers that it wants."""

    def __init__(self, towers: Sequence[ImageTower]) -> None:
        super().__init__()
        first, *others = (tower.preprocess.size for tower in towers)
        for size, tower in zip(others, towers[1:], strict=True):
            if size != first and not tower.any_size:
                raise QuintetError(
                    "towers that are joined see images of one size: the first wants "
                    f"{first[0]} x {first[1]}, another {size[0]} x {size[1]} and no other"
                )
        self.foldable = all(tower.foldable for tower in towers)
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


def fold_tokens(tokens: Tensor, height: int, width: int) -> Tensor:
    """(n, prefix + h * w, dim) -> (n, dim, h, w). Class and register tokens come first and are dropped."""
    patches = tokens[:, tokens.shape[1] - height * width :]  # (n, hw, dim)
    return patches.transpose(1, 2).unflatten(2, (height, width))  # (n, dim, hw) -> (n, dim, h, w)


def same_tower(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two descriptions (see `FeatureExtractor.state`) mean the same tower and view; unknown ones pass.

    Weights are compared by checksum. Paths of files never count: they change when a file is moved.

    >>> same_tower({"checksum": "a1", "weights": "/here/w.pth"}, {"checksum": "a1", "weights": "/there/w.pth"})
    True
    >>> same_tower({"name": "precomputed", "source": "/here"}, {"name": "efficientnet-lite0", "checksum": "a1"})
    False
    """
    if not one or not other:
        return True
    return _identity(one) == _identity(other)


def _identity(state: dict[str, Any]) -> dict[str, Any]:
    # The name of a tower from a folder (hf:FOLDER) is a path, too; the checksum covers what it names.
    ignored = {"weights", "source", *(["name"] if "checksum" in state else [])}
    return {key: value for key, value in state.items() if key not in ignored}
