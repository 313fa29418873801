"""Grids of features: their cells, and tokens that are a grid in disguise."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from torch import Tensor


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


def fold_tokens(tokens: Tensor, height: int, width: int) -> Tensor:
    """(n, prefix + h * w, dim) -> (n, dim, h, w). Class and register tokens come first and are dropped."""
    patches = tokens[:, tokens.shape[1] - height * width :]  # (n, hw, dim)
    return patches.transpose(1, 2).unflatten(2, (height, width))  # (n, dim, hw) -> (n, dim, h, w)


MOST_PREFIX_TOKENS = 16


def token_grid(tokens: int, size: tuple[int, int], patch: int) -> tuple[int, int] | None:
    """Rows and columns of `tokens` patch tokens of an image of `size`; None where they make no grid.

    A hierarchical network (Swin) has merged its patches two by two several times, so larger strides are tried too.

    >>> token_grid(1 + 4 + 256, (224, 224), 14), token_grid(49, (224, 224), 4), token_grid(1000, (224, 224), 16)
    ((16, 16), (7, 7), None)
    """
    for merged in (1, 2, 4, 8, 16):
        height, width = (side // (patch * merged) for side in size)
        prefix = tokens - height * width
        if height and width and 0 <= prefix <= (MOST_PREFIX_TOKENS if merged == 1 else 0):
            return height, width
    return None
