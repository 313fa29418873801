"""Why an item was found: the words that mattered, and where they look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quintet.search.items import Kind

if TYPE_CHECKING:  # torch is imported when something is explained
    from torch import Tensor

    from quintet.codes import Codes
    from quintet.search.encoder import Encoder

MAX_WORDS = 64  # words left out one by one; a longer query is explained by its first ones


@dataclass(frozen=True)
class WordWeight:
    """How much the score falls when a word is left out of the query; below zero: without it the score is higher."""

    word: str
    weight: float


@dataclass(frozen=True)
class RegionWeights:
    """Where in the image a word looks."""

    word: str
    boxes: np.ndarray  # (n, 4) left, top, right, bottom in 0..1
    weights: np.ndarray  # (n,)


@dataclass(frozen=True)
class Explanation:
    words: tuple[WordWeight, ...]
    score: float
    regions: tuple[RegionWeights, ...] | None = None  # where a cross-attention matcher was asked


def explain(encoder: Encoder, item: Mapping[int, Codes], query: str, kind: Kind) -> Explanation:
    """`item`: the codes of one item by the runs (by number) whose mean score is explained."""
    import torch

    words = query.split()
    shortened = [" ".join(words[:at] + words[at + 1 :]) for at in range(min(len(words), MAX_WORDS)) if len(words) > 1]
    with torch.inference_mode():
        codes = encoder.encode_texts([query, *shortened])
        scores = torch.stack([_scores(encoder, member, code, codes[member], kind) for member, code in item.items()])
        regions = _regions(encoder, item, codes, query) if kind == "image" else None
    whole, *without = scores.mean(dim=0).tolist()  # (1 + words,)
    weights = [whole - score for score in without] if without else [whole]
    explained = tuple(WordWeight(word, weight) for word, weight in zip(words, weights, strict=False))
    return Explanation(explained, whole, regions)


def _scores(encoder: Encoder, member: int, item: Codes, texts: Codes, kind: Kind) -> Tensor:
    """(n_texts,)."""
    from quintet.scores import dot_scores

    item, texts = item.to(encoder.device), texts.to(encoder.device)
    if kind == "text":
        return dot_scores(item, texts)[0].float().cpu()
    return encoder.runs[member].matcher.score(item, texts)[0].float().cpu()


def _regions(
    encoder: Encoder, item: Mapping[int, Codes], codes: Sequence[Codes], query: str
) -> tuple[RegionWeights, ...] | None:
    """The attention of the first run that has one and whose regions have boxes."""
    from quintet.protocols import ShowsAttention

    for member, code in item.items():
        matcher = encoder.runs[member].matcher
        if not isinstance(matcher, ShowsAttention) or code.fragments is None or code.boxes is None:
            continue
        shown = matcher.attention(code.to(encoder.device), codes[member][0].to(encoder.device))
        assert shown.boxes is not None
        tokenizer = encoder.tokenizers[member]
        special = tokenizer.kinds().special
        boxes, weights = shown.boxes.float().cpu().numpy(), shown.weights.float().cpu().numpy()
        return tuple(
            RegionWeights(token, boxes, row)
            for token, id_, row in zip(tokenizer.tokens(query), tokenizer.ids(query), weights, strict=True)
            if not special[id_]
        )
    return None
