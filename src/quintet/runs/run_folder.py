"""The files of a run folder: finding and checking them, without loading a weight (so without torch).

run.json              {"format": "quintet-run", "version": 1, "name": ..., "status": "training" | "complete", ...}
recipe.yaml           the recipe, overrides applied (absent where the matcher came from elsewhere)
model.json            {"name": "vse++", "arguments": {...}}: enough for `quintet.create_model`
tokenizer.json        how texts become ids (absent where it is not known)
images.json           what images become: {"kind": "pixels"} or {"kind": "features", "name": ..., "tower": {...}}
weights.safetensors   the matcher's weights: the selected epoch of the last stage
stages/NAME/          checkpoint, selected weights and log of each stage
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

import quintet
from quintet.errors import RunError
from quintet.files import read_json, user_path

FORMAT, VERSION = "quintet-run", 1


def shipped_runs() -> dict[str, Path]:
    """Name -> folder. Beside the weights lies a model card: data, results, limits."""
    folder = Path(str(resources.files("quintet") / "pretrained"))
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/run.json"))}


def read_head(folder: Path) -> dict[str, Any]:
    """run.json, checked."""
    if not (folder / "run.json").is_file():
        raise RunError(
            f"{folder} is not a run (no run.json); `quintet train RECIPE -o {folder}` makes one"
            + "".join(f", and {name!r} comes with Quintet" for name in shipped_runs())
        )
    head = read_json(folder / "run.json")
    if head.get("format") != FORMAT:
        raise RunError(f"{folder / 'run.json'} is not a Quintet run")
    if head.get("version", 0) > VERSION:
        raise RunError(
            f"run {folder} was written by Quintet {head.get('quintet')} (run version {head['version']}); this one is "
            f"{quintet.__version__} and reads up to {VERSION}: update Quintet to use it"
        )
    return head


def locate(path: Path | str, stage: str | None = None) -> tuple[Path, str | None]:
    """The run folder and the stage that a path means: a run, a stage of it, or the weights file of either.

    The name of a run that comes with Quintet (see `shipped_runs`) means that one, unless a folder here is called so.

    >>> locate("runs/first"), locate("runs/first/stages/online/selected.safetensors")
    ((PosixPath('runs/first'), None), (PosixPath('runs/first'), 'online'))
    """
    path = user_path(path)
    if not path.exists():
        path = shipped_runs().get(str(path), path)
    if path.name in ("weights.safetensors", "selected.safetensors"):
        path = path.parent
    elif path.is_file():
        raise RunError(
            f"{path} is not the weights file of a run (weights.safetensors, or stages/NAME/selected.safetensors); "
            "`quintet convert` makes a run of a checkpoint from elsewhere"
        )
    if path.parent.name != "stages" or (path / "run.json").exists():
        return path, stage
    if stage not in (None, path.name):
        raise RunError(f"{path} is stage {path.name!r} of its run, but stage {stage!r} was asked for; name one of them")
    return path.parent.parent, path.name


def find_weights(folder: Path, stage: str | None) -> Path:
    """The weights file of a finished run, or of one of its stages; checked to be there."""
    if stage is None and read_head(folder)["status"] != "complete":
        raise RunError(
            f"run {folder} has not finished training; go on with `quintet train --resume {folder}`, or name a stage to "
            "open the best weights it has so far"
        )
    weights = folder / "weights.safetensors" if stage is None else folder / "stages" / stage / "selected.safetensors"
    if not weights.is_file():
        raise RunError(f"{weights} does not exist; this run has no such stage, or it has not come that far")
    return weights


def check_run(path: Path | str, stage: str | None = None) -> dict[str, Any]:
    """run.json of a run that can be opened: raises what `load` would raise, without importing torch."""
    folder, stage = locate(path, stage)
    head = read_head(folder)
    find_weights(folder, stage)
    return head


def default_corpus(runs: Sequence[Path | str]) -> Path:
    """The corpus that the runs were trained on; it must be one corpus."""
    known = []
    for run in runs:
        folder = read_head(locate(run)[0]).get("corpus")
        if folder is None:
            raise RunError(f"run {run} does not know a corpus; name one with --corpus")
        known.append(Path(folder))
    if len(set(known)) > 1:
        raise RunError("these runs were trained on different corpora; choose one with --corpus")
    return known[0]


def default_split(runs: Sequence[Path | str], splits: Collection[str]) -> str:
    """The one of the corpus's `splits` that the recipes of the runs test on (`data.test`).

    "test" where no run has a recipe, as those that were converted.
    """
    known: dict[str, Path | str] = {}
    for run in runs:
        recipe = locate(run)[0] / "recipe.yaml"
        if recipe.is_file():
            known.setdefault(_tested_on(recipe), run)
    if len(known) > 1:
        found = " and ".join(f"{name!r} ({run})" for name, run in known.items())
        raise RunError(f"the recipes of these runs test on different splits, {found}; choose one with --split")
    for name, run in known.items():
        if name not in splits:
            raise RunError(
                f"the recipe of {run} tests on split {name!r}, which the corpus does not have; choose one with "
                f"--split: {', '.join(splits)}"
            )
        return name
    return "test"


def _tested_on(recipe: Path) -> str:
    try:
        return str(yaml.safe_load(recipe.read_text(encoding="utf-8"))["data"]["test"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise RunError(f"{recipe} does not say which split the run is tested on (data.test): {error}") from None
