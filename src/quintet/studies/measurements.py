"""What a study measures: every finished run on the test split, and the measurements that its file names.

A run is measured once: what was measured before, with the same weights on the same pairs, is read back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus, Split, split_checksum
from quintet.errors import QuintetError
from quintet.evaluation.evaluator import evaluate_members, run_facts
from quintet.evaluation.result import load_ranks, write_result
from quintet.evaluation.scoring import Member, member_scores
from quintet.evaluation.special_samples import negative_means, special_samples
from quintet.files import read_json, read_jsonl
from quintet.losses import OBJECTIVES
from quintet.report.analysis.cross_retrieval import cross_retrieval_histogram, draw_rank_intervals
from quintet.report.analysis.distributions import split_similarities
from quintet.report.analysis.loss_timing import time_stages
from quintet.report.analysis.training_curves import (
    METRICS,
    Curve,
    draw_curves,
    epoch_curves,
    first_epoch_above,
    term_curves,
)
from quintet.runs.run import Run, load
from quintet.studies.variants import Measure, Trained
from quintet.training.recipe_models import Recipe

CURVES = ("t2i_r1", "i2t_r1")
HYPERPARAMETERS = {"relevance_weight": "λ", "top": "K", "neighbours": "τ"}  # of the loss `relation`


@dataclass(frozen=True)
class Measurement:
    """A result file and the ranks beside it."""

    result: Path
    ranks: Path

    def content(self) -> dict[str, Any]:
        return read_json(self.result)


def measure_run(
    name: str,
    folders: Sequence[Path],
    corpus: Corpus,
    split: Split,
    protocols: Sequence[str],
    results: Path,
    *,
    device: str,
    block: int | tuple[int, int],
    bootstrap: int,
    facts: Mapping[str, Any],
    measures: Sequence[Measure] = (),
) -> dict[str, Measurement]:
    """The measurement of a run, or of the ensemble of several, under each protocol; `facts` go into the result files.

    `measures` are computed on the whole split and added to the metrics of every protocol.
    """
    runs = [load(folder, device=device) for folder in folders]
    found = {protocol: Measurement(*_paths(results, name, protocol)) for protocol in protocols}
    missing = [one for one in protocols if not _still_holds(found[one], runs, split, bootstrap, measures)]
    if not missing:
        return found
    began = time.monotonic()
    members = [Member.encode(run, corpus, split) for run in runs]
    encoding = time.monotonic() - began
    more = {measure.name: measure.of(members, split) for measure in measures}
    for protocol in missing:
        began = time.monotonic()
        result = evaluate_members(members, split, protocol, block, bootstrap, device=device)
        seconds = {
            "training": round(sum(map(training_seconds, folders)), 3),
            "encoding": round(encoding, 3),
            "ranking": round(time.monotonic() - began, 3),
        }
        result.save_ranks(found[protocol].ranks)
        result = replace(result, metrics=result.metrics | more)
        write_result(
            found[protocol].result, result, corpus=corpus.name, runs=[*map(run_facts, runs)], seconds=seconds, **facts
        )
    return found


def training_seconds(folder: Path) -> float:
    """Seconds of the epochs of all stages. A resumed epoch counts from where it was resumed."""
    logs = sorted((folder / "stages").glob("*/log.jsonl"))
    return round(sum(row["seconds"] for log in logs for row in read_jsonl(log) if row["kind"] == "validation"), 3)


def _paths(results: Path, run: str, protocol: str) -> tuple[Path, Path]:
    return results / f"{run}.{protocol}.json", results / f"{run}.{protocol}.npz"


def _still_holds(
    measurement: Measurement, runs: Sequence[Run], split: Split, bootstrap: int, measures: Sequence[Measure]
) -> bool:
    """Whether there is a result of these weights on these pairs."""
    if not (measurement.result.is_file() and measurement.ranks.is_file()):
        return False
    content = measurement.content()
    return (
        [made["weights_sha256"] for made in content["provenance"]["runs"]] == [run.weights_checksum for run in runs]
        and content["split_checksum"] == split_checksum(split)
        and content["settings"]["bootstrap"] == bootstrap
        and all(measure.name in content["metrics"] for measure in measures)
    )


def _overlap(members: Sequence[Member], split: Split) -> float:
    """The indicator S of Dual-Path's Eq. 10."""
    return split_similarities(members, split).overlap


def timing(trained: Trained, repeats: int = 20) -> list[dict[str, Any]]:
    """Seconds per training batch of each variant's last stage, on one batch (AOQ supplement).

    It is the first batch of the first variant, with its run's matcher.
    """
    first = next(iter(trained.labels))
    run = load(trained.folders[first], device=trained.device)
    stages = {key: trained.recipes[key].stages[-1] for key in trained.labels}
    rows = time_stages(run, trained.recipes[first], stages, repeats=repeats)
    return [row | {"label": trained.labels[row["loss"]]} for row in rows]


def special_samples_of(trained: Trained) -> list[dict[str, Any]]:
    """R@1 on hard and on infrequent test samples (HREM, Table 4), chosen by the first variant's scores."""
    first = next(iter(trained.labels))
    data = trained.recipes[first].data
    assert data.corpus is not None
    corpus = Corpus.open(data.corpus)
    split = corpus.split(data.test)
    members = {}
    for key in trained.labels:
        members[key] = Member.encode(load(trained.folders[key], device=trained.device), corpus, split, name=key)
    ranks = {
        key: evaluate_members([member], split, bootstrap=0, device=trained.device).ranks[0]
        for key, member in members.items()
    }
    scores = member_scores([members[first]], trained.device)
    rows = special_samples(ranks, *negative_means(scores, split.image_groups, split.text_groups))
    return [row | {"label": trained.labels[row["run"]]} for row in rows]


def hyperparameters(trained: Trained) -> list[dict[str, Any]]:
    """R@1 by each of HREM's three numbers, the other two as the first variant has them (Figure 6)."""
    default = OBJECTIVES.parameters("relation")
    numbers = {
        key: {name: stage.loss["relation"].get(name, default[name].default) for name in HYPERPARAMETERS}
        for key, recipe in trained.recipes.items()
        for stage in recipe.stages
        if "relation" in stage.loss
    }
    own = numbers[next(iter(trained.labels))]
    rows, panels = [], {}
    for name, symbol in HYPERPARAMETERS.items():
        alike = [key for key, found in numbers.items() if found | {name: None} == own | {name: None}]
        if len(alike) == 1:
            continue  # no other value of it
        alike.sort(key=lambda key: numbers[key][name])
        values = [numbers[key][name] for key in alike]
        metrics = [read_json(trained.ranks[key].with_suffix(".json"))["metrics"] for key in alike]
        lines = {METRICS[metric]: (values, [found[metric] for found in metrics]) for metric in CURVES}
        panels[f"R@1 (%) by {symbol}"] = lines
        rows += [{"name": symbol, "value": value} | found for value, found in zip(values, metrics, strict=True)]
    trained.figures["hyperparameters"] = lambda: draw_curves(panels, "Hyper-parameters (Figure 6)", x="value")
    return rows


def loss_curves(trained: Trained) -> list[dict[str, Any]]:
    """HREM's triplet loss of initial and of enhanced embeddings, a mean for each epoch that has both (Figure 7)."""
    (key,) = trained.labels
    (stage,) = (stage.name for stage in trained.recipes[key].stages if "relation" in stage.loss)
    found = term_curves(trained.folders[key], ("initial", "enhanced")).get(stage, {})
    if "relation.enhanced" not in found:
        raise QuintetError("not measured: no epoch was logged after the relations had started")
    names = ("initial", "enhanced")
    both = {f"{name} embeddings": (found["epoch"], found[f"relation.{name}"]) for name in names}
    trained.figures["loss-curves"] = lambda: draw_curves({"triplet loss": both}, "Triplet loss by epoch (Figure 7)")
    lines = zip(found["epoch"], found["relation.initial"], found["relation.enhanced"], strict=True)
    return [
        {"epoch": int(epoch), "initial": initial, "enhanced": enhanced}
        for epoch, initial, enhanced in lines
        if enhanced == enhanced  # NaN before
    ]


def training_curves(trained: Trained) -> list[dict[str, Any]]:
    """After how many epochs each variant passes the best R@1 of the first on the validation split; AOQ's Figure 4.

    The curves and epochs are those of the last stage; the numbers are those of the seeds, in order.
    """
    first = next(iter(trained.labels))
    panels: dict[str, dict[str, Any]] = {METRICS[name]: {} for name in CURVES}
    for key, folder in trained.folders.items():
        curve = _last_curve(folder, trained.recipes[key])
        for name in CURVES:
            panels[METRICS[name]][trained.labels[key]] = (curve["epoch"], curve[name])
    title = f"Validation R@1 by epoch (Figure 4), seed {next(iter(trained.every_seed))}"
    trained.figures["training-curves"] = lambda: draw_curves(panels, title)
    rows = []
    for key in list(trained.labels)[1:]:
        passed: dict[str, list[str]] = {name: [] for name in CURVES}
        for folders in trained.every_seed.values():
            own, other = (_last_curve(folders[one], trained.recipes[one]) for one in (key, first))
            for name in CURVES:
                epoch = first_epoch_above(own, name, max(other[name]))
                passed[name].append("never" if epoch is None else str(epoch))
        epochs = trained.recipes[key].stages[-1].epochs
        rows.append({"label": trained.labels[key], "epochs": epochs} | {n: ", ".join(f) for n, f in passed.items()})
    return rows


def _last_curve(folder: Path, recipe: Recipe) -> Curve:
    return epoch_curves(folder, CURVES)[recipe.stages[-1].name]


def cross_retrieval(trained: Trained) -> list[dict[str, Any]]:
    """How many positive pairs have a cross-retrieval rank in each interval (AOQ supplement, Figure 6)."""
    ranks = {trained.labels[key]: load_ranks(path) for key, path in trained.ranks.items()}
    found = cross_retrieval_histogram(ranks)
    title = f"Cross-retrieval ranks of {found['pairs']:,} positive pairs (Figure 6)"
    trained.figures["cross-retrieval"] = lambda: draw_rank_intervals(found["intervals"], found["share"], title)
    return [
        {"label": label} | dict(zip(found["intervals"], counts, strict=True))
        for label, counts in found["counts"].items()
    ]


# What a study's file names under `measures`: a number of every run.
MEASURES = {"S": Measure("S", _overlap, digits=4)}
# What it names under `extras`: the rows of a table of its own.
EXTRAS: dict[str, Callable[[Trained], list[dict[str, Any]]]] = {
    "timing": timing,
    "special_samples": special_samples_of,
    "hyperparameters": hyperparameters,
    "loss_curves": loss_curves,
    "training_curves": training_curves,
    "cross_retrieval": cross_retrieval,
}
