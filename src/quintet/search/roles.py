"""Which runs of an index choose candidates, and which put them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.search.encoder import Encoder
from quintet.search.errors import SearchError


@dataclass(frozen=True)
class Roles:
    first: tuple[int, ...]  # runs whose embeddings, as an ensemble, choose candidates; none: every item is scored
    rerank: tuple[int, ...]  # runs whose mean score re-ranks them; none: nothing does
    dim: int  # of the first stage's vectors


def assign_roles(encoder: Encoder, main: int, rerank: Sequence[int]) -> Roles:
    """`main`: so many runs, from the first on, are the index's own; `rerank`: those asked to re-rank, if any.

    Embeddings of the own runs are the first stage. Where nothing was asked for and some of them have fragments (SCAN,
    BFAN, MMCA), their mean score re-ranks; where none of them has an embedding, that is the only stage there is.
    """
    codes = encoder.encode_texts(["a"])
    first = tuple(number for number in range(main) if codes[number].embedding is not None)
    if rerank and not first:
        raise SearchError(
            f"run {encoder.runs[0].name!r} gives no embedding, so it cannot choose candidates for another to re-rank; "
            "name an embedding matcher first (VSE++, VSRN, HREM, MMCA), or leave the re-ranking run out"
        )
    if not rerank and any(codes[number].fragments is not None for number in range(main)):
        rerank = range(main)
    dim = first_vectors(codes, first).shape[1] if first else 0
    return Roles(first, tuple(rerank), dim)


def first_vectors(codes: Sequence[Codes] | Mapping[int, Codes], first: Sequence[int]) -> Tensor:
    """(n, dim): the embeddings of an ensemble side by side, so that a dot product is the mean of the members'."""
    parts = [part for number in first if (part := codes[number].embedding) is not None]
    return torch.cat(parts, dim=1).float() / len(parts) ** 0.5  # (n, d1 + d2 + ...)
