"""SCAN's score of an image and a text: attention in one direction, cosines summed up.

Lee, Chen, Hua, Hu, He: Stacked Cross Attention for Image-Text Matching, ECCV 2018. Pure functions of Codes with
fragments; exact, block by block (see `gram` and `blocks`).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from torch import Tensor

from quintet.codes import Codes
from quintet.scores.attention import (
    Aggregation,
    Focal,
    Norm,
    Precision,
    aggregate,
    fragment_products,
    gram_matrices,
    squared_lengths,
)
from quintet.scores.blocks import score_all, score_rows
from quintet.scores.engine import Cosines, Engine, cosines_by, working_copies


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


Direction = Literal["t2i", "i2t"]


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


def check_direction(direction: str) -> None:
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {get_args(Direction)}, got {direction!r}")
