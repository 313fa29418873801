"""The Triton kernels of `cosines`. A tile is (LC, BQ, LQ): one context, BQ queries, all padded to powers of two.

One program holds the Gram matrix of one context and walks over tiles of queries.
"""
# Inside a kernel every name is a tensor of Triton's own kind.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

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
        place = q[:, None] * Lq + w[None, :]
        row = c.to(tl.int64) * Lc * Q * Lq + i[:, None, None] * (Q * Lq)
        s = tl.load(products + row + place[None, :, :], mask=(i < Lc)[:, None, None] & here[None, :, :], other=0.0)
        real_query = here
        if HAS_QUERY_MASK:
            real_query = here & (tl.load(query_mask + c * own_squares + place, mask=here, other=0) != 0)
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
        squared = norms * tl.load(squares + c * own_squares + place, mask=here, other=0.0)
        value = dots / tl.sqrt(tl.maximum(squared, SMALLEST_SQUARE))
        tl.store(cosines + c.to(tl.int64) * Q * Lq + place, value, mask=here)


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
        place = q[:, None] * Lq + w[None, :]
        row = c.to(tl.int64) * Lc * Q * Lq + i[:, None, None] * (Q * Lq)
        inside = (i < Lc)[:, None, None] & here[None, :, :]
        s = tl.load(products + row + place[None, :, :], mask=inside, other=0.0)
        real_query = here
        if HAS_QUERY_MASK:
            real_query = here & (tl.load(query_mask + c * own_squares + place, mask=here, other=0) != 0)
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
        square = tl.load(squares + c * own_squares + place, mask=here, other=0.0)
        squared = norms * square
        inverse = 1.0 / tl.sqrt(tl.maximum(squared, SMALLEST_SQUARE))

        at_cosine = tl.load(above + c.to(tl.int64) * Q * Lq + place, mask=here, other=0.0)
        at_dots = at_cosine * inverse
        at_squared = tl.where(squared > SMALLEST_SQUARE, -0.5 * at_cosine * dots * inverse * inverse * inverse, 0.0)
        at_norms = at_squared * square
        tl.store(for_squares + c.to(tl.int64) * Q * Lq + place, at_squared * norms, mask=here)

        at_sum = at_dots / mass
        at_quadratic = at_norms / (mass * mass)
        at_weights = at_sum[None, :, :] * s + 2.0 * at_quadratic[None, :, :] * spread
        if FOCAL > 0:
            at_mass = -(at_dots * dots + 2.0 * at_norms * norms) / mass
            at_weights = (at_weights + at_mass[None, :, :]) * gates
        at_logits = p * (at_weights - tl.sum(p * at_weights, axis=0)[None, :, :])
        at_clipped = _through_norm(at_logits * temperature, clipped, length, normalised, KIND)
        at_products = tl.where(s > 0, at_clipped, at_clipped * slope) + at_sum[None, :, :] * kept
        tl.store(for_products + row + place[None, :, :], at_products, mask=inside)

        one = tl.reshape(kept * at_quadratic[None, :, :], (LC, BQ * LQ))
        gram_total += tl.dot(one, tl.trans(tl.reshape(kept, (LC, BQ * LQ))), input_precision=PRECISION)
    column = tl.arange(0, LC)
    at = (c.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * Lc * Lc + i[:, None] * Lc + column[None, :]
    tl.store(for_gram + at, gram_total, mask=(i[:, None] < Lc) & (column[None, :] < Lc))
