"""Plain twins of the cross-attention scores: one pair at a time, contexts formed in full, nothing padded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.codes import Codes


def normalise(products: Tensor, norm: str, slope: float) -> Tensor:
    """products (Lc, Lq), over the queries."""
    if norm.startswith("clipped"):
        products = torch.where(products > 0, products, slope * products)
    if norm.endswith("l2norm"):
        return products / (products.pow(2).sum(dim=1, keepdim=True).sqrt() + 1e-8)
    if norm.endswith("l1norm"):
        return products / (products.abs().sum(dim=1, keepdim=True) + 1e-8)
    return products.softmax(dim=1) if norm == "softmax" else products


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp(min=1e-8)


def sum_up(cosines: Tensor, aggregation: str, lambda_lse: float) -> Tensor:
    if aggregation == "lse":
        return (cosines * lambda_lse).exp().sum().log() / lambda_lse
    return {"mean": cosines.mean, "sum": cosines.sum, "max": cosines.max}[aggregation]()


def scan_pair(regions: Tensor, words: Tensor, direction: str, norm: str, slope: float, softmax: float) -> Tensor:
    """Cosines of every query of one pair."""
    context, queries = (regions, words) if direction == "t2i" else (words, regions)
    weights = (normalise(context @ queries.T, norm, slope) * softmax).softmax(dim=0)  # (Lc, Lq)
    return cosine(queries, weights.T @ context)


def gates_of_pair(weights: Tensor, focal: str) -> Tensor:
    """weights (Lc, Lq) -> ones where sum_j (x_i - x_j) g(x_j) > 0, by its definition; ones where none is."""
    g = weights.sqrt() if focal == "prob" else torch.ones_like(weights)
    gained = ((weights[:, None] - weights[None, :]) * g[None, :]).sum(dim=1)  # (Lc, Lq)
    kept = (gained > 1e-12).to(weights.dtype)
    return torch.where(kept.sum(dim=0, keepdim=True) > 0, kept, torch.ones_like(kept))


def bfan_pair(regions: Tensor, words: Tensor, focal: str, slope: float, softmax: float) -> Tensor:
    total = torch.zeros((), dtype=words.dtype)
    for context, queries in ((regions, words), (words, regions)):
        weights = (normalise(context @ queries.T, "clipped_l2norm", slope) * softmax).softmax(dim=0)
        weights = weights * gates_of_pair(weights.detach(), focal)
        weights = weights / weights.sum(dim=0, keepdim=True)
        total = total + cosine(queries, weights.T @ context).mean()
    return total


def every_pair(images: Codes, texts: Codes, pair: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    assert images.fragments is not None
    assert texts.fragments is not None
    regions = [row[real] for row, real in zip(images.fragments, images.real(), strict=True)]
    words = [row[real] for row, real in zip(texts.fragments, texts.real(), strict=True)]
    return torch.stack([torch.stack([pair(v, w) for w in words]) for v in regions])


@pytest.fixture(scope="session")
def scan_twin() -> Callable[..., Tensor]:
    def twin(
        images: Codes,
        texts: Codes,
        direction: str = "t2i",
        norm: str = "clipped_l2norm",
        aggregation: str = "lse",
        lambda_softmax: float = 9.0,
        lambda_lse: float = 6.0,
        relu_slope: float = 0.0,
    ) -> Tensor:
        def pair(v: Tensor, w: Tensor) -> Tensor:
            cosines = scan_pair(v, w, direction, norm, relu_slope, lambda_softmax)
            return sum_up(cosines, aggregation, lambda_lse)

        return every_pair(images, texts, pair)

    return twin


@pytest.fixture(scope="session")
def bfan_twin() -> Callable[..., Tensor]:
    def twin(
        images: Codes, texts: Codes, focal: str = "equal", lambda_softmax: float = 20.0, relu_slope: float = 0.1
    ) -> Tensor:
        return every_pair(images, texts, lambda v, w: bfan_pair(v, w, focal, relu_slope, lambda_softmax))

    return twin


@pytest.fixture(scope="session")
def make_codes() -> Callable[..., Codes]:
    def codes(lengths: list[int], seed: int = 0, dim: int = 6, dtype: torch.dtype = torch.float64) -> Codes:
        """Unit fragments, items of these lengths; what is padded is NaN, which must never be seen."""
        generator = torch.Generator().manual_seed(seed)
        longest = max(lengths, default=1)
        values = F.normalize(torch.randn(len(lengths), longest, dim, generator=generator, dtype=dtype), dim=-1)
        mask = torch.arange(longest) < torch.tensor(lengths, dtype=torch.int64)[:, None]
        return Codes(fragments=values.masked_fill(~mask[..., None], torch.nan), mask=mask)

    return codes
