"""How well every sentence matches every picture, word by word and region by region (HREM Eq. 7 and 8).

Letters of shapes: T sentences, W words, I pictures, R regions, d channels, K best matches.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.layers.normalize import l2norm

Matching = Literal["dot", "cosine", "scan"]
SLOPE = 0.1  # of "scan" below zero


def match_fragments(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    region_mask: Tensor,
    *,
    top: int = 10,
    matching: Matching = "dot",
    count_padding: bool = False,
) -> Tensor:
    """(T, I, 2, 1 + K): of every pair, for I -> T and then for T -> I, the overall value p and the best matches q.

    Of a region counts its best word, of a word its best region. p is the mean of these (Eq. 7), q the `top` largest in
    falling order (Eq. 8); where a sentence has fewer words than that, or a picture fewer regions, the rest of q is 0.

    - `matching`: "dot" is the paper's product of a region and a word, "cosine" the same with both of unit length,
      "scan" the released code's: unit length, leaky ReLU, then unit length over words (T -> I) or regions (I -> T).
    - `count_padding`: as in the released code, padded regions count like real ones, and a sentence with fewer than
      `top` words is filled up with padded ones.

    >>> words, regions = torch.eye(3)[None, :2], torch.eye(3)[None, 1:]
    >>> real = torch.ones(1, 2, dtype=torch.bool)
    >>> match_fragments(words, real, regions, real, top=3)[0, 0].tolist()
    [[0.5, 1.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0]]
    """
    taken = word_mask  # (T, W): the words that take part, if only as candidates for q
    if count_padding:
        place = torch.arange(words.shape[1], device=words.device)
        taken = place < word_mask.sum(dim=1, keepdim=True).clamp(min=top)
        region_mask = torch.ones_like(region_mask)
    if matching != "dot":
        words, regions = l2norm(words), l2norm(regions)
    products = (words.flatten(0, 1) @ regions.flatten(0, 1).T).unflatten(0, words.shape[:2])  # (T, W, I R)
    products = products.unflatten(2, regions.shape[:2])  # (T, W, I, R)
    of_word, of_region = products, products
    if matching == "scan":
        leaky = F.leaky_relu(products, SLOPE)
        inside = taken[:, :, None, None] & region_mask  # (T, W, I, R)
        leaky = leaky.masked_fill(~inside, 0)
        of_word, of_region = l2norm(leaky, dim=1), l2norm(leaky, dim=3)
    best_region = _highest(of_word, region_mask, dim=3).transpose(1, 2)  # (T, W, I) -> (T, I, W)
    best_word = _highest(of_region, word_mask[:, :, None, None], dim=1)  # (T, I, R)
    from_image = _summary(best_word, region_mask, region_mask, top)  # (T, I, 1 + K)
    from_text = _summary(best_region, word_mask[:, None], taken[:, None], top)
    return torch.stack([from_image, from_text], dim=2)  # (T, I, 2, 1 + K)


def _highest(values: Tensor, real: Tensor, dim: int) -> Tensor:
    """The largest real value along `dim`; 0 where none is real."""
    highest = values.masked_fill(~real, -math.inf).amax(dim=dim)
    return highest.masked_fill(highest == -math.inf, 0)


def _summary(best: Tensor, real: Tensor, taken: Tensor, top: int) -> Tensor:
    """(T, I, L) -> (T, I, 1 + K): the mean over what is real, and the largest of what is taken."""
    mean = best.masked_fill(~real, 0).sum(dim=2) / real.sum(dim=-1).clamp(min=1)  # (T, I)
    ranked = best.masked_fill(~taken, -math.inf).topk(min(top, best.shape[2]), dim=2).values
    ranked = F.pad(ranked.masked_fill(ranked == -math.inf, 0), (0, top - ranked.shape[2]))  # (T, I, K)
    return torch.cat([mean[..., None], ranked], dim=2)
