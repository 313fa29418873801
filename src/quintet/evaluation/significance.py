"""How sure a number is: bootstrap intervals, and a paired test between two matchers on the same queries.

What is resampled is by default the *group*, an image with its captions, and both directions together. Captions of one
image are hit or missed together, so resampling them one by one would pretend that there are five times as many
independent observations as there are and give intervals that are too narrow; and rsum adds both directions, which are
hit or missed together as well. The candidates stay as they are: intervals are about other queries, not about another
gallery or another training seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from quintet.errors import QuintetError
from quintet.evaluation.metrics import DIRECTIONS, RECALLS, query_values
from quintet.evaluation.ranks import Ranks

Unit = Literal["group", "query"]
Interval = tuple[float, float]
CHUNK = 2**22  # numbers drawn at a time: bounds the memory of resampling


@dataclass(frozen=True)
class Difference:
    """One metric of two matchers: first minus second."""

    difference: float
    interval: Interval  # of the difference, by paired bootstrap
    p_value: float  # two-sided, by sign flips

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval": list(self.interval)}


@dataclass(frozen=True)
class QueryValues:
    """What measures are the means of: their values for each query, for a paired test with another run."""

    values: dict[str, np.ndarray] = field(default_factory=dict)  # i2t_r1 and so on -> (q,)
    groups: dict[str, np.ndarray] = field(default_factory=dict)  # i2t and t2i -> (q,)


@dataclass(frozen=True)
class _Table:
    """Sums of the per-query values by unit: a metric is a ratio of two weighted sums over units."""

    names: list[str]
    sums: np.ndarray  # (units, metrics)
    counts: np.ndarray  # (units, metrics) queries behind each sum


def bootstrap_intervals(
    parts: Ranks | Sequence[Ranks], resamples: int = 1_000, seed: int = 0, level: float = 0.95, unit: Unit = "group"
) -> dict[str, Interval]:
    """Percentile intervals of every recall, mean rank and mAP@R, and of rsum.

    Folds are resampled each within itself and averaged, as the metrics are. With `unit="query"` every query is drawn on
    its own, the two directions independently.
    """
    _check_resamples(resamples)
    rng = np.random.default_rng(seed)
    folds = [_resampled(ranks, resamples, rng, unit) for ranks in _as_list(parts)]
    drawn = {name: np.mean([fold[name] for fold in folds], axis=0) for name in folds[0]}  # each (resamples,)
    return _intervals(drawn, level)


def grouped_intervals(
    values: Mapping[str, np.ndarray],
    groups: np.ndarray,
    resamples: int = 1_000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Percentile intervals of the means of values per query, (q,) each, when their groups, (q,), are drawn anew."""
    _check_resamples(resamples)
    _, unit = np.unique(groups, return_inverse=True)
    sums = np.stack([np.bincount(unit, weights=column) for column in values.values()], axis=1)
    counts = np.repeat(np.bincount(unit)[:, None].astype(np.float64), len(values), axis=1)
    drawn = _ratios(_Table(list(values), sums, counts), resamples, np.random.default_rng(seed))
    return _intervals(dict(zip(values, drawn.T, strict=True)), level)


def paired_test(
    first: Ranks | Sequence[Ranks],
    second: Ranks | Sequence[Ranks],
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Difference]:
    """Whether two matchers differ on the same queries, for every recall, mean rank, mAP@R and rsum.

    The interval of the difference is a paired bootstrap over groups. The p-value comes from sign flips: if the two were
    alike, each group's difference could as well have had the other sign; it is the share of random signs (and the ones
    observed) that give a difference at least as large. Equal matchers get p = 1; swapping the two changes signs only.
    """
    _check_resamples(resamples)
    one, two = _as_list(first), _as_list(second)
    _check_same_queries(one, two)
    tables = [_difference_table(a, b) for a, b in zip(one, two, strict=True)]
    return _differences(tables, _with_rsum, resamples, seed, level)


def paired_values(
    first: QueryValues, second: QueryValues, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> dict[str, Difference]:
    """The same test for other measures of the same queries. The two directions may have queries of different groups, so
    each is drawn on its own.
    """
    _check_resamples(resamples)
    result: dict[str, Difference] = {}
    for direction, groups in first.groups.items():
        if not np.array_equal(groups, second.groups.get(direction, np.empty(0))):
            raise QuintetError("a paired test needs both runs measured on the same queries, in the same order")
        names = [name for name in first.values if name.startswith(f"{direction}_")]
        _, unit = np.unique(groups, return_inverse=True)
        sums = [np.bincount(unit, weights=first.values[name] - second.values[name]) for name in names]
        counts = np.repeat(np.bincount(unit)[:, None].astype(np.float64), len(names), axis=1)
        result |= _differences([_Table(names, np.stack(sums, axis=1), counts)], _by_name, resamples, seed, level)
    return result


def _differences(
    tables: list[_Table],
    named: Callable[[list[str], np.ndarray], dict[str, np.ndarray]],
    resamples: int,
    seed: int,
    level: float,
) -> dict[str, Difference]:
    names = tables[0].names
    observed = named(names, np.mean([table.sums.sum(0) / table.counts.sum(0) for table in tables], axis=0)[None])
    rng = np.random.default_rng(seed)
    folds = [_ratios(table, resamples, rng) for table in tables]
    intervals = _intervals(named(names, np.mean(folds, axis=0)), level)
    flipped = named(names, np.mean([_flips(table, resamples, rng) for table in tables], axis=0))
    result = {}
    for name, value in observed.items():
        slack = 1e-9 * max(1.0, abs(float(value[0])))  # sums in another order differ in the last bits
        as_large = int(np.count_nonzero(np.abs(flipped[name]) >= abs(value[0]) - slack))
        result[name] = Difference(float(value[0]), intervals[name], (as_large + 1) / (resamples + 1))
    return result


def _as_list(parts: Ranks | Sequence[Ranks]) -> list[Ranks]:
    return [parts] if isinstance(parts, Ranks) else list(parts)


def _check_resamples(resamples: int) -> None:
    if resamples < 1:
        raise QuintetError(f"the number of resamples must be at least 1, got {resamples}")


def _check_same_queries(one: list[Ranks], two: list[Ranks]) -> None:
    same = len(one) == len(two) and all(
        np.array_equal(a.image_groups, b.image_groups) and np.array_equal(a.text_groups, b.text_groups)
        for a, b in zip(one, two, strict=True)
    )
    if not same:
        raise QuintetError("a paired test needs both runs measured on the same split, in the same order and protocol")


def _values(ranks: Ranks, direction: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names, (q, metrics) values and (q,) groups of one direction."""
    queries = getattr(ranks, direction)
    values = query_values(queries)
    return [f"{direction}_{name}" for name in values], np.stack(list(values.values()), axis=1), queries.groups


def _group_table(ranks: Ranks) -> _Table:
    names: list[str] = []
    sums, counts = [], []
    for direction in DIRECTIONS:
        named, values, groups = _values(ranks, direction)
        # A group that has queries in one direction has them in the other: the units of both are the same, in order.
        _, unit = np.unique(groups, return_inverse=True)
        of_unit = np.stack([np.bincount(unit, weights=column) for column in values.T], axis=1)
        names += named
        sums.append(of_unit)
        counts.append(np.repeat(np.bincount(unit)[:, None], len(named), axis=1))
    return _Table(names, np.concatenate(sums, axis=1), np.concatenate(counts, axis=1).astype(np.float64))


def _difference_table(one: Ranks, two: Ranks) -> _Table:
    first, second = _group_table(one), _group_table(two)
    return _Table(first.names, first.sums - second.sums, first.counts)


def _resampled(ranks: Ranks, resamples: int, rng: np.random.Generator, unit: Unit) -> dict[str, np.ndarray]:
    if unit == "group":
        table = _group_table(ranks)
        return _with_rsum(table.names, _ratios(table, resamples, rng))
    if unit != "query":
        raise QuintetError(f"resample by 'group' or by 'query', not by {unit!r}")
    names: list[str] = []
    drawn = []
    for direction in DIRECTIONS:
        named, values, _ = _values(ranks, direction)
        names += named
        drawn.append(_ratios(_Table(named, values, np.ones_like(values)), resamples, rng))
    return _with_rsum(names, np.concatenate(drawn, axis=1))


def _chunks(resamples: int, units: int) -> Iterator[int]:
    step = max(1, CHUNK // units)
    for done in range(0, resamples, step):
        yield min(step, resamples - done)


def _ratios(table: _Table, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(resamples, metrics): the metrics of units drawn with replacement."""
    units = len(table.sums)
    drawn = []
    for step in _chunks(resamples, units):
        chosen = rng.integers(0, units, size=(step, units)) + np.arange(step)[:, None] * units
        times = np.bincount(chosen.ravel(), minlength=step * units).reshape(step, units).astype(np.float64)
        drawn.append((times @ table.sums) / (times @ table.counts))
    return np.concatenate(drawn)


def _flips(table: _Table, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(resamples, metrics): the differences when each unit's sign is thrown anew."""
    total = table.counts.sum(0)
    drawn = []
    for step in _chunks(resamples, len(table.sums)):
        signs = rng.integers(0, 2, size=(step, len(table.sums)), dtype=np.int8) * 2.0 - 1.0
        drawn.append(signs @ table.sums / total)
    return np.concatenate(drawn)


def _by_name(names: list[str], values: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[:, column] for column, name in enumerate(names)}


def _with_rsum(names: list[str], values: np.ndarray) -> dict[str, np.ndarray]:
    named = _by_name(names, values)
    return {**named, "rsum": sum(named[name] for name in RECALLS) + np.zeros(len(values))}


def _intervals(drawn: dict[str, np.ndarray], level: float) -> dict[str, Interval]:
    tails = [50.0 * (1.0 - level), 50.0 * (1.0 + level)]
    edges = {name: np.percentile(values, tails) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in edges.items()}
