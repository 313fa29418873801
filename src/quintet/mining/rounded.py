"""Embeddings rounded to half precision, with a proof of how far their products can be from the float32 scores.

With a = a~ + da and b = b~ + db, |a.b - a~.b~| <= |da| |b| + |a~| |db| (Cauchy-Schwarz), and the norms of what rounding
took away are measured, not assumed. Adding up d products in float32 and rounding the result add their own terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from quintet.errors import QuintetError
from quintet.mining.source import Rows, count, part
from quintet.runs.devices import full_precision

CHUNK_BYTES = 2**28
PAIR_BYTES = {"cpu": 2**22, "cuda": 2**28}  # gathered at a time; on a CPU what stays in its cache
# Half a unit in the last place: what rounding a product to this type can change, relatively.
ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 0.0}


class Embeddings:
    """The rows of one side: in float32 where they are asked for exactly, in half precision for the product.

    `resident`: both copies stay on the device; otherwise rows are moved and rounded when they are asked for.
    """

    def __init__(self, embedding: Tensor, dtype: torch.dtype, device: torch.device, resident: bool) -> None:
        self.source, self.dtype, self.device, self.resident = embedding, dtype, device, resident
        rows = max(1, CHUNK_BYTES // (16 * embedding.shape[1]))
        chunks = [slice(start, min(start + rows, len(embedding))) for start in range(0, len(embedding), rows)]
        self.norm = max(float(self._float(chunk).norm(dim=1).max()) for chunk in chunks)
        if not math.isfinite(self.norm):
            raise QuintetError("an embedding is not finite; look for NaN or infinity in the features or the weights")
        # A power of two, so that scaling changes no bit but the exponent, and no product overflows.
        self.scale = 2.0 ** -math.ceil(math.log2(self.norm)) if self.norm else 1.0
        self.lost = max(
            float((self._float(chunk) - self._round(chunk).float() / self.scale).norm(dim=1).max()) for chunk in chunks
        )
        self.full = embedding.to(device, torch.float32) if resident else None
        self.half = torch.cat([self._round(chunk) for chunk in chunks]) if resident else None

    def __len__(self) -> int:
        return len(self.source)

    def _float(self, rows: Rows) -> Tensor:
        return self.source[rows].to(self.device, torch.float32)

    def _round(self, rows: Rows) -> Tensor:
        return (self._float(rows) * self.scale).to(self.dtype)

    def rounded(self, rows: Rows) -> Tensor:
        """(n, d) in half precision, scaled."""
        return self._round(rows) if self.half is None else self.half[rows]

    def exact(self, rows: Rows) -> Tensor:
        """(n, d) float32."""
        if self.full is not None:
            return self.full[rows]
        return self._float(rows if isinstance(rows, slice) else rows.to(self.source.device))


class Products:
    """Approximate scores from rounded embeddings, float32 scores of single pairs, and the distance between the two."""

    def __init__(self, images: Embeddings, texts: Embeddings, kernels: bool) -> None:
        self.images, self.texts, self.kernels = images, texts, kernels
        self.scale = images.scale * texts.scale
        dim = images.source.shape[1]
        roughly = images.norm * texts.lost + texts.norm * images.lost + images.lost * texts.lost
        adding = (dim + 2) * 2.0**-23 * (images.norm + images.lost) * (texts.norm + texts.lost)
        self.fixed = 1.01 * (roughly + adding)
        on_cpu = images.device.type == "cpu"  # there the product is made, and left, in float32
        self.relative = 1.01 * ROUNDOFF[torch.float32 if on_cpu else images.dtype]

    def error(self, scores: Tensor) -> Tensor:
        """How far an approximate score near `scores` can be from the float32 score."""
        return self.fixed + self.relative * scores.abs()

    def block(self, images: Tensor, texts: Tensor, out: Tensor | None = None) -> Tensor:
        """(a, b) approximate scores times `scale`, of rounded rows."""
        if images.device.type == "cpu":
            return images.float() @ texts.float().T
        return torch.mm(images, texts.T) if out is None else torch.mm(images, texts.T, out=out)

    def pairs(self, images: Tensor, texts: Tensor) -> Tensor:
        """(p,) float32 scores that decide: products rounded to float32 and added up in float64.

        Their order of addition does not show, so a pair has one score wherever and whenever it is computed.
        """
        if self.kernels and self.images.full is not None and self.texts.full is not None:
            from quintet.mining.kernels import pair_products

            return pair_products(self.images.full, self.texts.full, images, texts)
        step = max(1, PAIR_BYTES[self.images.device.type] // (16 * self.images.source.shape[1]))
        parts = [
            (self.images.exact(images[at : at + step]) * self.texts.exact(texts[at : at + step]))
            .sum(dim=1, dtype=torch.float64)
            .float()
            for at in range(0, len(images), step)
        ]
        return torch.cat(parts) if parts else torch.empty(0, device=self.images.device)


class ProductBlocks:
    """Float32 blocks of the same embeddings, for the anchors that half precision leaves open."""

    def __init__(self, products: Products) -> None:
        self.products, self.device = products, products.images.device

    def blocks(self, images: Rows, texts: Rows, width: int) -> Iterator[tuple[slice, Tensor]]:
        """As `Source.blocks`."""
        left = self.products.images.exact(images)
        for start in range(0, count(texts), width):
            stop = min(start + width, count(texts))
            with full_precision(self.device):
                yield slice(start, stop), left @ self.products.texts.exact(part(texts, start, stop)).T  # (a, b)


@contextmanager
def float32_sums() -> Iterator[None]:
    """Products of half precision are added up in float32, also where cuBLAS splits a sum: the proof counts on it."""
    flags = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {flag: getattr(torch.backends.cuda.matmul, flag) for flag in flags}
    for flag in flags:
        setattr(torch.backends.cuda.matmul, flag, False)
    try:
        yield
    finally:
        for flag, value in before.items():
            setattr(torch.backends.cuda.matmul, flag, value)


def floor_in(dtype: torch.dtype, floor: Tensor) -> Tensor:
    """`floor` in a coarser type, rounded down: what reached it before reaches it still.

    >>> floor = torch.tensor([0.1, -0.3, 0.5])
    >>> bool((floor_in(torch.bfloat16, floor).float() <= floor).all())
    True
    """
    if dtype == torch.float32:
        return floor
    lower = floor - 2 * ROUNDOFF[dtype] * floor.abs() - 2.0**-23  # the last term: float16 is coarser near zero
    coarse = floor.to(dtype)
    return torch.where(coarse.float() > floor, lower.to(dtype), coarse)
