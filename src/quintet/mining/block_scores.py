"""Scores of a split's images and texts, a block at a time: float32 from any matcher, or half-precision products of
embeddings with a bound of their error and float32 scores of single pairs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.evaluation.scoring import embedding_tile, score_in_tiles
from quintet.protocols import Matcher
from quintet.runs.devices import full_precision

Precision = Literal["auto", "float32", "float16", "bfloat16"]
Side = Literal["images", "texts"]  # which of the two the anchors are
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# Candidates beyond the length of a list. In float32 they only have to hold what ties with the last entry; in half
# precision they have to reach below it by the rounding error of a product, which is 8 times larger in bfloat16.
SLACK = {"float32": 16, "float16": 64, "bfloat16": 256}
# Products of different shapes round differently. A matcher is always asked for tiles of one shape, cut at the same
# rows, so that the lists are the same bits whatever the memory and the number of processes.
TILES = {"cpu": (64, 256), "cuda": (1024, 4096)}
EMBEDDING_TILE = (1024, 4096)  # on a CPU, for matchers without fragments, or what holds a smaller split
PAIR_BYTES = {"cpu": 2**22, "cuda": 2**28}  # gathered at a time; on a CPU what stays in its cache


def best_tile(device: str, fragments: bool, sizes: tuple[int, int]) -> tuple[int, int]:
    """The shape that a matcher is asked for, by the size of the whole split."""
    if fragments or device != "cpu":
        return TILES.get(device, TILES["cuda"])
    return embedding_tile(range(sizes[0]), range(sizes[1]), EMBEDDING_TILE)


class TileScores:
    """Float32 scores of any matcher, in tiles of one shape. Block scores are the scores that decide."""

    precision = "float32"
    unit = 1.0  # block scores count in multiples of it

    def __init__(
        self,
        matcher: Matcher,
        image_codes: Codes,
        text_codes: Codes,
        device: torch.device,
        tile: tuple[int, int] | None = None,
    ) -> None:
        self.matcher, self.device = matcher, device
        self.image_codes, self.text_codes = image_codes.detach(), text_codes.detach()
        fragments = image_codes.fragments is not None or text_codes.fragments is not None
        self.tile = tile or best_tile(device.type, fragments, self.sizes)
        self.first = 0, 0  # rows of the split of the first image and text here

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.image_codes), len(self.text_codes)

    def block(self, images: slice, texts: slice) -> Tensor:
        """(a, b) scores of a block whose edges are edges of tiles; the caller may write into it."""
        codes = self.image_codes[images].to(self.device), self.text_codes[texts].to(self.device)
        with torch.no_grad(), full_precision(self.device):
            scores = score_in_tiles(self.matcher, *codes, self.tile)
        if not torch.isfinite(scores.sum()) and not torch.isfinite(scores).all():
            image, text = (~torch.isfinite(scores)).nonzero()[0].tolist()
            raise QuintetError(
                f"the score of image {self.first[0] + images.start + image} and text "
                f"{self.first[1] + texts.start + text} of the split is "
                f"{scores[image, text].item()}; negatives cannot be ranked: look for NaN or infinity in the features "
                "or the weights"
            )
        return scores

    def at_most(self, scores: Tensor) -> Tensor:
        """The highest float32 score that pairs with these block scores can have."""
        return scores

    def surely_above(self, caps: Tensor) -> Tensor:
        """The block scores, in units, above which the float32 score is above `caps` for certain."""
        return caps

    def rescore(self, side: Side, anchors: slice, rows: Tensor, scores: Tensor) -> Tensor:
        """(n, k) float32 scores that decide, of anchors with the candidates `rows` whose block scores are `scores`."""
        return scores

    def groups(self, side: Side, lines: Tensor) -> list[Tensor]:
        """Anchors (ascending rows) in groups that `exact` takes: here those of one tile."""
        counts = (lines // self.tile[side == "texts"]).unique_consecutive(return_counts=True)[1]
        return list(lines.split(counts.tolist()))

    def exact(self, side: Side, group: Tensor, others: slice) -> Tensor:
        """(n, b) float32 scores that decide, of a group of anchors: the very bits that `block` gives."""
        number = int(side == "texts")
        first = int(group[0]) // self.tile[number] * self.tile[number]
        anchors = slice(first, min(first + self.tile[number], self.sizes[number]))
        scores = self.block(anchors, others) if side == "images" else self.block(others, anchors).T
        return scores[group.to(self.device) - first]

    def pairs(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """(p,) float32 scores that decide, of single pairs."""
        found = np.empty(len(images), np.float32)
        tiles = np.stack([images // self.tile[0], texts // self.tile[1]])
        order = np.lexsort(tiles[::-1])
        cuts = np.flatnonzero(np.diff(tiles[:, order]).any(axis=0)) + 1
        for pairs in np.split(order, cuts) if len(order) else []:
            first = tiles[:, pairs[0]] * self.tile
            ends = np.minimum(first + self.tile, self.sizes)
            scores = self.block(slice(first[0], ends[0]), slice(first[1], ends[1]))
            at = (torch.from_numpy(rows[pairs] - start) for rows, start in zip((images, texts), first, strict=True))
            found[pairs] = scores[tuple(rows.to(self.device) for rows in at)].cpu().numpy()
        return found

    def fingerprint(self) -> str:
        """Tells these codes from others, at the price of reading some of their rows."""
        digest = hashlib.sha256(type(self.matcher).__name__.encode())
        for codes in (self.image_codes, self.text_codes):
            rows = torch.linspace(0, len(codes) - 1, min(len(codes), 64), device=codes.device).long()
            for name, tensor in codes[rows].tensors().items():
                digest.update(f"{name} {len(codes)} {tuple(tensor.shape[1:])}".encode())
                digest.update(tensor.float().cpu().numpy().tobytes())
        return digest.hexdigest()


class ProductScores(TileScores):
    """Half-precision products of embeddings; a float32 score is the product in float64, rounded.

    With a = ã + Δa and b = b̃ + Δb, |a·b - ã·b̃| <= |Δa||b| + |ã||Δb| (Cauchy-Schwarz). The norms are measured on the
    embeddings at hand. Adding up d products in float32 and rounding the sum to half precision add their own terms.
    """

    def __init__(self, tiles: TileScores, precision: str, memory: int) -> None:
        super().__init__(tiles.matcher, tiles.image_codes, tiles.text_codes, tiles.device, tiles.tile)
        self.precision, self.dtype = precision, HALVES[precision]
        embeddings = embeddings_of(self.image_codes, self.text_codes)
        # Embeddings that do not fit the memory are moved to the device whenever rows of them are wanted.
        device = self.device if fits(embeddings, self.device, memory) else None
        self._full = [embedding if device is None else embedding.to(device) for embedding in embeddings]
        self._half, norms, lost, scales = [], [], [], []
        for embedding in self._full:
            norm = float(embedding.float().norm(dim=1).max())
            if not math.isfinite(norm):
                raise QuintetError(
                    "an embedding is not finite; look for NaN or infinity in the features or the weights"
                )
            scale = 2.0 ** -math.ceil(math.log2(norm)) if norm else 1.0  # exact, and no product overflows
            half = (embedding.float() * scale).to(self.dtype)
            self._half.append(half)
            norms.append(norm)
            scales.append(scale)
            parts = zip(embedding.split(2**14), half.split(2**14), strict=True)
            lost.append(max(float((one.float() - other.float() / scale).norm(dim=1).max()) for one, other in parts))
        self.unit = 1.0 / (scales[0] * scales[1])
        dim, number = embeddings[0].shape[1], torch.finfo(self.dtype)
        rounding = norms[0] * lost[1] + norms[1] * lost[0] + lost[0] * lost[1]
        adding = (dim + 2) * 2.0**-23 * (norms[0] + lost[0]) * (norms[1] + lost[1])
        self._fixed = 1.01 * (rounding + adding) + number.tiny * number.eps * self.unit
        self._relative = 1.01 * number.eps / 2

    def block(self, images: slice, texts: slice) -> Tensor:
        """(a, b) products in half precision, added up in float32, in units."""
        left, right = self._half[0][images].to(self.device), self._half[1][texts].to(self.device)
        if self.device.type == "cpu":  # what a GPU does, without its speed
            return (left.float() @ right.float().T).to(self.dtype)
        return left @ right.T

    def at_most(self, scores: Tensor) -> Tensor:
        return scores + self._fixed + self._relative * scores.abs()

    def surely_above(self, caps: Tensor) -> Tensor:
        caps = caps.double() + self._fixed
        return ((caps + 4 * self._relative * caps.abs()) / self.unit).clamp(max=torch.finfo(torch.float32).max).float()

    def rescore(self, side: Side, anchors: slice, rows: Tensor, scores: Tensor) -> Tensor:
        number = int(side == "texts")
        left = self._rows(number, anchors)  # (n, d)
        step = max(1, PAIR_BYTES.get(self.device.type, 2**28) // (24 * rows.shape[1] * left.shape[1]))
        found = []
        for part, candidates in zip(left.split(step), rows.split(step), strict=True):
            others = self._rows(1 - number, candidates.flatten()).unflatten(0, candidates.shape)  # (n, k, d)
            found.append(torch.bmm(others.double(), part.double()[:, :, None]).squeeze(2).float())  # (n, k)
        return torch.cat(found)

    def groups(self, side: Side, lines: Tensor) -> list[Tensor]:
        return list(lines.split(self.tile[side == "texts"]))

    def exact(self, side: Side, group: Tensor, others: slice) -> Tensor:
        number = int(side == "texts")
        return (self._rows(number, group).double() @ self._rows(1 - number, others).double().T).float()

    def pairs(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        found = np.empty(len(images), np.float32)
        step = max(1, PAIR_BYTES.get(self.device.type, 2**28) // (48 * self._full[0].shape[1]))
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            left, right = (self._rows(i, torch.from_numpy(rows[part])) for i, rows in enumerate((images, texts)))
            found[part] = (left.double() * right.double()).sum(dim=1).float().cpu().numpy()
        return found

    def _rows(self, number: int, rows: slice | Tensor) -> Tensor:
        """(n, d) float32 on the device."""
        embedding = self._full[number]
        return embedding[rows if isinstance(rows, slice) else rows.to(embedding.device)].to(self.device, torch.float32)


def make_scores(
    matcher: Matcher,
    image_codes: Codes,
    text_codes: Codes,
    device: torch.device,
    precision: Precision,
    memory: int,
    tile: tuple[int, int] | None = None,
) -> TileScores:
    """The scores that `precision` asks for.

    "auto" is float16 for embeddings that fit a GPU, else float32. On a CPU float32 is the quicker way: scoring the
    candidates again takes longer than the products in half precision save.
    """
    tiles = TileScores(matcher, image_codes, text_codes, device, tile)
    if precision == "float32" or (precision == "auto" and device.type != "cuda"):
        return tiles
    reason = _why_not_products(tiles)
    if precision != "auto":
        if reason is not None:
            raise QuintetError(f"precision {precision!r} cannot be used with this matcher: {reason}; use float32")
        return ProductScores(tiles, precision, memory)
    if reason is not None or not fits(embeddings_of(image_codes, text_codes), device, memory):
        return tiles
    return ProductScores(tiles, "float16", memory)


def embeddings_of(image_codes: Codes, text_codes: Codes) -> list[Tensor]:
    embeddings = [codes.embedding for codes in (image_codes, text_codes)]
    return [embedding for embedding in embeddings if embedding is not None]


def fits(embeddings: list[Tensor], device: torch.device, memory: int) -> bool:
    """Whether what has to be moved to the device, and copies in half precision, take up to half of the memory."""
    moved = sum((0 if part.device == device else 4) * part.numel() + 2 * part.numel() for part in embeddings)
    return moved <= memory // 2


def _why_not_products(tiles: TileScores) -> str | None:
    """Recognised by the codes and what `score` makes of them, not from the class."""
    images, texts = tiles.image_codes, tiles.text_codes
    fragments = images.fragments is not None or texts.fragments is not None
    if images.embedding is None or texts.embedding is None or fragments:
        return "it scores fragments, and how far rounding moves such a score is not known"
    some = [slice(0, size) for size in tiles.tile]
    scores = tiles.block(*some).double()
    parts = zip((images.embedding, texts.embedding), some, strict=True)
    left, right = (embedding[rows].to(tiles.device).double() for embedding, rows in parts)
    products = left @ right.T
    if not torch.allclose(scores, products, rtol=1e-4, atol=1e-4 * float(products.abs().max())):
        return "its scores are not the products of its embeddings"
    return None


@contextmanager
def float32_sums() -> Iterator[None]:
    """Products of half precision are added up in float32, also where cuBLAS splits a sum: the bound counts on it."""
    flags = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {flag: getattr(torch.backends.cuda.matmul, flag) for flag in flags}
    for flag in flags:
        setattr(torch.backends.cuda.matmul, flag, False)
    try:
        yield
    finally:
        for flag, value in before.items():
            setattr(torch.backends.cuda.matmul, flag, value)
