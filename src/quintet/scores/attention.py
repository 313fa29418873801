"""Attention of queries over a context: products, normalisation, focal gates, cosines from Gram matrices, aggregation.

Layout everywhere: (C, Lc, Q, Lq) for C contexts of Lc fragments and Q queries of Lq fragments. Text-to-image attention
has words as queries and regions as context; image-to-text attention is the same function with the two exchanged.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from quintet.layers.normalize import widen

Norm = Literal["clipped_l2norm", "l2norm", "softmax", "clipped", "none", "l1norm", "clipped_l1norm"]
Aggregation = Literal["lse", "mean", "max", "sum"]
Focal = Literal["equal", "prob"]
Precision = Literal["float32", "bfloat16"]

EPSILON = 1e-8  # added to the length over the queries, as the authors do
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


def attention_weights(
    products: Tensor,
    context_mask: Tensor | None,
    query_mask: Tensor | None,
    *,
    norm: Norm,
    relu_slope: float,
    temperature: float,
) -> Tensor:
    """(C, Lc, Q, Lq): softmax over the context, for every query, of the normalised products times the temperature."""
    scaled = normalise_products(products, query_mask, norm, relu_slope, temperature)
    if context_mask is not None:
        scaled = scaled.masked_fill(~context_mask[:, :, None, None], torch.finfo(scaled.dtype).min)
    return torch.softmax(scaled, dim=1)


def normalise_products(
    products: Tensor, query_mask: Tensor | None, norm: Norm, relu_slope: float, times: float
) -> Tensor:
    """SCAN's raw-feature normalisation, `times` a factor: for every context fragment, over the queries (the last axis).

    The `clipped` forms first set negative products to zero (the paper) or multiply them by `relu_slope` (0.1 in the
    authors' code). The l1 forms divide by the sum of absolute values.
    """
    check_norm(norm)
    if norm == "none":
        return products * times
    if norm == "softmax":
        if query_mask is not None:
            products = products.masked_fill(~query_mask[:, None], torch.finfo(products.dtype).min)
        return torch.softmax(products, dim=-1) * times
    if norm.startswith("clipped"):
        products = F.leaky_relu(products, relu_slope)
    if norm == "clipped":
        return products * times
    if query_mask is not None:
        products = products.masked_fill(~query_mask[:, None], 0.0)  # padding does not count in the length
    order = 1 if norm.endswith("l1norm") else 2
    length = torch.linalg.vector_norm(products, order, dim=-1, keepdim=True)  # (C, Lc, Q, 1)
    return products * (times / (length + EPSILON))


def check_norm(norm: str) -> None:
    if norm not in get_args(Norm):
        raise ValueError(f"norm must be one of {get_args(Norm)}, got {norm!r}")


def focal_gates(weights: Tensor, context_mask: Tensor | None, focal: Focal) -> Tensor:
    """(C, Lc, Q, Lq), ones where a context fragment is kept, without gradient.

    With x the attention of one query over its L real context fragments, fragment i is kept where F_i > 0:

    - `equal`: F_i = sum_j (x_i - x_j) = L x_i - sum_j x_j;
    - `prob`: F_i = sum_j (x_i - x_j) sqrt(x_j) = x_i sum_j sqrt(x_j) - sum_j x_j sqrt(x_j).

    If attention is uniform (a context of one fragment, or equal fragments) every F_i is zero. Then all fragments are
    kept, and the attention is unchanged. The authors' code divides zero by zero there.
    """
    if focal not in get_args(Focal):
        raise ValueError(f"focal must be one of {get_args(Focal)}, got {focal!r}")
    x = weights.detach()
    if focal == "equal":
        count: Tensor | int = x.shape[1]
        if context_mask is not None:
            count = context_mask.sum(dim=1)[:, None, None, None]  # (C, 1, 1, 1)
        above = count * x > x.sum(dim=1, keepdim=True)
    else:
        roots = x.sqrt()
        above = x * roots.sum(dim=1, keepdim=True) > (x * roots).sum(dim=1, keepdim=True)
    if context_mask is not None:
        above = above & context_mask[:, :, None, None]
    none_above = ~above.any(dim=1, keepdim=True)  # (C, 1, Q, Lq)
    return (above | none_above).to(torch.result_type(weights, 1.0))


def attended_cosines(
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
    """(C, Q, Lq): the cosine of every query fragment with what it attends to (SCAN Eq. 1 to 4; BFAN with `focal`).

    products (C, Lc, Q, Lq), gram (C, Lc, Lc), squares and query_mask (1 or C, Q, Lq), context_mask (C, Lc). A mask is
    None where every fragment is real.
    """
    weights = attention_weights(
        products, context_mask, query_mask, norm=norm, relu_slope=relu_slope, temperature=temperature
    )
    mass = None
    if focal is not None:
        weights = weights * focal_gates(weights, context_mask, focal)
        mass = weights.sum(dim=1)  # (C, Q, Lq)
    return gram_cosines(weights, products, gram, squares, mass)


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
    `mass` (C, Q, Lq) is the sum of the weights if that is not one: it changes the clamp, not the cosine.
    """
    dots = (weights * products).sum(dim=1)  # (C, Q, Lq)
    spread = torch.bmm(gram, weights.flatten(2)).view_as(weights)  # (C, Lc, Q, Lq): G p
    squared = (weights * spread).sum(dim=1) * squares  # (C, Q, Lq): |q|^2 p' G p
    if mass is not None:
        dots, squared = dots / mass, squared / mass.square()
    # sqrt(clamp(x)) and not clamp(sqrt(x)): the same value, and a finite gradient at zero.
    return dots * squared.clamp(min=_SMALLEST_SQUARE).rsqrt()


def aggregate(cosines: Tensor, query_mask: Tensor | None, aggregation: Aggregation, lambda_lse: float) -> Tensor:
    """(C, Q, Lq) -> (C, Q): over the real fragments of every query (SCAN Eq. 5 and 6).

    `lse` is log(sum_q exp(lambda s_q)) / lambda, without division by the number of fragments.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation must be one of {get_args(Aggregation)}, got {aggregation!r}")
    if aggregation in ("lse", "max"):
        if query_mask is not None:
            cosines = cosines.masked_fill(~query_mask, -torch.inf)
        if aggregation == "max":
            return cosines.amax(dim=-1)
        return torch.logsumexp(cosines * lambda_lse, dim=-1) / lambda_lse
    if query_mask is None:
        return cosines.mean(dim=-1) if aggregation == "mean" else cosines.sum(dim=-1)
    total = cosines.masked_fill(~query_mask, 0.0).sum(dim=-1)  # (C, Q)
    return total / query_mask.sum(dim=-1) if aggregation == "mean" else total
