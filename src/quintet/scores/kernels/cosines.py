"""`attended_cosines` as one fused kernel for CUDA devices, with its backward pass; the plain twin is in `attention`.

A block's products are read once and only cosines are written; attention, G p and their like stay on the chip. The
backward pass reads the products again, computes the rest anew and writes the gradient of the products, of the Gram
matrices and of the queries' squared lengths.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from quintet.scores.attention import Focal, Norm, check_norm

# Inside a kernel every name is a tensor of Triton's own kind.
# mypy: ignore-errors


FAR = tl.constexpr(-1e30)
EPSILON = tl.constexpr(1e-8)
SMALLEST_SQUARE = tl.constexpr(1e-16)


@triton.jit
def _normalised(products, real_query, slope, KIND: tl.constexpr):
    """The clipped products, their length over the queries (or the like), and the normalised products."""
    clipped = tl.where(products > 0, products, products * slope)
    if KIND == 3:  # softmax over the queries
        shifted = tl.where(real_query, clipped, FAR)
        shifted = tl.exp(shifted - tl.max(shifted, axis=2)[:, :, None])
        shifted = tl.where(real_query, shifted, 0.0)
        total = tl.sum(shifted, axis=2)
        total = tl.where(total > 0, total, 1.0)
        return clipped, total, shifted / total[:, :, None]
    if KIND == 0:
        return clipped, tl.sum(clipped, axis=2), clipped
    clipped = tl.where(real_query, clipped, 0.0)
    length = tl.sum(tl.abs(clipped), axis=2) if KIND == 1 else tl.sqrt(tl.sum(clipped * clipped, axis=2))
    return clipped, length, clipped / (length + EPSILON)[:, :, None]


@triton.jit
def _attention(normalised, real_context, temperature):
    logits = tl.where(real_context, normalised * temperature, FAR)
    powers = tl.exp(logits - tl.max(logits, axis=0)[None, :, :])
    powers = tl.where(real_context, powers, 0.0)
    return powers / tl.sum(powers, axis=0)[None, :, :]


@triton.jit
def _gates(weights, real_context, count, FOCAL: tl.constexpr):
    if FOCAL == 1:
        above = count * weights > tl.sum(weights, axis=0)[None, :, :]
    else:
        roots = tl.sqrt(weights)
        above = weights * tl.sum(roots, axis=0)[None, :, :] > tl.sum(weights * roots, axis=0)[None, :, :]
    kept = tl.where(above & real_context, 1.0, 0.0)
    return tl.where(tl.max(kept, axis=0)[None, :, :] > 0, kept, 1.0)


@triton.jit
def _gram_tile(gram, c, Lc, i, LC: tl.constexpr):
    at = gram + c.to(tl.int64) * Lc * Lc + i[:, None] * Lc + tl.arange(0, LC)[None, :]
    return tl.load(at, mask=(i[:, None] < Lc) & (tl.arange(0, LC)[None, :] < Lc), other=0.0)


@triton.jit
def forward_kernel(
    products,
    gram,
    squares,
    cosines,
    context_mask,
    query_mask,
    Lc,
    Q,
    Lq,
    own_squares,
    slope,
    temperature,
    KIND: tl.constexpr,
    FOCAL: tl.constexpr,
    HAS_CONTEXT_MASK: tl.constexpr,
    HAS_QUERY_MASK: tl.constexpr,
    LC: tl.constexpr,
    LQ: tl.constexpr,
    BQ: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    c = tl.program_id(0)
    i = tl.arange(0, LC)
    real_i = i < Lc
    if HAS_CONTEXT_MASK:
        real_i = real_i & (tl.load(context_mask + c * Lc + i, mask=real_i, other=0) != 0)
    count = tl.sum(tl.where(real_i, 1.0, 0.0))
    g = _gram_tile(gram, c, Lc, i, LC)
    w = tl.arange(0, LQ)
    for tile in range(TILES):
        q = (tl.program_id(1) * TILES + tile) * BQ + tl.arange(0, BQ)
        here = (q[:, None] < Q) & (w[None, :] < Lq)  # (BQ, LQ)
        offset = q[:, None] * Lq + w[None, :]
        row = c.to(tl.int64) * Lc * Q * Lq + i[:, None, None] * (Q * Lq)
        s = tl.load(products + row + offset[None, :, :], mask=(i < Lc)[:, None, None] & here[None, :, :], other=0.0)
        real_query = here
        if HAS_QUERY_MASK:
            real_query = here & (tl.load(query_mask + c * own_squares + offset, mask=here, other=0) != 0)
        _, _, normalised = _normalised(s, real_query[None, :, :], slope, KIND)
        p = _attention(normalised, real_i[:, None, None], temperature)
        if FOCAL > 0:
            p = p * _gates(p, real_i[:, None, None], count, FOCAL)
        dots = tl.sum(p * s, axis=0)  # (BQ, LQ)
        spread = tl.dot(g, tl.reshape(p, (LC, BQ * LQ)), input_precision=PRECISION)
        norms = tl.sum(p * tl.reshape(spread, (LC, BQ, LQ)), axis=0)
        if FOCAL > 0:
            mass = tl.sum(p, axis=0)
            dots = dots / mass
            norms = norms / (mass * mass)
        squared = norms * tl.load(squares + c * own_squares + offset, mask=here, other=0.0)
        value = dots / tl.sqrt(tl.maximum(squared, SMALLEST_SQUARE))
        tl.store(cosines + c.to(tl.int64) * Q * Lq + offset, value, mask=here)


@triton.jit
def _through_norm(above, clipped, length, normalised, KIND: tl.constexpr):
    """The gradient of the clipped products from that of the normalised ones."""
    if KIND == 0:
        return above
    if KIND == 3:
        return normalised * (above - tl.sum(above * normalised, axis=2)[:, :, None])
    inner = tl.sum(above * clipped, axis=2)
    if KIND == 1:
        sign = tl.where(clipped > 0, 1.0, tl.where(clipped < 0, -1.0, 0.0))
        return (
            above / (length + EPSILON)[:, :, None]
            - sign * (inner / ((length + EPSILON) * (length + EPSILON)))[:, :, None]
        )
    share = tl.where(
        length > 0, inner / ((length + EPSILON) * (length + EPSILON) * tl.where(length > 0, length, 1.0)), 0.0
    )
    return above / (length + EPSILON)[:, :, None] - clipped * share[:, :, None]


@triton.jit
def backward_kernel(
    products,
    gram,
    squares,
    above,
    for_products,
    for_gram,
    for_squares,
    context_mask,
    query_mask,
    Lc,
    Q,
    Lq,
    own_squares,
    slope,
    temperature,
    KIND: tl.constexpr,
    FOCAL: tl.constexpr,
    HAS_CONTEXT_MASK: tl.constexpr,
    HAS_QUERY_MASK: tl.constexpr,
    LC: tl.constexpr,
    LQ: tl.constexpr,
    BQ: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    c = tl.program_id(0)
    i = tl.arange(0, LC)
    real_i = i < Lc
    if HAS_CONTEXT_MASK:
        real_i = real_i & (tl.load(context_mask + c * Lc + i, mask=real_i, other=0) != 0)
    count = tl.sum(tl.where(real_i, 1.0, 0.0))
    g = _gram_tile(gram, c, Lc, i, LC)
    gram_total = tl.zeros((LC, LC), dtype=tl.float32)
    w = tl.arange(0, LQ)
    for tile in range(TILES):
        q = (tl.program_id(1) * TILES + tile) * BQ + tl.arange(0, BQ)
        here = (q[:, None] < Q) & (w[None, :] < Lq)  # (BQ, LQ)
        offset = q[:, None] * Lq + w[None, :]
        row = c.to(tl.int64) * Lc * Q * Lq + i[:, None, None] * (Q * Lq)
        inside = (i < Lc)[:, None, None] & here[None, :, :]
        s = tl.load(products + row + offset[None, :, :], mask=inside, other=0.0)
        real_query = here
        if HAS_QUERY_MASK:
            real_query = here & (tl.load(query_mask + c * own_squares + offset, mask=here, other=0) != 0)
        clipped, length, normalised = _normalised(s, real_query[None, :, :], slope, KIND)
        p = _attention(normalised, real_i[:, None, None], temperature)
        kept = p
        if FOCAL > 0:
            gates = _gates(p, real_i[:, None, None], count, FOCAL)
            kept = p * gates
            mass = tl.sum(kept, axis=0)
        else:
            mass = tl.full((BQ, LQ), 1.0, dtype=tl.float32)
        spread = tl.reshape(tl.dot(g, tl.reshape(kept, (LC, BQ * LQ)), input_precision=PRECISION), (LC, BQ, LQ))
        dots = tl.sum(kept * s, axis=0) / mass
        norms = tl.sum(kept * spread, axis=0) / (mass * mass)
        square = tl.load(squares + c * own_squares + offset, mask=here, other=0.0)
        squared = norms * square
        inverse = 1.0 / tl.sqrt(tl.maximum(squared, SMALLEST_SQUARE))

        at_cosine = tl.load(above + c.to(tl.int64) * Q * Lq + offset, mask=here, other=0.0)
        at_dots = at_cosine * inverse
        at_squared = tl.where(squared > SMALLEST_SQUARE, -0.5 * at_cosine * dots * inverse * inverse * inverse, 0.0)
        at_norms = at_squared * square
        tl.store(for_squares + c.to(tl.int64) * Q * Lq + offset, at_squared * norms, mask=here)

        at_sum = at_dots / mass
        at_quadratic = at_norms / (mass * mass)
        at_weights = at_sum[None, :, :] * s + 2.0 * at_quadratic[None, :, :] * spread
        if FOCAL > 0:
            at_mass = -(at_dots * dots + 2.0 * at_norms * norms) / mass
            at_weights = (at_weights + at_mass[None, :, :]) * gates
        at_logits = p * (at_weights - tl.sum(p * at_weights, axis=0)[None, :, :])
        at_clipped = _through_norm(at_logits * temperature, clipped, length, normalised, KIND)
        at_products = tl.where(s > 0, at_clipped, at_clipped * slope) + at_sum[None, :, :] * kept
        tl.store(for_products + row + offset[None, :, :], at_products, mask=inside)

        one = tl.reshape(kept * at_quadratic[None, :, :], (LC, BQ * LQ))
        gram_total += tl.dot(one, tl.trans(tl.reshape(kept, (LC, BQ * LQ))), input_precision=PRECISION)
    column = tl.arange(0, LC)
    at = (c.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * Lc * Lc + i[:, None] * Lc + column[None, :]
    tl.store(for_gram + at, gram_total, mask=(i[:, None] < Lc) & (column[None, :] < Lc))


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
