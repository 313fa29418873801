"""What the words of one sentence look at in one picture, under the joint attention of MMCA."""

from __future__ import annotations

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.layers.transformer_unit import TransformerUnit, split_heads
from quintet.scores.attention_map import AttentionMap
from quintet.scores.gram import widen
from quintet.scores.joint_tokens import JointTokens
from quintet.scores.sides import fragments_of


@torch.no_grad()
def word_region_weights(image_code: Codes, text_code: Codes, unit: TransformerUnit) -> tuple[Tensor, Tensor]:
    """The two parts of every word's softmax (lower row of Eq. 12): weights on the regions, and the sum of the rest.

    One picture and one sentence -> (h, words, regions) and (h, words), real fragments only; together they sum to one.
    """
    if len(image_code) != 1 or len(text_code) != 1:
        raise ValueError(f"attention is of one picture and one sentence, got {len(image_code)} and {len(text_code)}")
    regions, words = (
        JointTokens.unpacked(widen(fragments_of(code)[:, code.real()[0]]), unit.dim, unit.heads)
        for code in (image_code, text_code)
    )
    query, key = split_heads(words.query, unit.heads)[0], split_heads(regions.key, unit.heads)[0]  # (h, L, d / h)
    own = words.weight[0].T[..., None]  # (h, words, 1)
    weights = torch.cat([query @ key.mT, own], dim=-1).softmax(dim=-1)  # (h, words, regions + 1)
    return weights[..., :-1], weights[..., -1]


def joint_attention_map(image_code: Codes, text_code: Codes, unit: TransformerUnit) -> AttentionMap:
    """Mean over the heads, as shares of what a word gives to regions at all, so that every word's row sums to one."""
    weights = word_region_weights(image_code, text_code, unit)[0].mean(dim=0)  # (words, regions)
    boxes = None if image_code.boxes is None else image_code.boxes[0, image_code.real()[0]]
    return AttentionMap(weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-30), boxes, "t2i")
