"""How to mine: what is compared, in which precision, in blocks of which shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from quintet.errors import QuintetError
from quintet.mining.exact import Caps, Direction, ExactSweep, block_shape
from quintet.mining.exclude import Exclusions
from quintet.mining.half import HalfShape, HalfSweep, Sample, half_shape
from quintet.mining.legs import Legs
from quintet.mining.rounded import Embeddings, ProductBlocks, Products
from quintet.mining.source import Source
from quintet.mining.toplists import ENTRY_BYTES

Precision = Literal["auto", "float32", "float16", "bfloat16"]
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CPU_MEMORY = 2**30


@dataclass(frozen=True)
class Tuning:
    """Choices that change the speed and never the lists."""

    tile: tuple[int, int] | None = None
    kernels: bool | None = None  # Triton; None: where it is there
    shape: HalfShape | None = None
    samples: tuple[int, int] = (16384, 8192)  # at most this many texts, images
    legs: Legs | None = None


class FloatSweep:
    """Float32 throughout: for any matcher."""

    def __init__(
        self,
        source: Source,
        exact: ExactSweep,
        of_texts: Direction,
        caps: Caps | None,
        top_texts: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.source, self.exact, self.of_texts, self.caps = source, exact, of_texts, caps
        self.top_texts, self.progress = top_texts, progress

    def stripe(self, images: slice) -> Direction:
        caps = None if self.caps is None else self.caps.images[images]
        of_images = Direction.make(images.stop - images.start, self.top_texts, self.source.device, caps)
        texts = slice(0, len(self.source.text_codes))
        self.exact.run(images, texts, of_images, self.of_texts, self.progress)
        return of_images

    def merge_texts(self) -> None:
        """Nothing waits."""


def default_memory(device: torch.device) -> int:
    """Half of what is free on a GPU, a fixed modest share of a computer's memory."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else CPU_MEMORY


def make_products(
    source: Source, precision: Precision, samples: tuple[Sample, Sample] | None, memory: int, tuning: Tuning
) -> Products | None:
    """Rounded embeddings, where half precision is asked for, can be proven and has something to gain; else None."""
    if precision == "float32" or (precision == "auto" and source.device.type != "cuda"):
        return None
    reason = _why_not_products(source)
    if reason is not None:
        if precision == "auto":
            return None
        raise QuintetError(f"precision {precision!r} cannot be used with this matcher: {reason}; use float32")
    if samples is None:
        return None
    images, texts = source.image_codes.embedding, source.text_codes.embedding
    assert images is not None
    assert texts is not None
    dtype = HALVES["float16" if precision == "auto" else precision]
    needed = sum(2 * e.numel() + (0 if e.device == source.device else 4 * e.numel()) for e in (images, texts))
    resident = needed <= memory // 2
    kernels = tuning.kernels if tuning.kernels is not None else _kernels(source.device)
    left, right = (Embeddings(side, dtype, source.device, resident) for side in (images, texts))
    return Products(left, right, kernels=kernels and resident)


def _kernels(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    from importlib.util import find_spec

    return find_spec("triton") is not None


def _why_not_products(source: Source) -> str | None:
    """Told from the codes and what `score` makes of them, not from the class."""
    images, texts = source.image_codes, source.text_codes
    if (
        images.embedding is None
        or texts.embedding is None
        or images.fragments is not None
        or texts.fragments is not None
    ):
        return "it scores fragments, and how far rounding moves such a score is not known"
    some_images, some_texts = (
        codes[: source.tile[side]].to(source.device) for side, codes in enumerate((images, texts))
    )
    scores = source.score(some_images, some_texts)
    assert some_images.embedding is not None
    assert some_texts.embedding is not None
    products = some_images.embedding.double() @ some_texts.embedding.double().T
    if not torch.allclose(scores.double(), products, rtol=1e-4, atol=1e-4 * float(products.abs().max())):
        return "its scores are not the products of its embeddings"
    return None


def make_samples(exclusions: Exclusions, tops: tuple[int, int], tuning: Tuning) -> tuple[Sample, Sample] | None:
    """Samples of texts (for images) and of images (for texts); None where the corpus is too small to need them."""
    found = []
    # An anchor's positives are in nobody's list but may reach its floor.
    for candidates, top, most in zip(
        (exclusions.text_groups, exclusions.image_groups), tops, tuning.samples, strict=True
    ):
        positives = int(np.bincount(candidates).max())
        found.append(Sample.plan(len(candidates), top + positives, most))
    return (found[0], found[1]) if all(sample.useful for sample in found) else None


def positive_scores(
    source: Source, products: Products | None, exclusions: Exclusions
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every pair of one group: image rows, text rows, scores as candidates would get them."""
    image, text = exclusions.positives()
    if products is None:
        return image, text, source.pairs(image, text)
    on = [torch.from_numpy(rows).to(source.device) for rows in (image, text)]
    return image, text, products.pairs(*on).cpu().numpy()


def make_caps(positives: tuple[np.ndarray, np.ndarray, np.ndarray], sizes: tuple[int, int], margin: float) -> Caps:
    """The best positive score of each anchor plus the margin, in float32."""
    image, text, scores = positives
    caps = []
    for rows, size in ((image, sizes[0]), (text, sizes[1])):
        best = np.full(size, -np.inf, np.float32)
        np.maximum.at(best, rows, scores)
        cap = best + np.float32(margin)
        caps.append(torch.from_numpy(np.where(np.isfinite(best), cap, np.finfo(np.float32).max).astype(np.float32)))
    return Caps(*caps)


def make_sweep(
    source: Source,
    exclusions: Exclusions,
    products: Products | None,
    samples: tuple[Sample, Sample] | None,
    caps: Caps | None,
    tops: tuple[int, int],
    memory: int,
    tuning: Tuning,
    guess: Tensor | None,
    progress: Callable[[int], None] | None,
) -> tuple[FloatSweep | HalfSweep, int]:
    """The sweep, and how many images its stripes have."""
    images, texts = len(source.image_codes), len(source.text_codes)
    of_texts = Direction.make(texts, tops[1], source.device, None if caps is None else caps.texts)
    shape = block_shape(source, memory, tops[0], images, texts)
    entries = max(memory // 4 // ENTRY_BYTES, 2**12)
    if products is None or samples is None:
        return FloatSweep(
            source, ExactSweep(source, exclusions, shape, entries), of_texts, caps, tops[0], progress
        ), shape[0]
    exact = ExactSweep(ProductBlocks(products), exclusions, shape, entries, lambda i, t, _: products.pairs(i, t))
    half = tuning.shape or half_shape(memory, images, texts, samples)
    sweep = HalfSweep(products, exclusions, exact, of_texts, caps, half, samples, tops[0], guess, tuning.legs)
    return sweep, half.images
