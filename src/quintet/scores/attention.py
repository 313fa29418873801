"""Attention of queries over a context: normalise the products, soften them, sum the cosines up.

Layout everywhere: (C, Lc, Q, Lq) for C contexts of Lc fragments and Q queries of Lq fragments. Text-to-image attention
has words as queries and regions as context; image-to-text attention is the same function with the two exchanged.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.scores.focal import Focal, focal_gates
from quintet.scores.gram import gram_cosines

Norm = Literal["clipped_l2norm", "l2norm", "softmax", "clipped", "none", "l1norm", "clipped_l1norm"]
Aggregation = Literal["lse", "mean", "max", "sum"]

EPSILON = 1e-8  # added to the length over the queries, as the authors do


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


def check_norm(norm: str) -> None:
    if norm not in get_args(Norm):
        raise ValueError(f"norm must be one of {get_args(Norm)}, got {norm!r}")
