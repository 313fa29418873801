"""What one text and one image attend to, ready to be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.layers.normalize import widen
from quintet.scores.attention import Focal, Norm, attention_weights, focal_gates, fragment_products
from quintet.scores.blocks import fragments_of
from quintet.scores.cross_attention import Direction, check_direction


@dataclass(frozen=True)
class AttentionMap:
    """Weights of every word and region of one pair; only real words and real regions are in it.

    `t2i`: what each word looks at, so every row sums to one. `i2t`: which words each region looks at, so every column
    does.
    """

    weights: Tensor  # (words, regions)
    boxes: Tensor | None  # (regions, 4) left, top, right, bottom in 0..1, where the codes hold them
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
