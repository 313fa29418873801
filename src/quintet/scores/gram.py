"""Cosines with an attended context that is never formed.

The cosine between a query q and its context sum_i p_i c_i is, exactly,

    cos = sum_i p_i (q . c_i) / (|q| sqrt(p' G p)),    G_ij = c_i . c_j

so all it needs is the products of a block (one large matrix product) and one small Gram matrix for every context.

Letters: C contexts of Lc fragments, Q queries of Lq fragments, d channels.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Precision = Literal["float32", "bfloat16"]

# torch.mm can put products of bfloat16 out in float32 on an accelerator from this version on.
_WIDE_OUTPUT = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
_SPLIT_FROM = 256  # channels: the error of a split product falls with their square root
_SMALLEST_SQUARE = 1e-16  # of |q| |context|: the authors clamp that product at 1e-8


def fragment_products(context: Tensor, queries: Tensor, *, paired: bool, precision: Precision = "float32") -> Tensor:
    """Every context fragment times every query fragment.

    context (C, Lc, d), queries (Q, Lq, d) -> (C, Lc, Q, Lq); with `paired`, row i meets row i only: (n, Lc, 1, Lq).

    `float32` is accurate to float32. On a CUDA device the product of float32 fragments of at least 256 channels is done
    as three bfloat16 products with float32 sums: each number is split in two bfloat16 halves, and only low times low is
    left out. It is faster than the float32 units and differs from them by about 1e-6 at most for unit vectors (less the
    more channels there are). `bfloat16` rounds the fragments once and sums in float32.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision must be one of {get_args(Precision)}, got {precision!r}")
    if paired:
        return _Product.apply(context, queries, precision)[:, :, None]  # (n, Lc, 1, Lq)
    flat = _Product.apply(context.flatten(0, 1), queries.flatten(0, 1), precision)  # (C Lc, Q Lq)
    return flat.view(*context.shape[:2], *queries.shape[:2])  # (C, Lc, Q, Lq)


def gram_matrices(context: Tensor) -> Tensor:
    """(C, Lc, d) -> (C, Lc, Lc), in float32 or wider."""
    wide = widen(context)
    return wide @ wide.mT


def squared_lengths(fragments: Tensor) -> Tensor:
    """(n, L, d) -> (n, L), in float32 or wider."""
    return torch.linalg.vector_norm(widen(fragments), dim=-1).square()  # needs no tensor of the fragments' size


def gram_cosines(weights: Tensor, products: Tensor, gram: Tensor, squares: Tensor, mass: Tensor | None) -> Tensor:
    """(C, Q, Lq): cosine of every query fragment with its attended context.

    weights, products (C, Lc, Q, Lq); gram (C, Lc, Lc); squares (1 or C, Q, Lq) are the queries' squared lengths.
    `mass` (C, Q, Lq) is what the weights sum to where that is not one: a cosine does not see it, its clamp does.
    """
    dots = (weights * products).sum(dim=1)  # (C, Q, Lq)
    spread = torch.bmm(gram, weights.flatten(2)).view_as(weights)  # (C, Lc, Q, Lq): G p
    squared = (weights * spread).sum(dim=1) * squares  # (C, Q, Lq): |q|^2 p' G p
    if mass is not None:
        dots, squared = dots / mass, squared / mass.square()
    # sqrt(clamp(x)) and not clamp(sqrt(x)): the same value, and a finite gradient at zero.
    return dots * squared.clamp(min=_SMALLEST_SQUARE).rsqrt()


def widen(tensor: Tensor) -> Tensor:
    """Half precision to float32; anything wider stays."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class _Product(torch.autograd.Function):
    """a b' over the last axis, (…, m, d) and (…, n, d) -> (…, m, n), in the given precision, float32 or wider out."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, precision: Precision) -> Tensor:
        ctx.save_for_backward(a, b)
        if precision == "bfloat16":
            return _narrow_product(a.bfloat16(), b.bfloat16())
        if a.dtype == b.dtype == torch.bfloat16:
            return _narrow_product(a, b)
        a, b = widen(a), widen(b)
        if _WIDE_OUTPUT and a.is_cuda and a.dtype == b.dtype == torch.float32 and a.shape[-1] >= _SPLIT_FROM:
            return _narrow_product(_split(a, low_last=True), _split(b, low_last=False))
        return a @ b.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (grad,) = grads
        a, b = ctx.saved_tensors
        for_a = (grad @ b.to(grad.dtype)).to(a.dtype) if ctx.needs_input_grad[0] else None
        for_b = (grad.mT @ a.to(grad.dtype)).to(b.dtype) if ctx.needs_input_grad[1] else None
        return for_a, for_b, None


def _narrow_product(a: Tensor, b: Tensor) -> Tensor:
    """bfloat16 in, float32 sums and output."""
    if a.is_cuda and _WIDE_OUTPUT:
        multiply = torch.mm if a.dim() == 2 else torch.bmm
        return multiply(a, b.mT, out_dtype=torch.float32)
    return a.float() @ b.float().mT


def _split(x: Tensor, low_last: bool) -> Tensor:
    """(…, d) float32 -> (…, 3 d) bfloat16, so that two of them multiply to high high + high low + low high."""
    high = x.bfloat16()
    low = (x - high).bfloat16()
    return torch.cat([high, high, low] if low_last else [high, low, high], dim=-1)
