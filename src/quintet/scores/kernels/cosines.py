"""`attended_cosines` as one fused kernel for CUDA devices, with its backward pass; the plain twin is in `attention`.

A block's products are read once and only cosines are written; attention, G p and their like stay on the chip. The
backward pass reads the products again, computes the rest anew and writes the gradient of the products, of the Gram
matrices and of the queries' squared lengths.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from quintet.scores.attention import Norm, check_norm
from quintet.scores.focal import Focal
from quintet.scores.kernels.tiles import backward_kernel, forward_kernel

# "tf32x3" is float32-accurate on tensor cores, "ieee" takes the slower float32 units.
DOT_PRECISION = "tf32x3"

_CLIPPED = ("clipped_l2norm", "clipped_l1norm", "clipped")
_KINDS = {"none": 0, "clipped": 0, "l2norm": 2, "clipped_l2norm": 2, "l1norm": 1, "clipped_l1norm": 1, "softmax": 3}
_FOCALS = {None: 0, "equal": 1, "prob": 2}
_COLUMNS = 32  # query fragments in one tile, where queries are shorter than that
_LARGEST_TILE = 4096  # products in one tile, padding included; the test of 8192 failed on an H200


def fits(products: Tensor) -> bool:
    """Whether products (C, Lc, Q, Lq) are of a kind and size that the kernel takes."""
    context, query = _padded(products.shape[1]), triton.next_power_of_2(products.shape[3])
    small = max(context, query) <= 128 and context * query <= _LARGEST_TILE
    return products.dtype == torch.float32 and small and products[0].numel() < 2**31


def fused_cosines(
    products: Tensor,
    gram: Tensor,
    squares: Tensor,
    context_mask: Tensor | None,
    query_mask: Tensor | None,
    *,
    norm: Norm,
    relu_slope: float,
    temperature: float,
    focal: Focal | None = None,
) -> Tensor:
    """(C, Q, Lq); the arguments are those of `attended_cosines`."""
    check_norm(norm)
    if not fits(products):
        raise ValueError(
            f"the fused kernel takes float32 products of at most 128 x 32 or 64 x 64 fragments, got {products.dtype} "
            f"{tuple(products.shape)}; use engine='auto' or 'torch'"
        )
    slope = relu_slope if norm in _CLIPPED else 1.0
    settings = (_KINDS[norm], _FOCALS[focal], slope, temperature)
    return _FusedCosines.apply(products, gram, squares, context_mask, query_mask, settings)


class _FusedCosines(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        products: Tensor,
        gram: Tensor,
        squares: Tensor,
        context_mask: Tensor | None,
        query_mask: Tensor | None,
        settings: tuple[int, int, float, float],
    ) -> Tensor:
        products, gram, squares = products.contiguous(), gram.contiguous(), squares.contiguous()
        cosines = products.new_empty(products.shape[0], *products.shape[2:])  # (C, Q, Lq)
        launch = _Launch(products, squares, context_mask, query_mask, settings)
        launch.run(forward_kernel, products, gram, squares, cosines)
        ctx.save_for_backward(products, gram, squares, context_mask, query_mask)
        ctx.settings = settings
        return cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        products, gram, squares, context_mask, query_mask = ctx.saved_tensors
        launch = _Launch(products, squares, context_mask, query_mask, ctx.settings, backward=True)
        for_products = torch.empty_like(products)
        for_gram = gram.new_empty(len(gram), launch.grid[1], *gram.shape[1:])  # (C, chunks, Lc, Lc)
        for_squares = products.new_empty(products.shape[0], *products.shape[2:])  # (C, Q, Lq)
        launch.run(backward_kernel, products, gram, squares, grads[0].contiguous(), for_products, for_gram, for_squares)
        if squares.shape[0] != products.shape[0]:
            for_squares = for_squares.sum(dim=0, keepdim=True)  # (1, Q, Lq)
        return for_products, for_gram.sum(dim=1), for_squares, None, None, None


class _Launch:
    """Sizes of the tiles and of the grid, and the arguments that both kernels share."""

    def __init__(
        self,
        products: Tensor,
        squares: Tensor,
        context_mask: Tensor | None,
        query_mask: Tensor | None,
        settings: tuple[int, int, float, float],
        backward: bool = False,
    ) -> None:
        contexts, context_length, queries, query_length = products.shape
        kind, focal, slope, temperature = settings
        context_tile, query_tile = _padded(context_length), triton.next_power_of_2(query_length)
        at_once = max(1, _COLUMNS // query_tile)
        tile = context_tile * at_once * query_tile
        warps = _warps(tile, backward)
        tiles = triton.cdiv(queries, at_once)
        # A Gram matrix serves 8 tiles; in the backward pass each chunk writes one, so chunks are few. A power of two,
        # because each number of tiles is a kernel of its own, compiled when it is first met.
        chunk = triton.next_power_of_2(triton.cdiv(tiles, 8) if backward else min(tiles, 8))
        self.grid = (contexts, triton.cdiv(tiles, chunk))
        self.masks = [_bytes(context_mask, products), _bytes(query_mask, products)]
        one_each = squares.shape[0] == contexts and contexts > 1  # row i meets row i: own squares, own query mask
        self.sizes = (context_length, queries, query_length, queries * query_length if one_each else 0)
        self.numbers = (float(slope), float(temperature))
        self.constants = {
            "KIND": kind,
            "FOCAL": focal,
            "HAS_CONTEXT_MASK": context_mask is not None,
            "HAS_QUERY_MASK": query_mask is not None,
            "LC": context_tile,
            "LQ": query_tile,
            "BQ": at_once,
            "TILES": chunk,
            "PRECISION": DOT_PRECISION,
            "num_warps": warps,
        }

    def run(self, kernel: Any, *tensors: Tensor) -> None:
        kernel[self.grid](*tensors, *self.masks, *self.sizes, *self.numbers, **self.constants)


def _warps(tile: int, backward: bool) -> int:
    """As many as keep a tile's tensors in registers; the backward pass has twice as many of them."""
    return min(8, max(4, tile // 256) if backward else max(1, tile // 512))


def _padded(context_length: int) -> int:
    return max(16, triton.next_power_of_2(context_length))  # the least a tensor core takes


def _bytes(mask: Tensor | None, stand_in: Tensor) -> Tensor:
    return stand_in if mask is None else mask.contiguous().view(torch.uint8)
