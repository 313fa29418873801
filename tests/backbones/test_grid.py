from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from quintet.backbones.grid import cell_boxes, fold_tokens, pool_grid, token_grid

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


def test_tokens_fold_row_by_row_without_their_prefix() -> None:
    patches = torch.arange(2 * 3).float()[None, :, None]  # (1, 6, 1)
    tokens = torch.cat([torch.full((1, 5, 1), -1.0), patches], 1)  # class and register tokens first
    assert fold_tokens(tokens, 2, 3).tolist() == [[[[0, 1, 2], [3, 4, 5]]]]


def test_token_grids() -> None:
    assert token_grid(197, (224, 224), 16) == (14, 14)  # ViT: class token
    assert token_grid(261, (224, 224), 14) == (16, 16)  # DINOv2 with four registers
    assert token_grid(196, (224, 224), 16) == (14, 14)  # SigLIP: no class token
    assert token_grid(1 + 14 * 28, (224, 448), 16) == (14, 28)
    assert token_grid(49, (224, 224), 4) == (7, 7)  # Swin
    assert token_grid(7, (224, 224), 16) is None
