"""What the logs of a run say about each epoch: validation metrics (AOQ's figure of R@1) and the means of loss terms."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quintet.errors import RunError

Curves = dict[str, dict[str, list[float]]]  # stage -> {"epoch": [...], name: [...]}
NOT_TERMS = ("kind", "step", "epoch", "lr")
GAPS = ("gap_online", "gap_positive")  # what the quintuplet objective watches
ERRORS = ("image_error", "text_error")  # what the instance objective watches


def epoch_curves(run: Path | str, metrics: Sequence[str] = ("i2t_r1", "t2i_r1")) -> Curves:
    """For each stage the validation metrics after each epoch, epochs from 1."""
    curves: Curves = {}
    for stage, rows in _logs(run).items():
        measured = [row for row in rows if row["kind"] == "validation"]
        missing = [name for name in metrics if any(name not in row for row in measured)]
        if missing:
            known = sorted(name for name, value in measured[0].items() if isinstance(value, float))
            raise RunError(f"the log of stage {stage!r} has no metric {missing[0]!r}; there are {', '.join(known)}")
        curves[stage] = {name: [row[name] for row in measured] for name in ("epoch", *metrics)}
    return curves


def first_epoch_above(curve: dict[str, list[float]], metric: str, value: float) -> int | None:
    """The first epoch whose metric is above a value, such as the best that another run reached; None: never.

    >>> first_epoch_above({"epoch": [1, 2, 3], "i2t_r1": [20.0, 45.0, 60.0]}, "i2t_r1", 45.0)
    3
    """
    return next((int(at) for at, found in zip(curve["epoch"], curve[metric], strict=True) if found > value), None)


def term_curves(run: Path | str, names: Sequence[str] | None = None) -> Curves:
    """For each stage the mean over each epoch of every logged loss term (or of those whose last name is in `names`).

    A log line holds the mean since the line before; one that spans two epochs counts for the later. An epoch shorter
    than the interval between two lines may have none, and is left out; so is a stage without any such term.
    """
    curves: Curves = {}
    for stage, rows in _logs(run).items():
        by_epoch: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            if row["kind"] != "train":
                continue
            for name, value in row.items():
                if name not in NOT_TERMS and (names is None or name.rpartition(".")[2] in names):
                    by_epoch[int(row["epoch"]) + 1][name].append(float(value))  # the log counts finished epochs
        terms = list(dict.fromkeys(name for found in by_epoch.values() for name in found))
        if terms:
            epochs = sorted(by_epoch)
            means = {name: [_mean(by_epoch[epoch].get(name, ())) for epoch in epochs] for name in terms}
            curves[stage] = {"epoch": [float(epoch) for epoch in epochs], **means}
    return curves


def hardness_curves(run: Path | str) -> Curves:
    """How far, by epoch, offline negatives scored above online ones, and positives above offline negatives."""
    return term_curves(run, GAPS)


def error_curves(run: Path | str) -> Curves:
    """By epoch the share of training images and texts put into a wrong class, 0 to 1 (Dual-Path, Fig. 8)."""
    return term_curves(run, ERRORS)


def _mean(values: Sequence[float]) -> float:
    """NaN where a term was not part of an epoch (before its warm-up ended, say)."""
    return sum(values) / len(values) if values else float("nan")


def has_logs(run: Path | str) -> bool:
    """Whether a run was trained here: one that was converted, or that comes with Quintet, has no logs."""
    return bool(_log_files(run))


def _log_files(run: Path | str) -> list[Path]:
    return sorted(Path(run).glob("stages/*/log.jsonl"))


def _logs(run: Path | str) -> dict[str, list[dict[str, Any]]]:
    """Stage -> rows of its log. A last line that a kill cut short, or that is being written, is not counted."""
    paths = _log_files(run)
    if not paths:
        raise RunError(f"{run} holds no training logs (stages/NAME/log.jsonl); is it a run that was trained here?")
    logs = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1].splitlines()
        try:
            logs[path.parent.name] = [json.loads(line) for line in lines if line.strip()]
        except json.JSONDecodeError as error:
            raise RunError(f"{path} is damaged: {error}") from None
    return logs
