"""Approximate lists of a block: candidates from FAISS, scored again exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.errors import QuintetError
from quintet.mining.exclude import Exclusions
from quintet.mining.sweep import ordered

EXACT_BELOW = 4096  # candidates: comparing all is quicker than an index
PROBED = 1 / 16  # of the cells of an index
SPARE = 64  # candidates beyond the length of a list, and a quarter of it
BYTES = 2**27  # of candidates' embeddings at a time


def approximate_lists(
    images: Codes, texts: Codes, exclusions: Exclusions, lengths: tuple[int, int], caps: tuple[Tensor, Tensor]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For images, then for texts: (n, h) rows and float32 scores, best first, and how many candidates were above caps.

    A score is the product of the embeddings in float64, rounded.
    """
    embeddings = []
    for codes in (images, texts):
        if codes.embedding is None or codes.fragments is not None:
            raise QuintetError(
                "approximate mining searches embeddings, and this matcher scores fragments; leave --approximate out"
            )
        embeddings.append(codes.embedding.float().cpu())
    excluded = exclusions.inside(np.arange(len(images)), np.arange(len(texts)))
    return [
        _lists(embeddings[side], embeddings[1 - side], excluded[side], excluded[1 - side], lengths[side], caps[side])
        for side in (0, 1)
    ]


def _lists(
    anchors: Tensor, others: Tensor, excluded_anchor: np.ndarray, excluded: np.ndarray, length: int, caps: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    wanted = min(len(others), length + length // 4 + SPARE)
    rows = _candidates(anchors.numpy(), others.numpy(), wanted)  # (n, wanted), -1 where there are fewer
    pairs = np.arange(len(anchors))[:, None] * len(others) + rows
    out = (rows < 0) | np.isin(pairs, excluded_anchor * len(others) + excluded)
    candidates = torch.from_numpy(np.where(rows < 0, 0, rows))
    step = max(1, BYTES // (8 * wanted * anchors.shape[1]))
    scores = torch.cat(
        [
            torch.bmm(others[some].double(), part.double()[:, :, None]).squeeze(2).float()  # (n, wanted)
            for part, some in zip(anchors.split(step), candidates.split(step), strict=True)
        ]
    )
    scores.masked_fill_(torch.from_numpy(out), -torch.inf)
    over = scores > caps[:, None]
    scores.masked_fill_(over, -torch.inf)
    return *ordered(candidates, scores, length), over.sum(dim=1)


def _candidates(anchors: np.ndarray, others: np.ndarray, wanted: int) -> np.ndarray:
    """(n, wanted) rows of large inner products."""
    try:
        import faiss
    except ImportError:
        raise QuintetError("approximate mining needs FAISS: pip install 'quintet-retrieval[index]'") from None
    dim = anchors.shape[1]
    index: Any = faiss.IndexFlatIP(dim)
    if len(others) > EXACT_BELOW:
        cells = int(4 * len(others) ** 0.5)
        index = faiss.IndexIVFFlat(index, dim, cells, faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # no warning
        index.cp.seed = 0
        index.train(np.ascontiguousarray(others[:: max(1, len(others) // (64 * cells))]))
        index.nprobe = max(1, round(cells * PROBED))
    index.add(np.ascontiguousarray(others))
    return np.asarray(index.search(np.ascontiguousarray(anchors), wanted)[1])
