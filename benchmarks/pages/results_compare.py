"""Results of a grid, and comparisons of two of them with intervals."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grids.rows import Row
from quintet.files import read_json

RESAMPLES = 2_000
NOT_SCORED = "not scored"
# 97.5 % of Student's t by degrees of freedom; between entries the next smaller one, which is conservative
STUDENT = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One result file."""

    content: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def seed(self) -> int:
        return int(self.content["seed"])

    @property
    def rsum(self) -> float:
        return float(self.content["metrics"]["rsum"])

    @property
    def overlap(self) -> float:
        """S of Dual-Path's Eq. 10."""
        return float(self.content["similarities"]["S"])

    @property
    def key(self) -> str:
        return f"{self.name}-seed{self.seed}"

    @property
    def collapsed(self) -> bool:
        """Whether training warned that all scores were equal: such a run says nothing of its loss."""
        return any("collapsed" in note for note in self.content.get("notes", ()))

    @cached_property
    def shares(self) -> np.ndarray:
        """(groups,): the contribution of each group to rsum."""
        i2t, t2i = (
            100.0 * np.array(self.content["hits"][way].split(), float) / self.content["counts"][f"{way}_queries"]
            for way in ("i2t", "t2i")
        )
        return i2t + t2i


Interval = tuple[float, float]
Results = dict[str, dict[int, Result]]  # name -> seed -> result


def read_results(folder: Path) -> Results:
    found: Results = defaultdict(dict)
    for path in sorted(folder.glob("*.json")):
        result = Result(read_json(path))
        found[result.name][result.seed] = result
    return dict(found)


def relabelled(results: Results, rows: Sequence[Row]) -> Results:
    """The same results with the labels that the grid has now."""
    labels = {row.name: row.label for row in rows}
    return {
        name: {
            seed: Result({**one.content, "label": labels.get(name, one.content["label"])})
            for seed, one in seeds.items()
        }
        for name, seeds in results.items()
    }


def over_queries(shares: np.ndarray, seed: int = 0) -> Interval:
    """The 95 % interval of the sum of (groups,) contributions, groups drawn with replacement.

    All groups have the same number of queries here, so every resample has as many queries.
    """
    rng = np.random.default_rng(seed)
    drawn = [float(shares[rng.integers(0, len(shares), len(shares))].sum()) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def over_seeds(differences: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean by Student's t; None for a single difference.

    >>> [round(edge, 2) for edge in over_seeds([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    if len(differences) < 2:
        return None
    freedom = max(known for known in STUDENT if known <= len(differences) - 1)
    half = STUDENT[freedom] * statistics.stdev(differences) / len(differences) ** 0.5
    mean = statistics.fmean(differences)
    return mean - half, mean + half


@dataclass(frozen=True)
class Comparison:
    """Pairs of results of one seed each: better minus worse in rsum, or worse minus better in S."""

    pairs: tuple[tuple[Result, Result], ...]
    collapsed: tuple[str, ...] = ()  # runs whose pairs are left out
    by_overlap: bool = False

    @cached_property
    def differences(self) -> list[float]:
        if self.by_overlap:
            return [worse.overlap - better.overlap for better, worse in self.pairs]
        return [better.rsum - worse.rsum for better, worse in self.pairs]

    @cached_property
    def seeds(self) -> Interval | None:
        """Over the means of the seeds: pairs of one seed often share a run, so they are not independent."""
        by_seed: dict[int, list[float]] = defaultdict(list)
        for (better, _), difference in zip(self.pairs, self.differences, strict=True):
            by_seed[better.seed].append(difference)
        return over_seeds([statistics.fmean(differences) for differences in by_seed.values()])

    @cached_property
    def queries(self) -> Interval | None:
        """None for S, which is of all pairs at once and not a mean over queries."""
        if self.by_overlap:
            return None
        return over_queries(np.mean([better.shares - worse.shares for better, worse in self.pairs], axis=0))

    @property
    def verdict(self) -> str:
        if not self.pairs:
            return NOT_SCORED if self.collapsed else "not measured"
        if self.seeds is None:
            return "inconclusive (one seed)"
        intervals = [self.seeds, *([self.queries] if self.queries is not None else [])]
        if min(low for low, _ in intervals) > 0:
            return "confirmed"
        return "not confirmed" if max(high for _, high in intervals) < 0 else "inconclusive"

    def cells(self) -> tuple[str, ...]:
        if not self.pairs:
            return ("", "", "", "", self.verdict)
        form = "{:+.3f}" if self.by_overlap else "{:+.1f}"
        mean = form.format(statistics.fmean(self.differences))
        above = f"{sum(difference > 0 for difference in self.differences)} of {len(self.pairs)}"
        return mean, above, interval_text(self.seeds, form), interval_text(self.queries, form), self.verdict


def series_names(rows: Sequence[Row]) -> dict[str | None, dict[str, str]]:
    """For each series of a grid the names of its rows, by their names without series.

    >>> series_names([Row("mmca-resnet50", 0, "MMCA", None, "resnet50"), Row("mmca", 0, "MMCA", None, "lite0")])
    {'resnet50': {'mmca': 'mmca-resnet50'}, 'lite0': {'mmca': 'mmca'}}
    """
    found: dict[str | None, dict[str, str]] = defaultdict(dict)
    for row in rows:
        found[row.series][row.name.removesuffix(f"-{row.series}")] = row.name
    return dict(found)


def pairs_of_grid(rows: Sequence[Row], pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of names without series that a grid can measure, under their names in each series."""
    return [
        (names[better], names[worse])
        for names in series_names(rows).values()
        for better, worse in pairs
        if better in names and worse in names
    ]


def compare(results: Results, pairs: Sequence[tuple[str, str]], by_overlap: bool = False) -> Comparison:
    """All seeds in which both sides of a pair were measured, but those in which one of them collapsed."""
    collapsed = {one.key for seeds in results.values() for one in seeds.values() if one.collapsed}
    found: list[tuple[Result, Result]] = []
    left_out: dict[str, None] = {}
    for better, worse in pairs:
        one, other = results.get(better, {}), results.get(worse, {})
        for seed in sorted(set(one) & set(other)):
            runs = [key for side in (one[seed], other[seed]) for key in (side.key, *side.content.get("members", ()))]
            bad = collapsed.intersection(runs)
            left_out |= dict.fromkeys(key for key in runs if key in bad)
            if not bad:
                found.append((one[seed], other[seed]))
    return Comparison(tuple(found), tuple(left_out), by_overlap)


def interval_text(edges: Interval | None, form: str = "{:+.1f}") -> str:
    return "" if edges is None else f"{form.format(edges[0])} to {form.format(edges[1])}"
