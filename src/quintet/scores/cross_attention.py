"""Cross-attention scores of SCAN and BFAN: fragments attend to the other side, and cosines are summed up.

Lee, Chen, Hua, Hu, He: Stacked Cross Attention for Image-Text Matching, ECCV 2018.
Liu, Mao, Liu, Zhang, Wang, Zhang: Focus Your Attention: A Bidirectional Focal Attention Network, ACM MM 2019.

Pure functions of Codes with fragments, exact, block by block (`blocks`). An engine computes the cosines of a block:
plain torch, compiled torch, or a fused kernel. `attention_map` gives the attention of one pair, to be drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.layers.normalize import widen
from quintet.scores.attention import (
    Aggregation,
    Focal,
    Norm,
    Precision,
    aggregate,
    attended_cosines,
    attention_weights,
    check_norm,
    focal_gates,
    fragment_products,
    gram_matrices,
    squared_lengths,
)
from quintet.scores.blocks import fragments_of, score_all, score_rows

Direction = Literal["t2i", "i2t"]
Engine = Literal["auto", "torch", "compile", "triton"]

# (products, gram, squares, context mask or None, query mask or None) -> cosines; see `attended_cosines`
Cosines = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def scan_scores(
    image_codes: Codes,
    text_codes: Codes,
    *,
    direction: Direction = "t2i",
    norm: Norm = "clipped_l2norm",
    aggregation: Aggregation = "lse",
    lambda_softmax: float = 9.0,
    lambda_lse: float = 6.0,
    relu_slope: float = 0.0,
    precision: Precision = "float32",
    engine: Engine = "auto",
    budget: int | None = None,
    paired: bool = False,
) -> Tensor:
    """(n_images, n_texts): every image against every text; with `paired`, (n,): row i against row i.

    `t2i` lets every word attend to the regions, `i2t` every region to the words. `relu_slope` is the slope of the
    clipped normalisations below zero: 0 in the paper, 0.1 in the authors' code. `budget` bounds the bytes of a block's
    working tensors; it changes no score. `precision` and `engine`: see `fragment_products` and `cosines_by`.

    >>> import torch
    >>> words = Codes(fragments=torch.eye(4)[None, :2])
    >>> regions = Codes(fragments=torch.eye(4)[None])
    >>> scan_scores(regions, words, aggregation="mean", lambda_softmax=100.0)
    tensor([[1.]])
    """
    check_direction(direction)
    attend = cosines_by(engine, norm=norm, relu_slope=relu_slope, temperature=lambda_softmax)
    block = partial(
        _scan_block,
        attend=attend,
        direction=direction,
        aggregation=aggregation,
        lambda_lse=lambda_lse,
        precision=precision,
        paired=paired,
    )
    over = score_rows if paired else score_all
    return over(block, image_codes, text_codes, copies=working_copies(engine, image_codes), budget=budget)


def _scan_block(
    images: Tensor,
    image_mask: Tensor | None,
    texts: Tensor,
    text_mask: Tensor | None,
    *,
    attend: Cosines,
    direction: Direction,
    aggregation: Aggregation,
    lambda_lse: float,
    precision: Precision,
    paired: bool,
) -> Tensor:
    sides = ((images, image_mask), (texts, text_mask))
    (context, context_mask), (queries, query_mask) = sides if direction == "t2i" else sides[::-1]
    products = fragment_products(context, queries, paired=paired, precision=precision)  # (C, Lc, Q, Lq)
    cosines, real = directed_cosines(attend, products, context, context_mask, queries, query_mask, paired)
    scores = aggregate(cosines, real, aggregation, lambda_lse)  # (C, Q)
    if paired:
        return scores[:, 0]  # (n,)
    return scores if direction == "t2i" else scores.T  # (n_images, n_texts)


def bfan_scores(
    image_codes: Codes,
    text_codes: Codes,
    *,
    focal: Focal = "equal",
    norm: Norm = "clipped_l2norm",
    lambda_softmax: float = 20.0,
    relu_slope: float = 0.1,
    precision: Precision = "float32",
    engine: Engine = "auto",
    budget: int | None = None,
    paired: bool = False,
) -> Tensor:
    """(n_images, n_texts): every image against every text; with `paired`, (n,): row i against row i.

    Scores lie in -2..2. The arguments are those of `scan_scores`; `focal` see `focal_gates`.
    """
    attend = cosines_by(engine, norm=norm, relu_slope=relu_slope, temperature=lambda_softmax, focal=focal)
    block = partial(_bfan_block, attend=attend, precision=precision, paired=paired)
    over = score_rows if paired else score_all
    return over(block, image_codes, text_codes, copies=working_copies(engine, image_codes, focal=True), budget=budget)


def _bfan_block(
    images: Tensor,
    image_mask: Tensor | None,
    texts: Tensor,
    text_mask: Tensor | None,
    *,
    attend: Cosines,
    precision: Precision,
    paired: bool,
) -> Tensor:
    products = fragment_products(images, texts, paired=paired, precision=precision)  # (I, R, T, W) or (n, R, 1, W)
    words, real_words = directed_cosines(attend, products, images, image_mask, texts, text_mask, paired)
    text_to_image = aggregate(words, real_words, "mean", 1.0)  # (I, T) or (n, 1)
    swapped = products.permute(0, 3, 2, 1) if paired else products.permute(2, 3, 0, 1)  # (T, W, I, R) or (n, W, 1, R)
    regions, real_regions = directed_cosines(attend, swapped.contiguous(), texts, text_mask, images, image_mask, paired)
    image_to_text = aggregate(regions, real_regions, "mean", 1.0)  # (T, I) or (n, 1)
    if paired:
        return (text_to_image + image_to_text)[:, 0]  # (n,)
    return text_to_image + image_to_text.T


def directed_cosines(
    attend: Cosines,
    products: Tensor,
    context: Tensor,
    context_mask: Tensor | None,
    queries: Tensor,
    query_mask: Tensor | None,
    paired: bool,
) -> tuple[Tensor, Tensor | None]:
    """Cosines (C, Q, Lq) of a block, (n, 1, Lq) where paired, and the query mask in a shape that goes with them."""
    axis = 1 if paired else 0
    squares = squared_lengths(queries).unsqueeze(axis)  # (1, Q, Lq) or (n, 1, Lq)
    real = None if query_mask is None else query_mask.unsqueeze(axis)
    return attend(products, gram_matrices(context), squares, context_mask, real), real


def check_direction(direction: str) -> None:
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {get_args(Direction)}, got {direction!r}")


def cosines_by(
    engine: Engine, *, norm: Norm, relu_slope: float, temperature: float, focal: Focal | None = None
) -> Cosines:
    """`attended_cosines` with these settings, computed by the given engine.

    `auto` takes the fused Triton kernel for float32 products on a CUDA device where Triton is installed and the
    fragments fit its tiles, and plain torch otherwise. All engines give the same cosines up to rounding.
    """
    if engine not in get_args(Engine):
        raise ValueError(f"engine must be one of {get_args(Engine)}, got {engine!r}")
    check_norm(norm)
    settings: dict[str, Any] = {
        "norm": norm,
        "relu_slope": float(relu_slope),
        "temperature": float(temperature),
        "focal": focal,
    }
    if engine == "compile":
        return partial(_compiled(), **settings)
    if engine == "torch" or (engine == "auto" and not has_triton()):
        return partial(attended_cosines, **settings)
    from quintet.scores.kernels.cosines import fits, fused_cosines

    if engine == "triton":
        return partial(fused_cosines, **settings)

    def choose(products: Tensor, *others: Any) -> Tensor:
        function = fused_cosines if products.is_cuda and fits(products) else attended_cosines
        return function(products, *others, **settings)

    return choose


def working_copies(engine: Engine, codes: Codes, focal: bool = False) -> tuple[int, int]:
    """About how many tensors of the size of a block's products exist at once: without and with gradients."""
    wide = codes.fragments is not None and codes.fragments.dtype == torch.float64
    if engine == "triton" or (engine == "auto" and codes.device.type == "cuda" and has_triton() and not wide):
        return (2, 4) if focal else (1, 2)
    return (7, 11) if focal else (5, 9)


@cache
def has_triton() -> bool:
    """Whether the fused kernel can be compiled here."""
    return torch.cuda.is_available() and find_spec("triton") is not None


@cache
def _compiled() -> Callable[..., Tensor]:
    # Lengths and block sizes differ between blocks: dynamic shapes compile once for all of them.
    return torch.compile(attended_cosines, dynamic=True)


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of one pair, over real words and real regions.

    `t2i`: each word attends to the regions, so every row sums to 1. `i2t`: each region attends to the words, so every
    column does.
    """

    weights: Tensor  # (words, regions)
    boxes: Tensor | None  # (regions, 4) left, top, right, bottom in 0..1, if the codes have them
    direction: Direction


@torch.no_grad()
def attention_map(
    image_code: Codes,
    text_code: Codes,
    *,
    direction: Direction,
    norm: Norm,
    lambda_softmax: float,
    relu_slope: float,
    focal: Focal | None = None,
) -> AttentionMap:
    """The attention of one image and one text (Codes of length one each), as their score uses it."""
    check_direction(direction)
    if len(image_code) != 1 or len(text_code) != 1:
        raise ValueError(f"attention is of one image and one text, got {len(image_code)} and {len(text_code)}")
    regions, words = image_code.real()[0], text_code.real()[0]  # (L,) bool each
    image, text = widen(fragments_of(image_code)[:, regions]), widen(fragments_of(text_code)[:, words])
    context, queries = (image, text) if direction == "t2i" else (text, image)
    products = fragment_products(context, queries, paired=False)  # (1, Lc, 1, Lq)
    weights = attention_weights(products, None, None, norm=norm, relu_slope=relu_slope, temperature=lambda_softmax)
    if focal is not None:
        kept = weights * focal_gates(weights, None, focal)
        weights = kept / kept.sum(dim=1, keepdim=True)
    pair = weights[0, :, 0]  # (Lc, Lq)
    boxes = None if image_code.boxes is None else image_code.boxes[0, regions]
    return AttentionMap(pair.T if direction == "t2i" else pair, boxes, direction)
