"""Batches of neighbours: pictures that look alike to the matcher, found by k-means (HREM section 3.4).

k-means is Lloyd's algorithm from k-means++ seeds, in torch, so that it runs where the embeddings are and needs no
further package.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from quintet.data.corpus import Split
from quintet.data.sampling import pairs_by_round

BLOCK = 2**26  # distances computed at a time


def kmeans(vectors: Tensor, clusters: int, *, seed: tuple[int, ...], rounds: int = 20) -> Tensor:
    """(n,) int64: the cluster of each row of (n, d). A function of the vectors and the seed; some clusters may be empty.

    >>> kmeans(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), 2, seed=(0,)).unique(return_counts=True)[1].tolist()
    [2, 2]
    """
    if not 1 <= clusters <= len(vectors):
        raise ValueError(f"{len(vectors)} vectors cannot make {clusters} clusters")
    centres = _spread_seeds(vectors, clusters, np.random.default_rng(seed))  # (k, d)
    labels = _nearest(vectors, centres)
    for _ in range(rounds):
        counts = torch.bincount(labels, minlength=clusters)[:, None]  # (k, 1)
        sums = torch.zeros_like(centres).index_add_(0, labels, vectors)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)  # an empty cluster stays where it is
        moved = _nearest(vectors, centres)
        if torch.equal(moved, labels):
            break
        labels = moved
    return labels


def _spread_seeds(vectors: Tensor, clusters: int, rng: np.random.Generator) -> Tensor:
    """k-means++: each further seed is drawn with a probability proportional to its squared distance from the others."""
    chosen = [int(rng.integers(len(vectors)))]
    distance = _squared(vectors, vectors[chosen])[:, 0]  # (n,)
    for draw in rng.random(clusters - 1):
        total = distance.double().cumsum(dim=0)
        at = int(torch.searchsorted(total, total[-1] * draw, right=True))
        chosen.append(min(at, len(vectors) - 1))
        distance = torch.minimum(distance, _squared(vectors, vectors[chosen[-1:]])[:, 0])
    return vectors[chosen].clone()


def _nearest(vectors: Tensor, centres: Tensor) -> Tensor:
    size = max(1, BLOCK // len(centres))
    return torch.cat([_squared(block, centres).argmin(dim=1) for block in vectors.split(size)])


def _squared(rows: Tensor, columns: Tensor) -> Tensor:
    return (rows.square().sum(1)[:, None] + columns.square().sum(1) - 2 * rows @ columns.T).clamp(min=0)


def neighbour_batches(
    split: Split,
    clusters: np.ndarray,
    batch_size: int,
    per_cluster: int,
    *,
    seed: tuple[int, ...],
    per: Literal["texts", "images"] = "texts",
    drop_last: bool = False,
) -> list[np.ndarray]:
    """Batches, each (n, 2) of image row and text row, made of bunches of `per_cluster` pictures of one cluster.

    `clusters` (n_images,) says which cluster each picture is in. A bunch holds different pictures with one of their texts
    each; a batch is batch_size / per_cluster bunches, P x K in the paper's letters. As with random batches, an epoch
    visits every text once (`per="texts"`) or every picture once (`per="images"`), in as many batches: the pictures that
    no full bunch of their cluster takes make up mixed ones.
    """
    rng = np.random.default_rng(seed)
    bunches, rest = [], []
    for pairs in pairs_by_round(split, rng, per):  # in a round no picture comes twice
        pairs = pairs[rng.permutation(len(pairs))]
        pairs = pairs[np.argsort(clusters[pairs[:, 0]], kind="stable")]
        ends = np.flatnonzero(np.diff(clusters[pairs[:, 0]])) + 1
        full, left = [], []
        for members in np.split(pairs, ends):
            whole = len(members) - len(members) % per_cluster
            full += [members[start : start + per_cluster] for start in range(0, whole, per_cluster)]
            left.append(members[whole:])
        bunches += [full[place] for place in rng.permutation(len(full))]
        rest.append(np.concatenate(left))
    pairs = np.concatenate([*bunches, *rest])
    batches = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
    if len(batches) > 1 and len(batches[-1]) < (batch_size if drop_last else 2):
        batches.pop()
    return [batches[place] for place in rng.permutation(len(batches))]
