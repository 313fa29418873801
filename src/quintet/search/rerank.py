"""Two stages: embeddings choose candidates quickly, the matcher's whole score puts them in order."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.protocols import Matcher
from quintet.scores.embedding import dot_scores

Query = Literal["texts", "images"]
BYTES = 256 << 20  # of codes or scores gathered at a time


def shortlist(image_codes: Codes, text_codes: Codes, k: int, *, queries: Query = "texts") -> Tensor:
    """(n_queries, k): for every text the rows of the k images whose embedding is nearest, best first.

    `queries="images"` asks for texts of every image instead. Fewer than k where there are fewer.
    """
    if k < 1:
        raise ValueError(f"a shortlist has at least one entry, got k={k}")
    asking, offered = _sides(image_codes, text_codes, queries)
    rows = max(1, BYTES // (4 * max(1, len(offered))))
    parts = [
        dot_scores(asking[start : start + rows], offered).topk(min(k, len(offered)), dim=1).indices
        for start in range(0, len(asking), rows)
    ]
    return torch.cat(parts) if parts else torch.empty((0, k), dtype=torch.int64, device=asking.device)


@torch.no_grad()
def rerank(
    matcher: Matcher, image_codes: Codes, text_codes: Codes, candidates: Tensor, *, queries: Query = "texts"
) -> tuple[Tensor, Tensor]:
    """Put candidates in the order of the matcher's score.

    `candidates` (n_queries, K) are rows of the images, one list for each text (with `queries="images"`: rows of the
    texts, one list for each image). Returns scores and rows, (n_queries, K) each, best first. Only these pairs are
    scored; when every list holds everything, the result is that of scoring every pair.

    >>> from quintet.models import create_model
    >>> from quintet.data.batches import ImageBatch, TextBatch
    >>> matcher = create_model("vse++", image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4).eval()
    >>> images = matcher.encode_images(ImageBatch(fragments=torch.randn(5, 3, 8)))
    >>> texts = matcher.encode_texts(TextBatch.from_ids([[1, 5, 2], [1, 2]]))
    >>> scores, rows = rerank(matcher, images, texts, shortlist(images, texts, k=3))
    >>> rows.shape
    torch.Size([2, 3])
    """
    scores = candidate_scores(matcher, image_codes, text_codes, candidates, queries=queries)
    ordered, positions = scores.sort(dim=1, descending=True, stable=True)
    return ordered, candidates.to(positions.device).gather(1, positions)


@torch.no_grad()
def candidate_scores(
    matcher: Matcher, image_codes: Codes, text_codes: Codes, candidates: Tensor, *, queries: Query = "texts"
) -> Tensor:
    """(n_queries, K): the matcher's score of every candidate, in the order given (see `rerank`)."""
    asking, offered = _sides(image_codes, text_codes, queries)
    if candidates.dim() != 2 or len(candidates) != len(asking):
        raise ValueError(f"{len(asking)} queries need candidates ({len(asking)}, K), got {tuple(candidates.shape)}")
    if candidates.numel() and not 0 <= int(candidates.min()) <= int(candidates.max()) < len(offered):
        raise ValueError(f"candidates must be rows from 0 to {len(offered) - 1}")
    wanted = candidates.flatten().to(offered.device)  # (n K,)
    query = torch.arange(len(asking), device=asking.device).repeat_interleave(candidates.shape[1])  # (n K,)
    most = max(1, BYTES // max(1, _row_bytes(asking) + _row_bytes(offered)))
    parts = []
    for start in range(0, len(wanted), most):
        pair = slice(start, start + most)
        from_query, from_offer = asking[query[pair]], offered[wanted[pair]]
        images, texts = (from_offer, from_query) if queries == "texts" else (from_query, from_offer)
        parts.append(matcher.score_pairs(images, texts))
    return torch.cat(parts).view(candidates.shape) if parts else torch.zeros(candidates.shape)


def _sides(image_codes: Codes, text_codes: Codes, queries: Query) -> tuple[Codes, Codes]:
    """What asks, and what is offered."""
    if queries not in get_args(Query):
        raise ValueError(f"queries must be one of {get_args(Query)}, got {queries!r}")
    return (text_codes, image_codes) if queries == "texts" else (image_codes, text_codes)


def _row_bytes(codes: Codes) -> int:
    return sum(tensor[:1].nbytes for tensor in codes.tensors().values())
