"""One row of a grid: train its run if it is not trained yet, measure it, and write its result file."""

from __future__ import annotations

import fcntl
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.grids.catalogue import GRIDS
from benchmarks.grids.rows import SERIES, STUDY_OPTIONS, Row
from quintet.data.corpus import Corpus
from quintet.errors import QuintetError
from quintet.evaluation.evaluator import evaluate_members
from quintet.evaluation.human_agreement import human_agreement, judged_pairs, pair_scores, read_expert_annotations
from quintet.evaluation.metrics import CUTS
from quintet.evaluation.ranks import Queries, Ranks
from quintet.evaluation.result import provenance
from quintet.evaluation.scoring import Member
from quintet.files import read_json, write_json
from quintet.mining.mine import mine
from quintet.report.analysis.distributions import split_similarities
from quintet.runs.devices import pick_device
from quintet.runs.run import Run, load
from quintet.runs.run_folder import read_head
from quintet.studies.expand import build_study
from quintet.studies.measurements import training_seconds
from quintet.training import stages
from quintet.training.inputs import open_data
from quintet.training.logs import Silent
from quintet.training.recipe import load_recipe
from quintet.training.recipe_models import Recipe

GIB = 2**30


@dataclass(frozen=True)
class Setup:
    """Folders, device and settings of the measurement."""

    corpus: Path
    runs: Path
    results: Path
    device: str = "auto"
    annotations: Path | None = None  # Flickr8k's ExpertAnnotations.txt
    bootstrap: int = 1_000
    jobs: int = 1
    overrides: tuple[tuple[str, str], ...] = ()  # (pattern of names, KEY=VALUE), beside the grid's own
    grid: str = "flickr8k"

    def run(self, row_id: str) -> Path:
        return self.runs / row_id

    def result(self, row: Row) -> Path:
        return self.results / f"{row.id}.json"

    def is_trained(self, row_id: str) -> bool:
        folder = self.run(row_id)
        return (folder / "run.json").is_file() and read_head(folder)["status"] == "complete"


def row_recipe(row: Row, setup: Setup) -> Recipe:
    """The recipe that a row trains: the shipped one with the grid's changes, or a variant of a study made of it."""
    recipe = load_recipe(str(row.recipe), [*row.overrides, f"seed={row.seed}", f"data.corpus={setup.corpus}"])
    if row.study is None:
        return recipe
    variant = build_study(row.study, recipe, **STUDY_OPTIONS.get(row.study, {})).variant(row.variant)
    return variant.recipe_for(row.seed, dict(zip(variant.needs, map(setup.run, row.needs), strict=True)))


def recorded_recipe(row: Row, setup: Setup) -> dict[str, Any]:
    """The recipe without what differs from machine to machine: where corpus and runs are."""
    content = row_recipe(row, setup).model_dump(mode="json", by_alias=True)
    folders = {setup.runs.resolve(): "RUNS", setup.corpus.resolve(): "CORPUS", setup.corpus: "CORPUS"}
    return _replaced(content, {str(folder): name for folder, name in folders.items()})


def _replaced(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(inner, names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, names) for inner in value]
    for path, name in names.items():
        value = value.replace(path, name) if isinstance(value, str) else value
    return value


def make_row(row: Row, setup: Setup) -> dict[str, Any]:
    """Train and measure; returns the content of the result file. What is done already is left as it is."""
    device = str(pick_device(setup.device))
    trained = _train(row, setup, device) if row.trains else {}
    if setup.result(row).is_file():
        return read_json(setup.result(row))
    content = _describe(row, setup) | trained | _measure(row, setup, device) | {"provenance": provenance()}
    write_json(setup.result(row), content)
    return content


def _train(row: Row, setup: Setup, device: str) -> dict[str, Any]:
    folder = setup.run(row.id)
    record = folder / "benchmark.json"
    if setup.is_trained(row.id):
        return read_json(record) if record.is_file() else {}
    on_gpu = torch.device(device).type == "cuda"
    resumed = (folder / "run.json").is_file()
    recipe = row_recipe(row, setup)
    if not resumed:
        _share_mining(recipe, folder, device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    heard = _Notes()
    if resumed:
        stages.resume_run(folder, device=device, display=heard)
    else:
        stages.train_recipe(recipe, folder, device=device, display=heard)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    trained = {
        "training": {
            "seconds": training_seconds(folder),  # epochs with their validation
            "wall_seconds": round(time.monotonic() - began, 1),  # and encoding, writing; of a resumed run also mining
            "resumed": resumed,
            "jobs_at_once": setup.jobs,
        },
        "peak_memory": {"bytes": peak, "of": "tensors on the GPU" if on_gpu else "the process"},
        "notes": heard.notes,
    }
    write_json(record, trained)
    return trained


def _share_mining(recipe: Recipe, folder: Path, device: str) -> None:
    """Rows that mine with one run have the same lists: the first of them mines, those that come meanwhile wait."""
    names = {stage.name for stage in recipe.stages}
    for stage in recipe.stages:
        if stage.negatives is None or stage.negatives.source in names:
            continue
        miner, data = load(stage.negatives.source, device=device), open_data(recipe, Silent().note)
        with _locked(miner.folder / "mining.lock"):
            lists = miner.folder / "mined"
            mine(miner, data.corpus, split=data.train, out=lists, **stage.negatives.mining())
            shutil.copytree(lists, folder / "stages" / stage.name / "negatives", dirs_exist_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Notes(Silent):
    """Keeps the warnings of training, such as a collapse."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def _describe(row: Row, setup: Setup) -> dict[str, Any]:
    return {
        "benchmark": setup.grid,
        "name": row.name,
        "seed": row.seed,
        "label": row.label,
        "loss": row.loss,
        "series": row.series,
        "tower": SERIES[row.series][0] if row.series else "pixels",
        "needs": list(row.needs),
        "base_recipe": row.recipe,
        "overrides": list(row.overrides),
        "recipe": recorded_recipe(row, setup) if row.trains else None,
        "command": again_command(row, setup),
    }


def again_command(row: Row, setup: Setup) -> str:
    """What makes this row anew, with all that it needs, in folders of its own."""
    given = "".join(f" --set '{pattern}:{setting}'" for pattern, setting in setup.overrides)
    experts = " --annotations ExpertAnnotations.txt" if setup.annotations is not None else ""
    where = f"--grid {setup.grid} --corpus corpora/{GRIDS[setup.grid].corpus}"
    return f"python -m benchmarks.measure.flickr8k {where} --only {row.id} --again{experts}{given}"


def _measure(row: Row, setup: Setup, device: str) -> dict[str, Any]:
    corpus = Corpus.open(setup.corpus)
    split = corpus.split("test")
    runs = [load(setup.run(one), device=device) for one in ([row.id] if row.trains else row.needs)]
    began = time.monotonic()
    members = [Member.encode(run, corpus, split, name=run.folder.name, keep=device) for run in runs]
    encoded = time.monotonic()
    result = evaluate_members(members, split, bootstrap=setup.bootstrap, device=device)
    scored = time.monotonic()
    agreement = None
    if setup.annotations is not None:
        pairs = judged_pairs(read_expert_annotations(setup.annotations), split)
        agreement = human_agreement(pair_scores(members, pairs, device), pairs, setup.bootstrap).to_json()
    similarities = split_similarities(members, split, device=device).to_json()
    return {
        "kind": "single" if row.trains else "ensemble",
        **{key: value for key, value in result.to_json().items() if key not in ("format", "version", "kind")},
        "hits": group_hits(result.ranks[0]),
        "human_agreement": agreement,
        "similarities": {key: similarities[key] for key in ("S", "positive", "negative")},
        "test_seconds": {"encoding": round(encoded - began, 3), "scoring": round(scored - encoded, 3)},
        "parameters": [sum(p.numel() for p in run.matcher.parameters()) for run in runs],
        "runs": [{"name": run.folder.name, "weights_sha256": run.weights_checksum} for run in runs],
        "selected": [_selected(run) for run in runs],
        "corpus": corpus.name,
        "device": torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "CPU",
    }


def _selected(run: Run) -> dict[str, dict[str, Any]]:
    """The epoch that each stage kept, and the validation split's rsum that it was kept for."""
    found = read_head(run.folder).get("stages", {})
    return {name: {"epoch": stage["epoch"], "rsum": stage["metrics"]["rsum"]} for name, stage in found.items()}


def group_hits(ranks: Ranks) -> dict[str, str]:
    """For each group how many of its queries are hit at 1, 5 and 10, counted together: what a paired test needs.

    Numbers with spaces between them, groups in the split's order; rsum is their sum over the number of queries.
    """
    return {name: _hits(getattr(ranks, name)) for name in ("i2t", "t2i")}


def _hits(queries: Queries) -> str:
    hit = (queries.best[:, None] < np.array(CUTS)).sum(axis=1)  # (queries,)
    _, unit = np.unique(queries.groups, return_inverse=True)
    return " ".join(map(str, np.bincount(unit, weights=hit).astype(int)))


def summary_line(content: dict[str, Any]) -> str:
    """A result in one line."""
    low, high = content["intervals"]["rsum"]
    agreement, training = content["human_agreement"], content.get("training")
    parts = [
        f"rsum {content['metrics']['rsum']:.1f} ({low:.1f} to {high:.1f})",
        f"S {content['similarities']['S']:.3f}",
    ]
    parts += [f"tau-c {agreement['tau_c']:.3f}"] if agreement else []
    if training:
        parts.append(f"{training['wall_seconds']:.0f} s, {content['peak_memory']['bytes'] / GIB:.1f} GiB")
    return ", ".join(parts)


def check(setup: Setup) -> None:
    """Before anything is trained: is there a corpus, and is every judged pair in it?"""
    split = Corpus.open(setup.corpus).split("test")
    if setup.annotations is not None:
        judged_pairs(read_expert_annotations(setup.annotations), split)
    if setup.bootstrap < 1:
        raise QuintetError("--bootstrap must be at least 1: every number comes with its interval")
