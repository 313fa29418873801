"""Training curves from the logs of a run: validation metrics (AOQ's figure of R@1) and means of loss terms by epoch."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from quintet.errors import RunError
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.figures import drawing, legend_below, legend_lines, new_panels, plain_numbers, series_styles
from quintet.training.recipe import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = dict[str, list[float]]  # {"epoch": [...], name: [...]}
Curves = dict[str, Curve]  # by stage
NOT_TERMS = ("kind", "step", "epoch", "lr")
# Names of the quantities, and what they are called in figures.
METRICS = {"i2t_r1": "image to text R@1 (%)", "t2i_r1": "text to image R@1 (%)", "rsum": "rsum"}
GAPS = {"gap_online": "offline minus online", "gap_positive": "positive minus offline"}  # of the quintuplet objective
# Losses that are compared on one axis: HREM's triplet loss of initial and of enhanced embeddings (its Figure 7).
TOGETHER = dict.fromkeys(("relation.initial", "relation.enhanced"), "triplet loss (relation)")
ERRORS = {"image_error": "error of the image branch (%)", "text_error": "error of the text branch (%)"}  # of instance


# Numbers


def epoch_curves(run: Path | str, metrics: Sequence[str] = ("i2t_r1", "t2i_r1")) -> Curves:
    """By stage, the validation metrics after each epoch; epochs start from 1."""
    curves: Curves = {}
    for stage, rows in _logs(run).items():
        measured = [row for row in rows if row["kind"] == "validation"]
        missing = [name for name in metrics if any(name not in row for row in measured)]
        if missing:
            known = sorted(name for name, value in measured[0].items() if isinstance(value, float))
            raise RunError(f"the log of stage {stage!r} has no metric {missing[0]!r}; there are {', '.join(known)}")
        curves[stage] = {name: [row[name] for row in measured] for name in ("epoch", *metrics)}
    return curves


def first_epoch_above(curve: Curve, metric: str, value: float) -> int | None:
    """The first epoch whose metric is above a value, such as the best of another run; None if there is none.

    >>> first_epoch_above({"epoch": [1, 2, 3], "i2t_r1": [20.0, 45.0, 60.0]}, "i2t_r1", 45.0)
    3
    """
    return next((int(at) for at, found in zip(curve["epoch"], curve[metric], strict=True) if found > value), None)


def term_curves(run: Path | str, names: Sequence[str] | None = None) -> Curves:
    """By stage, the mean over each epoch of every logged loss term (or of those whose last name is in `names`).

    A log line holds the mean since the line before it; a line that spans two epochs counts for the later one. Epochs
    without a line, and stages without any such term, are left out.
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
    """By epoch, how far offline negatives scored above online ones, and positives above offline negatives."""
    return term_curves(run, tuple(GAPS))


def error_curves(run: Path | str) -> Curves:
    """By epoch, the classification error of training images and texts, 0 to 1 (Dual-Path, Fig. 8)."""
    return term_curves(run, tuple(ERRORS))


def _mean(values: Sequence[float]) -> float:
    """NaN where an epoch has no value of a term, such as before the end of its warm-up."""
    return sum(values) / len(values) if values else float("nan")


def has_logs(run: Path | str) -> bool:
    """Whether a run has training logs; converted and shipped runs have none."""
    return bool(_log_files(run))


def _log_files(run: Path | str) -> list[Path]:
    """In the order in which the stages are trained."""
    paths, recipe = sorted(Path(run).glob("stages/*/log.jsonl")), Path(run) / "recipe.yaml"
    names = [stage.name for stage in load_recipe(recipe).stages] if recipe.is_file() else []
    return sorted(paths, key=lambda path: names.index(path.parent.name) if path.parent.name in names else len(names))


def _logs(run: Path | str) -> dict[str, list[dict[str, Any]]]:
    """Stage -> rows of its log. An incomplete last line (training was killed, or is running) is not counted."""
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


# The figure

FEW = 40  # with more points than this, markers would cover the line


@drawing
def draw_curves(
    panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]], title: str, x: str = "epoch", *, log: bool = False
) -> Figure:
    """One panel per quantity: `panels` maps the label of a y axis to its lines, name -> (x, y); NaN leaves a gap.

    `log` draws y on a logarithmic scale.
    """
    labels = dict.fromkeys(label for lines in panels.values() for label in lines)
    styles = dict(zip(labels, series_styles(), strict=False))  # a run looks the same in all panels
    figure, all_axes = new_panels(title, len(panels), columns=2, below=max(map(legend_lines, panels.values())))
    for axes, (name, lines) in zip(all_axes, panels.items(), strict=True):
        for label, (at, values) in lines.items():
            colour, dashes, marker = styles[label]
            shape = marker if np.size(at) <= FEW else ""
            axes.plot(at, values, label=label, color=colour, linestyle=dashes, marker=shape, markersize=4)
        axes.set(xlabel=x, ylabel=name)
        if log:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        legend_below(axes)
    return figure


# The analyses


def curves(subjects: Sequence[Subject], options: Options) -> Finding:
    """Validation metrics and losses by epoch (R@1 as in AOQ's figure)."""
    metrics = _of_runs(subjects, lambda run: epoch_curves(run, tuple(METRICS)))
    losses = _of_runs(subjects, term_curves)
    terms = dict.fromkeys(name for stages in losses.values() for curve in stages.values() for name in curve)
    shown = [name for name in terms if name.rpartition(".")[2] not in ("epoch", *ERRORS, *GAPS)]
    panels = {
        "training": (_panels(metrics, METRICS), "Validation metrics by epoch"),
        "losses": (_panels(losses, {name: TOGETHER.get(name, name) for name in shown}), "Losses by epoch"),
    }
    figures = {name: draw_curves(lines, title) for name, (lines, title) in panels.items() if lines}
    return Finding({"validation": metrics, "losses": losses, "passed": passed_baseline(metrics)}, figures)


def passed_baseline(found: Mapping[str, Curves]) -> dict[str, Any]:
    """The first epoch of every other stage whose R@1 is above the best of the first stage, the baseline; or None.

    >>> online, offline = {"epoch": [1, 2], "i2t_r1": [3.0, 5.0]}, {"epoch": [1, 2], "i2t_r1": [4.0, 6.0]}
    >>> passed_baseline({"run": {"online": online, "offline": offline}})
    {'baseline': 'run: online', 'best': {'i2t_r1': 5.0}, 'epochs': {'run: offline': {'i2t_r1': 2}}}
    """
    stages = {f"{label}: {stage}": curve for label, run in found.items() for stage, curve in run.items()}
    if not stages:
        return {}
    baseline, *others = stages
    best = {name: max(stages[baseline][name]) for name in METRICS if stages[baseline].get(name)}
    epochs = {
        label: {name: first_epoch_above(stages[label], name, value) for name, value in best.items()} for label in others
    }
    return {"baseline": baseline, "best": best, "epochs": epochs}


def errors(subjects: Sequence[Subject], options: Options) -> Finding:
    """Classification error of both branches by epoch (Dual-Path, Fig. 8), for runs with the instance loss."""
    found = _of_runs(subjects, error_curves)
    in_per_cent = {
        label: {stage: _scaled(curve, 100.0) for stage, curve in stages.items()} for label, stages in found.items()
    }
    _require(found, "logged classification errors; the instance loss does")
    figure = draw_curves(_panels(in_per_cent, ERRORS), "Classification error by epoch")
    return Finding({"runs": found}, {"errors": figure})


def hardness(subjects: Sequence[Subject], options: Options) -> Finding:
    """Gaps between positives, offline and online negatives by epoch, for runs with the quintuplet loss."""
    found = _of_runs(subjects, hardness_curves)
    _require(found, "logged the gaps of offline negatives; the quintuplet loss does")
    figure = draw_curves(_panels(found, GAPS), "Gaps between the scores of positives, offline and online negatives")
    return Finding({"runs": found}, {"hardness": figure})


def _of_runs(subjects: Sequence[Subject], read: Callable[[Path], Curves]) -> dict[str, Curves]:
    """By run, the curves of its stages, or of the stages that were named. Runs without logs are left out if others have
    logs."""
    found: dict[str, Curves] = {}
    for subject in [one for one in subjects if has_logs(one.run.folder)] or subjects:
        wanted = {name: one for name, one in read(subject.run.folder).items() if subject.stage in (None, name)}
        found[subject.name] = found.get(subject.name, {}) | wanted
    return found


def _require(found: Mapping[str, Curves], what: str) -> None:
    if not any(found.values()):
        raise RunError(f"no stage of {', '.join(found)} {what}")


def _panels(
    found: Mapping[str, Curves], names: Mapping[str, str]
) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """By quantity, the lines of all runs and stages that have it; `instance.image_error` counts as `image_error`.

    Lines of several names in one panel say which they are.
    """
    shared = {panel for panel, times in Counter(names.values()).items() if times > 1}
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for label, stages in found.items():
        for stage, curve in stages.items():
            for name, values in curve.items():
                key = name if name in names else name.rpartition(".")[2]
                if key in names:
                    which = f", {key.rpartition('.')[2]}" if names[key] in shared else ""
                    panels.setdefault(names[key], {})[f"{label}: {stage}{which}"] = (curve["epoch"], values)
    return panels


def _scaled(curve: Mapping[str, list[float]], factor: float) -> Curve:
    return {name: values if name == "epoch" else [factor * value for value in values] for name, values in curve.items()}
