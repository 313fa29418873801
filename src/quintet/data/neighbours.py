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
from quintet.data.sampling import epoch_batches

BLOCK = 2**26  # distances computed at a time
NEIGHBOURS = 2  # the stream of random numbers that shuffles bunches


def kmeans(vectors: Tensor, clusters: int, *, seed: tuple[int, ...], rounds: int = 20) -> Tensor:
    """(n,) int64: the cluster of each row of (n, d), a function of the vectors and the seed. Some may be empty.

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

    `clusters` (n_images,) says which cluster each picture is in. A bunch holds different pictures with one of their
    texts each; a batch is batch_size / per_cluster bunches, P x K in the paper's letters. As with random batches, an
    epoch visits every text once (`per="texts"`) or every picture once (`per="images"`), in as many batches: the
    pictures that no full bunch of their cluster takes make up mixed ones.
    """
    [pairs] = epoch_batches(split, len(split.images) + len(split.texts), seed=seed, per=per)  # all, in random order
    rng = np.random.default_rng((*seed, NEIGHBOURS))
    bunches, rest = [], []
    for visit in _visits(pairs):
        full, left = _bunches(visit, clusters[visit[:, 0]], per_cluster)
        bunches += [full[place] for place in rng.permutation(len(full))]
        rest.append(left)
    mixed = np.concatenate(rest)
    pairs = np.concatenate([*bunches, mixed[rng.permutation(len(mixed))]])
    batches = [pairs[start : start + batch_size] for start in range(0, len(pairs), batch_size)]
    if len(batches) > 1 and len(batches[-1]) < (batch_size if drop_last else 2):
        batches.pop()
    return [batches[place] for place in rng.permutation(len(batches))]


def _visits(pairs: np.ndarray) -> list[np.ndarray]:
    """The first pair of every picture, the second of every picture that has one, and so on."""
    order = np.argsort(pairs[:, 0], kind="stable")
    images = pairs[order, 0]
    first = np.searchsorted(images, images)  # where the picture's pairs begin
    visit = np.empty(len(pairs), dtype=np.int64)
    visit[order] = np.arange(len(pairs)) - first
    return [pairs[visit == number] for number in range(int(visit.max()) + 1)]


def _bunches(pairs: np.ndarray, labels: np.ndarray, size: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Full bunches of one cluster each, and the pairs that are left."""
    order = np.argsort(labels, kind="stable")
    members = np.split(pairs[order], np.flatnonzero(np.diff(labels[order])) + 1)
    full = [part[start : start + size] for part in members for start in range(0, len(part) - size + 1, size)]
    return full, np.concatenate([part[len(part) - len(part) % size :] for part in members])
