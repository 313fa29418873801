"""Effects and intervals from the files under benchmarks/results/evidence: what docs/evidence.md and its figures show.

An effect is a sum of weighted rsums of rows, made seed by seed: a difference, a mean of differences, a slope.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grids.evidence_grid import BATCHES, SEEDS, SIZES
from benchmarks.pages.results_compare import Interval, over_queries, over_seeds
from quintet.files import read_json

RESULTS = Path(__file__).parents[1] / "results" / "evidence"
TEXTS = 5  # of an image; an image is a group

Runs = dict[str, dict[int, dict[str, Any]]]  # name -> seed -> content of the file
Weights = Mapping[str, float]  # name of a row -> what its rsum counts


def read_runs(folder: Path = RESULTS) -> Runs:
    found: Runs = defaultdict(dict)
    for path in sorted(folder.glob("*.json")):
        content = read_json(path)
        found[content["name"]][content["seed"]] = content
    return dict(found)


def shares(hits: Mapping[str, str]) -> np.ndarray:
    """(groups,) what each test group contributes to rsum.

    >>> shares({"i2t": "30", "t2i": "f0"}).tolist()  # all three cuts of one image and its five texts, none of another
    [300.0, 0.0]
    """
    i2t, t2i = (np.array([int(digit, 16) for digit in hits[way]], float) for way in ("i2t", "t2i"))
    return 100.0 * (i2t / len(i2t) + t2i / (TEXTS * len(t2i)))


def rsum_interval(hits: Mapping[str, str]) -> Interval:
    """The 95 % bootstrap interval of rsum over test groups."""
    return over_queries(shares(hits))


@dataclass(frozen=True)
class Effect:
    """A weighted sum of rsums, in every seed that has all of its rows."""

    runs: Runs
    weights: Weights

    @cached_property
    def seeds(self) -> list[int]:
        return [seed for seed in SEEDS if all(seed in self.runs.get(name, {}) for name in self.weights)]

    def by_seed(self, measure: str = "test", metric: str = "rsum") -> list[float]:
        return [
            sum(weight * self.runs[name][seed][measure][metric] for name, weight in self.weights.items())
            for seed in self.seeds
        ]

    def mean(self, measure: str = "test", metric: str = "rsum") -> float:
        return statistics.fmean(self.by_seed(measure, metric))

    def way(self, direction: str, measure: str = "test") -> float:
        """The part of `mean` that is of one direction, i2t or t2i: both add up to it."""
        return sum(self.mean(measure, f"{direction}_r{cut}") for cut in (1, 5, 10))

    def over_seeds(self, measure: str = "test") -> Interval | None:
        """Student's t."""
        return over_seeds(self.by_seed(measure))

    @cached_property
    def over_queries(self) -> Interval:
        """Paired bootstrap over test groups, of the mean over seeds."""
        every = [
            weight * shares(self.runs[name][seed]["hits"])
            for seed in self.seeds
            for name, weight in self.weights.items()
        ]
        return over_queries(np.sum(every, axis=0) / len(self.seeds))

    @cached_property
    def verdict(self) -> str:
        """By the rule of docs/evidence-design.md; fewer seeds than it asks for have none."""
        if not self.seeds:
            return "not measured"
        if len(self.seeds) < len(SEEDS):
            return f"not measured ({len(self.seeds)} of {len(SEEDS)} seeds)"
        edges = [self.over_seeds(), self.over_queries]
        if min(edge[0] for edge in edges if edge) > 0:
            return "shown"
        return "refuted here" if max(edge[1] for edge in edges if edge) < 0 else "no effect seen"


def minus(one: str, other: str) -> Weights:
    return {one: 1.0, other: -1.0}


def mean_of(parts: Sequence[Weights]) -> Weights:
    """
    >>> mean_of([minus("a", "c"), minus("b", "c")])
    {'a': 0.5, 'c': -1.0, 'b': 0.5}
    """
    found: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, weight in part.items():
            found[name] += weight / len(parts)
    return dict(found)


# AOQ's grid

SETTINGS = [(size, batch) for size in SIZES for batch in BATCHES]


def name_of(size: int, batch: int, what: str = "online", matcher: str = "vse") -> str:
    return f"{matcher}-{size}-b{batch}-{what}"


def gain(size: int, batch: int, what: str = "adapoffquin-plain", matcher: str = "vse") -> Weights:
    """Of a second round, over the first."""
    return minus(name_of(size, batch, what, matcher), name_of(size, batch, matcher=matcher))


def slope(points: Sequence[tuple[float, Weights]]) -> Weights:
    """The least-squares slope of effects over the base-2 logarithm of numbers, of which some may be equal.

    >>> slope([(1, {"a": 1}), (2, {"b": 1}), (4, {"c": 1})])
    {'a': -0.5, 'b': 0.0, 'c': 0.5}
    """
    xs = [math.log2(number) for number, _ in points]
    middle = statistics.fmean(xs)
    spread = sum((x - middle) ** 2 for x in xs)
    found: dict[str, float] = defaultdict(float)
    for x, (_, part) in zip(xs, points, strict=True):
        for name, weight in part.items():
            found[name] += weight * (x - middle) / spread
    return dict(found)


def slope_over_ratio(what: str) -> Weights:
    """Of the gain, for each doubling of training scenes over batch size."""
    return slope([(size / batch, gain(size, batch, what)) for size, batch in SETTINGS])


def slope_over_size(what: str) -> Weights:
    """Of the gain, for each doubling of the training scenes with the batch left as it is."""
    return mean_of([slope([(size, gain(size, batch, what)) for size in SIZES]) for batch in BATCHES])


def slope_over_batch(what: str) -> Weights:
    """Of the gain, for each halving of the batch with the training scenes left as they are."""
    return mean_of([slope([(1 / batch, gain(size, batch, what)) for batch in BATCHES]) for size in SIZES])
