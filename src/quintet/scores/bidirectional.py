"""BFAN's score of a picture and a sentence: focal attention in both directions, mean cosines added.

The products of a block are computed once and serve both directions.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from quintet.codes import Codes
from quintet.scores.attention import Norm, aggregate
from quintet.scores.blocks import score_all, score_rows
from quintet.scores.cross_attention import directed_cosines
from quintet.scores.engine import Cosines, Engine, cosines_by, working_copies
from quintet.scores.focal import Focal
from quintet.scores.gram import Precision, fragment_products


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
    """(n_images, n_texts): every picture against every sentence; with `paired`, (n,): row i against row i.

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
