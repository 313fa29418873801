"""From the results of single runs to means, spreads and differences over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from quintet.evaluation.result import load_ranks, provenance
from quintet.evaluation.significance import paired_test
from quintet.studies.measurements import Measurement
from quintet.studies.published import VALIDATION, counterparts
from quintet.studies.variants import Extra, Study, Variant

FORMAT, VERSION = "quintet-study", 1
Metrics = dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one variant under one seed."""

    variant: str
    seed: int
    status: Literal["trained", "failed", "skipped"]
    reason: str = ""
    notes: tuple[str, ...] = ()
    measured: Mapping[str, Measurement] = field(default_factory=dict)  # by protocol


Outcomes = Mapping[tuple[str, int], Outcome]


class Paired:
    """Paired tests of a run against the reference run of the same seed; each is computed once."""

    def __init__(self, reference: str, resamples: int) -> None:
        self.reference, self.resamples = reference, resamples
        self._done: dict[tuple[str, int, str], dict[str, Any]] = {}

    def test(self, outcome: Outcome, reference: Outcome | None, protocol: str) -> dict[str, Any] | None:
        if reference is None or outcome.variant == self.reference or reference.status != "trained":
            return None
        key = outcome.variant, outcome.seed, protocol
        if key not in self._done:
            own, other = (load_ranks(each.measured[protocol].ranks) for each in (outcome, reference))
            found = paired_test(own, other, self.resamples)
            self._done[key] = {name: value.to_json() for name, value in found.items()}
        return self._done[key]


def summarise(
    study: Study,
    outcomes: Outcomes,
    paired: Paired,
    facts: Mapping[str, Any],
    extras: Mapping[str, Mapping[str, Any]],
    out: Path,
) -> dict[str, Any]:
    """All numbers of the study, as JSON values. Paths are relative to `out`."""
    protocols = [*facts["protocols"], *([VALIDATION] if facts["validation"] else [])]
    runs = {
        variant.key: [
            _run(outcomes[key], outcomes.get((study.reference, key[1])), paired, protocols, out)
            for key in outcomes
            if key[0] == variant.key
        ]
        for variant in study.variants
    }
    summary = {
        "format": FORMAT,
        "version": VERSION,
        "study": study.name,
        "base": study.base,
        "reference": study.reference,
        **facts,
        "seeds": list(dict.fromkeys(seed for _, seed in outcomes)),
        "variants": {v.key: _variant(v, runs[v.key], runs[study.reference], protocols) for v in study.variants},
        "tables": [asdict(table) for table in study.tables],
        "digits": {measure.name: measure.digits for measure in study.measures},
        "notes": list(study.notes),
        "extras": {
            extra.key: {"title": extra.title, "columns": [asdict(column) for column in extra.columns]}
            | dict(extras[extra.key])
            | {"published": [_printed(extra, row) for row in extras[extra.key]["rows"]]}
            for extra in study.extras
            if extra.key in extras
        },
        "provenance": provenance(),
    }
    return json.loads(json.dumps(summary))  # as it is read back from the file


def _printed(extra: Extra, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the papers have for a row of an extra table."""
    if not extra.published:
        return []
    return [asdict(found) for found in counterparts(extra.published, extra.row.format_map(row))]


def _run(
    outcome: Outcome, reference: Outcome | None, paired: Paired, protocols: list[str], out: Path
) -> dict[str, Any]:
    measured = {name: outcome.measured[name].content() for name in protocols} if outcome.status == "trained" else {}
    return {
        "seed": outcome.seed,
        "status": outcome.status,
        "reason": outcome.reason,
        "notes": list(outcome.notes),
        "protocols": {
            name: {
                "metrics": content["metrics"],
                "chance": content["chance"],
                "at_chance": _at_chance(content),
                "seconds": content["provenance"]["seconds"],
                "trained_on": content["provenance"]["trained_on"],
                "peak_memory_bytes": content["provenance"]["peak_memory_bytes"],
                "result": str(outcome.measured[name].result.relative_to(out)),
                "paired": paired.test(outcome, reference, name),
            }
            for name, content in measured.items()
        },
    }


def _at_chance(content: Mapping[str, Any]) -> bool:
    """Whether the run is not clearly better than guessing: rsum's interval reaches down to the chance level."""
    low = content["intervals"].get("rsum", [content["metrics"]["rsum"]])[0]
    return low <= content["chance"]["rsum"]


def _variant(
    variant: Variant, runs: list[dict[str, Any]], reference: list[dict[str, Any]], protocols: list[str]
) -> dict[str, Any]:
    overall = {}
    for name in protocols:
        own, other = _by_seed(runs, name), _by_seed(reference, name)
        changes = [
            {metric: value - other[seed][metric] for metric, value in metrics.items()}
            for seed, metrics in own.items()
            if seed in other
        ]
        overall[name] = over_seeds(list(own.values())) | {"difference": over_seeds(changes)}
    facts = {"label": variant.label, "needs": list(variant.needs), "ensemble": bool(variant.members)}
    return facts | {"protocols": overall, "runs": runs}


def _by_seed(runs: list[dict[str, Any]], protocol: str) -> dict[int, Metrics]:
    return {run["seed"]: run["protocols"][protocol]["metrics"] for run in runs if protocol in run["protocols"]}


def over_seeds(values: list[Metrics]) -> dict[str, Any]:
    """Mean and sample standard deviation of each metric; one seed has no spread.

    >>> over_seeds([{"rsum": 1.0}, {"rsum": 3.0}])
    {'seeds': 2, 'mean': {'rsum': 2.0}, 'spread': {'rsum': 1.4142135623730951}}
    >>> over_seeds([{"rsum": 1.0}])["spread"] is None
    True
    """
    names = values[0].keys() if values else ()
    columns = {name: [metrics[name] for metrics in values] for name in names}
    return {
        "seeds": len(values),
        "mean": {name: statistics.fmean(column) for name, column in columns.items()},
        "spread": {name: statistics.stdev(column) for name, column in columns.items()} if len(values) > 1 else None,
    }
