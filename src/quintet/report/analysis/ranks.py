"""Recalls, ranks and how hard negatives are, of a run on a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quintet.errors import QuintetError
from quintet.evaluation.analysis import cross_retrieval_histogram
from quintet.evaluation.hardness import chance_of_top, expected_online_rank, measure_online_ranks
from quintet.evaluation.scoring import member_scores
from quintet.report.analysis.subject import Finding, Options, Subject
from quintet.report.figures import draw_rank_histogram, draw_rank_intervals, draw_recalls

WAYS = {"i2t": "image to text", "t2i": "text to image"}
DEEPEST = 100  # K of the recall curves
TOPS = (10, 100)
MOST_SCORES = 2**27  # a whole matrix of scores, in float32 half a gigabyte


def ranks(subjects: Sequence[Subject], options: Options) -> Finding:
    """R@K curves, histograms of ranks, and cross-retrieval ranks: is a pair found from both sides? (AOQ supplement)"""
    best = {
        words: {subject.label: getattr(subject.ranks, way).best + 1 for subject in subjects}
        for way, words in WAYS.items()
    }
    deepest = min(DEEPEST, *(len(rows) for rows in (subjects[0].split.images, subjects[0].split.texts)))
    recalls = {
        words: {label: recall_curve(found, deepest) for label, found in runs.items()} for words, runs in best.items()
    }
    crossed = cross_retrieval_histogram({subject.label: subject.ranks for subject in subjects})
    figures = {
        "recalls": draw_recalls(recalls),
        "ranks": draw_rank_histogram(best),
        "cross-retrieval": draw_rank_intervals(crossed["intervals"], crossed["share"]),
    }
    curves = {
        f"{label}, {words}": {"K": cuts.tolist(), "recall": found.tolist()}
        for words, runs in recalls.items()
        for label, (cuts, found) in runs.items()
    }
    return Finding({"recalls": curves, "cross_retrieval": crossed}, figures)


def recall_curve(found: np.ndarray, deepest: int) -> tuple[np.ndarray, np.ndarray]:
    """K = 1, 2, ... and R@K in per cent, from the ranks (from 1) of the first right answers.

    >>> [part.tolist() for part in recall_curve(np.array([1, 3, 3, 9]), 4)]
    [[1, 2, 3, 4], [25.0, 25.0, 75.0, 75.0]]
    """
    cuts = np.arange(1, deepest + 1)
    return cuts, 100.0 * np.searchsorted(np.sort(found), cuts, side="right") / len(found)


def negatives(subjects: Sequence[Subject], options: Options) -> Finding:
    """Where the hardest negative of a random batch stands among all negatives (AOQ section 1): expected and measured.

    Ranks are among the wrong candidates of the split, so the training split is the one that says what training saw.
    """
    split = subjects[0].split
    size = min(options.batch_size, len(split.texts))
    if len(split.images) * len(split.texts) > MOST_SCORES:
        raise QuintetError(
            f"ranks of online negatives are measured in a whole matrix of scores, which is too large for split "
            f"{split.name!r} ({len(split.images)} images, {len(split.texts)} texts); choose a smaller one"
        )
    others = {
        "i2t": _wrong(split.image_groups, split.text_groups),
        "t2i": _wrong(split.text_groups, split.image_groups),
    }
    expected = {way: expected_online_rank(count, min(size, count + 1)) for way, count in others.items()}
    chance = {
        way: {f"top{k}": chance_of_top(count, min(size, count + 1), k) for k in TOPS if k <= count}
        for way, count in others.items()
    }
    measured: dict[str, Any] = {}
    drawn: dict[str, dict[str, np.ndarray]] = {words: {} for words in WAYS.values()}
    for subject in subjects:
        found = _measure(subject, size, options)
        measured[subject.label] = {way: _summary(rows) for way, rows in found.items()}
        for way, rows in found.items():
            drawn[WAYS[way]][subject.label] = rows
    numbers = {"batch_size": size, "candidates": others, "expected_rank": expected, "chance": chance}
    figure = draw_rank_histogram(drawn, f"Ranks of the hardest negative in batches of {size}")
    return Finding(numbers | {"runs": measured}, {"negatives": figure})


def _wrong(own: np.ndarray, other: np.ndarray) -> int:
    """How many wrong candidates a query has, on average, as a whole number."""
    sizes = np.bincount(other, minlength=int(own.max()) + 1)
    return round(len(other) - float(sizes[own].mean()))


def _measure(subject: Subject, size: int, options: Options) -> dict[str, np.ndarray]:
    split = subject.split
    whole = member_scores([subject.member], subject.device)
    scores = whole(slice(0, len(split.images)), slice(0, len(split.texts))).cpu().numpy()
    rng = np.random.default_rng(options.seed)
    return measure_online_ranks(scores, split.image_groups, split.text_groups, size, batches=options.batches, rng=rng)


def _summary(found: np.ndarray) -> dict[str, Any]:
    tops = {f"share_of_top{k}": float((found <= k).mean()) for k in TOPS}
    return {"anchors": len(found), "mean_rank": float(found.mean()), "median_rank": float(np.median(found)), **tops}
