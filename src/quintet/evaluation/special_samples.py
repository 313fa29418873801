"""Hard and infrequent queries (HREM, section 4.3 and Table 4).

A query that is similar to all its negatives is hard: its meaning is ambiguous. One that is similar to none of them is
infrequent: nothing else in the split is like it. The measure is the mean score of a query with its negatives; hard
queries are the upper end of its percentile rank, infrequent ones the lower end. (The text of the paper gives both kinds
a high mean, which would make them one kind; here scarcity means a low mean.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from quintet.errors import QuintetError
from quintet.evaluation.metrics import DIRECTIONS
from quintet.evaluation.ranks import BLOCK, Queries, Ranks, ScoreBlock, group_codes

PERCENTS = (5, 10, 20)  # as in Table 4


def negative_means(
    score_block: ScoreBlock, image_groups: ArrayLike, text_groups: ArrayLike, block: tuple[int, int] = BLOCK
) -> tuple[np.ndarray, np.ndarray]:
    """(n_images,), (n_texts,): the mean score of each image with all texts of other groups, and of each text likewise.

    >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.8, 0.6]])
    >>> images, texts = negative_means(lambda rows, columns: scores[rows, columns], [0, 1], [0, 1, 1])
    >>> images.round(2).tolist(), texts.round(2).tolist()
    ([0.3, 0.1], [0.1, 0.2, 0.4])
    """
    image_codes, text_codes = group_codes(image_groups, text_groups)
    sums = np.zeros(len(image_codes)), np.zeros(len(text_codes))
    counts = np.zeros(len(image_codes)), np.zeros(len(text_codes))
    for rows in _cuts(len(image_codes), block[0]):
        for columns in _cuts(len(text_codes), block[1]):
            scores = score_block(rows, columns).detach().double()  # (a, b)
            negative = torch.from_numpy(image_codes[rows, None] != text_codes[None, columns]).to(scores.device)
            scores = scores.masked_fill(~negative, 0.0)
            for side, part, dim in ((0, rows, 1), (1, columns, 0)):
                sums[side][part] += scores.sum(dim=dim).cpu().numpy()
                counts[side][part] += negative.sum(dim=dim).cpu().numpy()
    if not (counts[0].all() and counts[1].all()):
        raise QuintetError("a query has no negatives; special samples need a split with several groups")
    return sums[0] / counts[0], sums[1] / counts[1]


def special_samples(
    ranks: Mapping[str, Ranks],
    image_means: np.ndarray,
    text_means: np.ndarray,
    percents: Sequence[int] = PERCENTS,
) -> list[dict[str, Any]]:
    """R@1 of every run, in per cent, on the queries with the highest and lowest means: the same queries for all runs.

    Returns a row for each kind of `samples`, each `percent` and each `run`, with `i2t_r1`, `t2i_r1` and the numbers of
    queries (`i2t_queries`, `t2i_queries`).
    """
    means = dict(zip(DIRECTIONS, (image_means, text_means), strict=True))
    rows = []
    for kind in ("hard", "infrequent"):
        for percent in percents:
            for name, found in ranks.items():
                row: dict[str, Any] = {"samples": kind, "percent": percent, "run": name}
                for direction in DIRECTIONS:
                    queries: Queries = getattr(found, direction)
                    chosen = _end(means[direction][queries.rows], kind, percent)
                    row[f"{direction}_r1"] = float(100.0 * (queries.best[chosen] < 1).mean())
                    row[f"{direction}_queries"] = len(chosen)
                rows.append(row)
    return rows


def _end(means: np.ndarray, kind: str, percent: int) -> np.ndarray:
    """Indices of the highest (hard) or lowest (infrequent) means: `percent` of all, at least one."""
    order = np.argsort(-means if kind == "hard" else means, kind="stable")
    return order[: max(1, round(len(means) * percent / 100))]


def _cuts(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
