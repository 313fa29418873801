"""What the training log of a run says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quintet.errors import RunError
from quintet.evaluation.curves import Curves, epoch_curves, error_curves, hardness_curves, has_logs, term_curves
from quintet.report.analysis.subject import Finding, Options, Subject
from quintet.report.figures import draw_curves

METRICS = {"i2t_r1": "image to text R@1, %", "t2i_r1": "text to image R@1, %", "rsum": "rsum"}
ERRORS = {"image_error": "error of the image branch, %", "text_error": "error of the text branch, %"}
GAPS = {"gap_online": "offline over online", "gap_positive": "positive over offline"}


def curves(subjects: Sequence[Subject], options: Options) -> Finding:
    """Validation metrics and losses by epoch (R@1 as in AOQ's figure)."""
    metrics = _of_runs(subjects, lambda run: epoch_curves(run, tuple(METRICS)))
    losses = _of_runs(subjects, term_curves)
    terms = dict.fromkeys(name for stages in losses.values() for curve in stages.values() for name in curve)
    shown = [name for name in terms if name.rpartition(".")[2] not in ("epoch", *ERRORS, *GAPS)]
    figures = {
        "training": draw_curves(_panels(metrics, METRICS), "Validation metrics by epoch"),
        "losses": draw_curves(_panels(losses, {name: name for name in shown}), "Losses by epoch"),
    }
    return Finding({"validation": metrics, "losses": losses}, figures)


def errors(subjects: Sequence[Subject], options: Options) -> Finding:
    """Classification error of both branches by epoch (Dual-Path, Fig. 8): runs trained with the instance loss."""
    found = _of_runs(subjects, error_curves)
    in_per_cent = {
        label: {stage: _scaled(curve, 100.0) for stage, curve in stages.items()} for label, stages in found.items()
    }
    _require(found, "logged classification errors; the instance loss does")
    figure = draw_curves(_panels(in_per_cent, ERRORS), "Classification error by epoch")
    return Finding({"runs": found}, {"errors": figure})


def hardness(subjects: Sequence[Subject], options: Options) -> Finding:
    """How far offline negatives stood above online ones, by epoch: runs trained with the quintuplet loss."""
    found = _of_runs(subjects, hardness_curves)
    _require(found, "watched its offline negatives; the quintuplet loss does")
    return Finding(
        {"runs": found},
        {
            "hardness": draw_curves(
                _panels(found, GAPS), "Gaps between the scores of positives, offline and online negatives"
            )
        },
    )


def _of_runs(subjects: Sequence[Subject], read: Callable[[Any], Curves]) -> dict[str, Curves]:
    """By run the curves of its stages, or of those stages of it that were named; runs without logs are left out where
    others have some."""
    found: dict[str, Curves] = {}
    for subject in [one for one in subjects if has_logs(one.run.folder)] or subjects:
        wanted = {name: one for name, one in read(subject.run.folder).items() if subject.stage in (None, name)}
        found[subject.name] = found.get(subject.name, {}) | wanted
    return found


def _require(found: Mapping[str, Curves], what: str) -> None:
    if not any(found.values()):
        raise RunError(f"no stage of {', '.join(found)} {what}")


def _panels(found: Mapping[str, Curves], names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """For each quantity the lines of all runs and stages that have it; `instance.image_error` is an `image_error`."""
    panels: dict[str, dict[str, Any]] = {}
    for label, stages in found.items():
        for stage, curve in stages.items():
            for name, values in curve.items():
                key = name if name in names else name.rpartition(".")[2]
                if key in names:
                    panels.setdefault(names[key], {})[f"{label}: {stage}"] = (curve["epoch"], values)
    return panels


def _scaled(curve: Mapping[str, list[float]], factor: float) -> dict[str, list[float]]:
    return {name: values if name == "epoch" else [factor * value for value in values] for name, values in curve.items()}
