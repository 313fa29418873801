"""Triton kernels, each beside a plain twin in torch: `Collector.add` and `Products.pairs`. Imported on CUDA only."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _collect(  # type: ignore[no-untyped-def]
    scores,
    row_floor,
    column_floor,
    rows_out,
    columns_out,
    values_out,
    counter,
    n_rows,
    n_columns,
    first_column,
    capacity,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A program walks down `ROWS` rows of `WIDTH` columns, whose floors it reads once."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    real = column < n_columns
    column_least = tl.load(column_floor + column, mask=real, other=float("inf"))
    first_row = tl.program_id(1) * ROWS
    for step in range(ROWS):
        row = first_row + step
        if row < n_rows:
            values = tl.load(scores + row.to(tl.int64) * n_columns + column, mask=real, other=float("-inf"))
            least = tl.minimum(column_least, tl.load(row_floor + row))
            reached = ((values >= least) & real).to(tl.int32)
            found = tl.sum(reached, axis=0)
            if found > 0:
                start = tl.atomic_add(counter, found.to(tl.int64))
                place = start + tl.cumsum(reached, axis=0) - reached
                fits = (reached > 0) & (place < capacity)
                tl.store(rows_out + place, tl.zeros_like(reached) + row, mask=fits)
                tl.store(columns_out + place, column + first_column, mask=fits)
                tl.store(values_out + place, values.to(tl.float32), mask=fits)


@triton.jit
def _pair_products(  # type: ignore[no-untyped-def]
    left, right, left_rows, right_rows, out, n, dim, PAIRS: tl.constexpr, WIDTH: tl.constexpr
):
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    real = pair < n
    left_start = tl.load(left_rows + pair, mask=real, other=0).to(tl.int64) * dim
    right_start = tl.load(right_rows + pair, mask=real, other=0).to(tl.int64) * dim
    total = tl.zeros((PAIRS, WIDTH), dtype=tl.float64)
    for start in range(0, dim, WIDTH):
        at = start + tl.arange(0, WIDTH)
        inside = real[:, None] & (at < dim)[None, :]
        a = tl.load(left + left_start[:, None] + at[None, :], mask=inside, other=0.0)
        b = tl.load(right + right_start[:, None] + at[None, :], mask=inside, other=0.0)
        total += (a * b).to(tl.float64)  # rounded to float32 first, as in the plain twin
    tl.store(out + pair, tl.sum(total, axis=1).to(tl.float32), mask=real)


def collect(
    scores: Tensor,
    row_floor: Tensor,
    column_floor: Tensor,
    first_column: int,
    rows_out: Tensor,
    columns_out: Tensor,
    values_out: Tensor,
    counter: Tensor,
    *,
    rows: int = 32,
    width: int = 2048,
) -> None:
    """Append (row, column, value) of every score that reaches its row's or its column's floor, without waiting."""
    height, length = scores.shape
    if not scores.is_contiguous():
        raise ValueError("the block of scores must be contiguous")
    grid = (triton.cdiv(length, width), triton.cdiv(height, rows))
    outputs: tuple[Any, ...] = (rows_out, columns_out, values_out, counter)
    sizes = (height, length, first_column, len(values_out))
    _collect[grid](scores, row_floor, column_floor, *outputs, *sizes, ROWS=rows, WIDTH=width, num_warps=4)


def pair_products(left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor, *, pairs: int = 8) -> Tensor:
    """(p,) float32: the products of pairs of rows."""
    out = torch.empty(len(left_rows), device=left.device)
    if len(out):
        left, right = left.contiguous(), right.contiguous()
        grid = (triton.cdiv(len(out), pairs),)
        shape = (len(out), left.shape[1])
        _pair_products[grid](left, right, left_rows, right_rows, out, *shape, PAIRS=pairs, WIDTH=256, num_warps=4)
    return out
