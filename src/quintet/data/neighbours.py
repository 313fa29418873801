"""Batches of neighbours: pictures that look alike to the matcher, found by k-means (HREM section 3.4)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import numpy as np

from quintet.data.corpus import Split
from quintet.data.sampling import epoch_batches
from quintet.errors import QuintetError

BATCH, ROUNDS = 4096, 10  # of k-means: vectors looked at between two moves of the centres, passes over all of them
NEIGHBOURS = 2  # the stream of random numbers that shuffles bunches


def kmeans(vectors: np.ndarray, clusters: int, *, seed: tuple[int, ...]) -> np.ndarray:
    """(n,) int64: the cluster of each row of (n, d), a function of the vectors and the seed. Some may be empty.

    >>> np.bincount(kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), 2, seed=(0,))).tolist()
    [2, 2]
    """
    if not 1 <= clusters <= len(vectors):
        raise ValueError(f"{len(vectors)} vectors cannot make {clusters} clusters")
    found = require_clustering().MiniBatchKMeans(
        clusters,
        batch_size=BATCH,
        max_iter=ROUNDS,
        max_no_improvement=None,  # stopping early would hang on sums whose rounding depends on the number of threads
        n_init=1,
        random_state=int(np.random.SeedSequence(seed).generate_state(1)[0]),
    )
    return found.fit_predict(np.ascontiguousarray(vectors)).astype(np.int64)


def require_clustering() -> Any:
    """scikit-learn's module of clusterings, or how to get it."""
    try:
        return import_module("sklearn.cluster")
    except ImportError:
        raise QuintetError(
            "k-means (batches of neighbours, pseudo-categories) needs scikit-learn: `pip install 'quintet[cluster]'`; "
            "or set batches.kind=random, or leave `categories` out"
        ) from None


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
