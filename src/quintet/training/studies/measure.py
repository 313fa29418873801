"""Measure a finished run on the test split, once: what was measured before, with the same weights, is read back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quintet.data.corpus import Corpus, Split, split_checksum
from quintet.evaluation.evaluator import encode_split, evaluate_members
from quintet.evaluation.result import write_result
from quintet.evaluation.scoring import Member
from quintet.files import read_json, read_jsonl
from quintet.runs.run import Run, open_run
from quintet.training.studies.study import Measure


@dataclass(frozen=True)
class Measurement:
    """A result file and the ranks beside it."""

    result: Path
    ranks: Path

    def content(self) -> dict[str, Any]:
        return read_json(self.result)


def measure_run(
    folder: Path,
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
    """The run's measurement under each protocol; `facts` are written into the result files.

    `measures` are of the whole split and stand among the metrics of every protocol.
    """
    run = open_run(folder, device=device)
    found = {name: Measurement(*_paths(results, folder.name, name)) for name in protocols}
    missing = [name for name in protocols if not _still_holds(found[name], run, split, bootstrap, measures)]
    if not missing:
        return found
    began = time.monotonic()
    images, texts = run.image_batches(corpus, split.images), run.text_batches(split.texts)
    member = Member(run.matcher, *encode_split(run.matcher, images, texts, split, device), name=run.name)
    encoding = time.monotonic() - began
    more = {measure.name: measure.of(member, split) for measure in measures}
    for name in missing:
        began = time.monotonic()
        result = evaluate_members([member], split, name, block, bootstrap, device=device)
        seconds = {
            "training": training_seconds(folder),
            "encoding": round(encoding, 3),
            "ranking": round(time.monotonic() - began, 3),
        }
        result.save_ranks(found[name].ranks)
        runs = [{"name": run.name, "weights_sha256": run.weights_checksum}]
        result = replace(result, metrics=result.metrics | more)
        write_result(found[name].result, result, corpus=corpus.name, runs=runs, seconds=seconds, **facts)
    return found


def training_seconds(folder: Path) -> float:
    """What the epochs of all stages took; an epoch that was resumed counts from there."""
    logs = sorted((folder / "stages").glob("*/log.jsonl"))
    return round(sum(row["seconds"] for log in logs for row in read_jsonl(log) if row["kind"] == "validation"), 3)


def _paths(results: Path, run: str, protocol: str) -> tuple[Path, Path]:
    return results / f"{run}.{protocol}.json", results / f"{run}.{protocol}.npz"


def _still_holds(measurement: Measurement, run: Run, split: Split, bootstrap: int, measures: Sequence[Measure]) -> bool:
    """Whether a file is there that was measured with these weights on these pairs."""
    if not (measurement.result.is_file() and measurement.ranks.is_file()):
        return False
    content = measurement.content()
    return (
        content["provenance"]["runs"][0]["weights_sha256"] == run.weights_checksum
        and content["split_checksum"] == split_checksum(split)
        and content["settings"]["bootstrap"] == bootstrap
        and all(measure.name in content["metrics"] for measure in measures)
    )
