"""`FeatureExtractor`: images to features, described so that a later image gets features of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from quintet.backbones.create import create_tower, is_trained
from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower
from quintet.backbones.weights import weights_checksum
from quintet.data.batches import ImageBatch
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from PIL.Image import Image


def fold_batch_norms(tower: ImageTower) -> ImageTower:
    """Fold BatchNorms into convolutions, in place. The tower must be in evaluation mode; one not `foldable` stays."""
    if not tower.foldable:
        return tower
    if tower.training:
        raise ValueError("only a tower in evaluation mode can be folded: in training, BatchNorm depends on the batch")
    for convolution, name in _pairs(tower):
        norm = tower.get_submodule(name)
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight,
            convolution.bias,
            norm.running_mean,
            norm.running_var,
            norm.eps,
            norm.weight,
            norm.bias,
        )
        parent, _, leaf = name.rpartition(".")
        setattr(tower.get_submodule(parent), leaf, nn.Identity())
    return tower


def _pairs(tower: ImageTower) -> list[tuple[nn.Conv2d, str]]:
    """Which BatchNorm reads which convolution's output, seen in one run on a small blank image."""
    makers: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # the tensor is kept so that its id is not given to another
    pairs: list[tuple[nn.Conv2d, str]] = []

    def made(module: nn.Module, _: Any, output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        makers[id(output)] = (module, output)

    def reads(name: str) -> Any:
        return lambda _, inputs: pairs.append((makers[id(inputs[0])][0], name))

    hooks = [part.register_forward_hook(made) for part in tower.modules() if isinstance(part, nn.Conv2d)]
    for name, part in tower.named_modules():
        if isinstance(part, nn.BatchNorm2d):
            hooks.append(part.register_forward_pre_hook(reads(name)))
    try:
        with torch.no_grad():
            tower(next(tower.parameters()).new_zeros(1, 3, 32, 32))
    finally:
        for hook in hooks:
            hook.remove()
    return pairs


def pool_grid(grid: Tensor, cells: tuple[int, int]) -> Tensor:
    """(n, dim, h, w) -> (n, rows * columns, dim), averaging the cells that `cell_boxes` describes, row by row."""
    return (
        F.adaptive_avg_pool2d(grid, cells).flatten(2).transpose(1, 2)
    )  # (n, dim, r, c) -> (n, dim, rc) -> (n, rc, dim)


def cell_boxes(grid: tuple[int, int], cells: tuple[int, int]) -> np.ndarray:
    """(rows * columns, 4) left, top, right, bottom in 0..1: what part of the grid each pooled cell averages.

    Adaptive pooling takes the source cells floor(i h / r) up to ceil((i + 1) h / r), so neighbours share a source cell
    where r does not divide h.

    >>> cell_boxes((2, 2), (1, 2)).tolist()
    [[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]]
    """
    (top, bottom), (left, right) = (_edges(size, count) for size, count in zip(grid, cells, strict=True))
    rows, columns = cells
    return np.stack(
        [np.tile(left, rows), np.repeat(top, columns), np.tile(right, rows), np.repeat(bottom, columns)], axis=1
    ).astype(np.float32)


def _edges(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    index = np.arange(count)
    return index * size // count / size, -(-(index + 1) * size // count) / size


Crop = Literal["squeeze", "center"]


class FeatureExtractor:
    """A tower, its view of an image, and the number of cells its grid is averaged to."""

    def __init__(
        self,
        tower: ImageTower,
        name: str,
        *,
        weights: Path | str | None = None,
        preprocess: Preprocess | None = None,
        grid: tuple[int, int] = (6, 6),
        device: torch.device | str = "cpu",
    ) -> None:
        """`name` and `weights` say where the tower came from; `preprocess` is the whole image unless given."""
        if min(grid) < 1:
            raise QuintetError(f"a grid needs at least one row and one column, got {grid[0]} x {grid[1]}")
        self.device = torch.device(device)
        self.checksum = weights_checksum(tower)
        # A copy, changed for speed only: no BatchNorms, and the memory order that convolutions like best.
        fast = fold_batch_norms(deepcopy(tower).eval())
        self.tower = fast.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.name = name
        self.weights = None if weights is None else Path(weights).resolve()
        self.preprocess = preprocess or tower.preprocess.squeezed()
        self.grid = grid
        self._cells: np.ndarray | None = None  # (L, 4) in the tower's input; known after the first batch

    @staticmethod
    def create(
        name: str,
        weights: Path | str | None = None,
        *,
        grid: tuple[int, int] = (6, 6),
        crop: Crop = "squeeze",
        device: torch.device | str = "cpu",
    ) -> FeatureExtractor:
        """From a tower's name, as `quintet features` does."""
        if not is_trained(name, weights):
            raise QuintetError(
                f"the image tower {name!r} has no published weights, and features of random ones cannot be made again; "
                "give the weights of a trained one (--weights FILE)"
            )
        if name.startswith("hf:") and Path(name[3:]).expanduser().is_dir():
            name = f"hf:{Path(name[3:]).expanduser().resolve()}"  # the manifest is read from other folders too
        tower = create_tower(name, weights)
        preprocess = replace(tower.preprocess, crop=crop)
        return FeatureExtractor(tower, name, weights=weights, preprocess=preprocess, grid=grid, device=device)

    @staticmethod
    def from_state(
        state: dict[str, Any], *, weights: Path | str | None = None, device: torch.device | str = "cpu"
    ) -> FeatureExtractor:
        """The extractor that made a feature folder, from its manifest's `tower`. `weights`: where the file is now."""
        try:
            name, found, checksum, view = state["name"], state["weights"], state["checksum"], state["preprocess"]
            rows, columns = state["grid"]
        except KeyError as error:
            raise QuintetError(
                f"these features do not say which tower made them (no {error}), so none can be made of a new image"
            ) from None
        file = weights if weights is not None else found
        extractor = FeatureExtractor(
            create_tower(name, file),
            name,
            weights=file,
            preprocess=Preprocess.from_state(view),
            grid=(rows, columns),
            device=device,
        )
        if extractor.checksum != checksum:
            raise QuintetError(
                f"the weights of {name!r} ({file or 'installed'}) are not those the features were made with; "
                "give the original file, or extract the features again"
            )
        return extractor

    @property
    def dim(self) -> int:
        return self.tower.dim

    @property
    def fragments(self) -> int:
        return self.grid[0] * self.grid[1]

    def state(self) -> dict[str, Any]:
        """What `from_state` needs, as plain JSON values: kept in the manifest of the features."""
        return {
            "name": self.name,
            "weights": None if self.weights is None else str(self.weights),
            "checksum": self.checksum,
            "preprocess": self.preprocess.state(),
            "grid": list(self.grid),
        }

    @torch.inference_mode()
    def features(self, pixels: Tensor) -> np.ndarray:
        """(n, 3, height, width) -> (n, L, dim) float32."""
        pixels = pixels.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        grid = self.tower(pixels)  # (n, dim, h, w)
        self._cells = cell_boxes((grid.shape[2], grid.shape[3]), self.grid)
        return pool_grid(grid, self.grid).float().cpu().numpy()  # (n, L, dim)

    def boxes(self, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        """(n, L, 4) in 0..1 of images of these (width, height): the tower's view of each, cut into cells."""
        assert self._cells is not None, "boxes are known after the first features"
        views = np.array([self.preprocess.relative_box(*size) for size in sizes]).reshape(-1, 1, 4)
        start, extent = views[..., [0, 1, 0, 1]], (views[..., 2:] - views[..., :2])[..., [0, 1, 0, 1]]
        return (start + extent * self._cells).clip(0, 1).astype(np.float32)  # (n, 1, 4) and (L, 4) -> (n, L, 4)

    def __call__(self, images: Sequence[Image]) -> ImageBatch:
        """Features and boxes of images in memory (see `quintet.data.images.open_image`)."""
        if not images:
            raise ValueError("no images")
        return self.batch(torch.stack([self.preprocess(image) for image in images]), [image.size for image in images])

    def batch(self, pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> ImageBatch:
        """Features and boxes of preprocessed images, (n, 3, height, width), that had these (width, height)."""
        features = self.features(pixels)  # (n, L, dim)
        return ImageBatch(fragments=torch.from_numpy(features), boxes=torch.from_numpy(self.boxes(sizes)))

    def to(self, device: torch.device | str) -> FeatureExtractor:
        """Move the tower."""
        self.device = torch.device(device)
        self.tower = self.tower.to(self.device)
        return self
