"""The files of a run folder: finding, reading and checking them, without loading a weight (so without torch).

run.json              {"format": "quintet-run", "version": 1, "name": ..., "status": "training" | "complete", ...}
recipe.yaml           the recipe, overrides applied (absent where the matcher came from elsewhere)
model.json            {"name": "vse++", "arguments": {...}}: enough for `quintet.create_model`
tokenizer.json        how texts become ids (absent where it is not known)
images.json           what images become: {"kind": "pixels"} or {"kind": "features", "name": ..., "tower": {...}}
weights.safetensors   the matcher's weights: the selected epoch of the last stage
checksums.json        SHA-256 of the files above and of those of the stages (absent in runs of earlier versions)
stages/NAME/          checkpoint, selected weights and log of each stage
lock                  while a process writes the run
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

import quintet
from quintet.data.pretrained import PREFIX, download, dual_encoder_files, foreign_model, is_pretrained
from quintet.errors import QuintetError, RunError
from quintet.files import (
    check_shape,
    checksums,
    file_checksum,
    open_regular,
    read_bytes,
    read_json,
    user_path,
    write_json,
)

FORMAT, VERSION = "quintet-run", 1
T = TypeVar("T", int, str)
HUB = "hub:"  # before the name of a run on the hub
START_FILES = ("recipe.yaml", "model.json", "images.json", "tokenizer.json")
WEIGHTS = "weights.safetensors"
RUN_FILES = (*START_FILES, WEIGHTS, "checksums.json", "run.json")
STAGE_FILES = ("checkpoint.safetensors", "selected.safetensors", "objective.safetensors", "done.json", "log.jsonl")
STAGE_NAME = r"[A-Za-z0-9_-]+"
LARGEST_RECIPE = 2**20  # bytes


@dataclass
class _Stage:
    """What a stage left in run.json."""

    metrics: dict[str, float] = field(default_factory=dict)
    epoch: int | None = None
    without_effect: list[str] = field(default_factory=list)


@dataclass
class _Head:
    """What is read of run.json."""

    format: str
    name: str
    status: Literal["starting", "training", "complete"]  # starting: its first files are being written
    version: int = 0
    quintet: str | None = None
    corpus: str | None = None
    splits: dict[str, str] | None = None
    stages: dict[str, _Stage] = field(default_factory=dict)
    origin: dict[str, Any] | None = None
    made_from: str | None = None  # identity of the files of transformers that the weights are of


@dataclass
class _Model:
    name: str
    arguments: dict[str, Any]


@dataclass
class _Images:
    kind: Literal["pixels", "features"]
    name: str | None = None
    tower: dict[str, Any] | None = None


@dataclass
class _Checksums:
    format: Literal["quintet-checksums"]
    files: dict[str, str]


def shipped_runs() -> dict[str, Path]:
    """Name -> folder. Beside the weights lies a model card: data, results, limits."""
    folder = Path(str(resources.files("quintet") / "pretrained"))
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/run.json"))}


def is_run(path: Path | str) -> bool:
    """Whether it is a run folder, or the name of a run that comes with Quintet.

    >>> is_run("quintet-small"), is_run("sentence-transformers/all-MiniLM-L6-v2")
    (True, False)
    """
    path = user_path(path)
    folder = path if is_there(path) else shipped_runs().get(str(path), path)
    return (folder / "run.json").is_file()


def is_there(path: Path) -> bool:
    """Whether there is anything; a path that the system cannot have (too long, a null byte) is an error."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise RunError(f"could not read {str(path)[:200]}: {getattr(error, 'strerror', None) or error}") from None
    return True


def check_name(path: Path) -> None:
    """Raise where a run could not be written to a path, or could not name it: its files are UTF-8."""
    is_there(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RunError(f"the path {str(path)!r} is not UTF-8, as the files of a run are; rename the folder") from None


def read_head(folder: Path) -> dict[str, Any]:
    """run.json, checked."""
    if is_pretrained(folder):  # a model of transformers, as it was published
        return {"format": FORMAT, "version": VERSION, "name": pretrained_name(folder), "status": "complete"}
    path = folder / "run.json"
    if not is_there(path):
        raise RunError(_no_run(folder))
    head = _read(path)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise RunError(f"{path} is not a Quintet run")
    if isinstance(head.get("version"), int) and head["version"] > VERSION:
        raise RunError(
            f"run {folder} was written by Quintet {head.get('quintet')} (run version {head['version']}); this one is "
            f"{quintet.__version__} and reads up to {VERSION}: update Quintet to use it"
        )
    _check(head, _Head, path)
    for stage in head.get("stages", {}):
        if not re.fullmatch(STAGE_NAME, stage):
            raise RunError(f"{path}: stages: {stage!r} cannot be the name of a stage")
    return head


def _no_run(folder: Path) -> str:
    if (other := foreign_model(folder)) is not None:
        return (
            f"{folder} is not a run but {other}; a dual encoder of transformers (CLIP, SigLIP ...) is opened as "
            f"{PREFIX}{folder}, and other models can be towers of a recipe"
        )
    return f"{folder} is not a run (no run.json); `quintet train RECIPE -o {folder}` makes one" + "".join(
        f", and {name!r} comes with Quintet" for name in shipped_runs()
    )


def pretrained_name(folder: Path) -> str:
    """What people call `hf:NAME`: the last part of the name.

    >>> pretrained_name(Path("hf:openai/clip-vit-base-patch32"))
    'clip-vit-base-patch32'
    """
    return Path(str(folder).removeprefix(PREFIX)).name


def is_begun(folder: Path) -> bool:
    """Whether a run that can be resumed, or is complete, is in the folder."""
    return is_there(folder / "run.json") and read_head(folder)["status"] != "starting"


def read_model(folder: Path) -> dict[str, Any]:
    """model.json, checked: {"name": ..., "arguments": {...}}."""
    return _check(_read(folder / "model.json"), _Model, folder / "model.json")


def read_image_input(folder: Path) -> dict[str, Any]:
    """images.json, checked."""
    path = folder / "images.json"
    images = _check(_read(path), _Images, path)
    name = images.get("name")
    if images["kind"] == "features" and (not name or Path(name).is_absolute() or ".." in Path(name).parts):
        raise RunError(f"{path}: name: {name!r} is not the name of features")
    return images


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except QuintetError as error:
        raise RunError(f"{error}; {_remedy(path.parent)}") from None


def _check(value: Any, shape: type[Any], path: Path) -> dict[str, Any]:
    """The value itself: keys that a shape does not name are kept."""
    try:
        check_shape(value, shape, str(path))
    except QuintetError as error:
        raise RunError(f"{error}; {_remedy(path.parent)}") from None
    return dict(value)


def _remedy(folder: Path) -> str:
    return f"copy the file again from where {folder} came from, or train that run again"


# Checksums


def write_checksums(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write checksums.json for the files that are there. `known`: those of files that are written afterwards."""
    names = [*START_FILES, WEIGHTS]
    names += [str(path.relative_to(folder)) for name in STAGE_FILES for path in sorted(folder.glob(f"stages/*/{name}"))]
    there = checksums(folder, [name for name in names if (folder / name).is_file()])
    write_json(folder / "checksums.json", {"format": "quintet-checksums", "files": {**there, **(known or {})}})


def read_checksums(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the files of a run; empty where the run has none (one of an earlier version)."""
    path = folder / "checksums.json"
    if not is_there(path):
        return {}
    files: dict[str, str] = _check(_read(path), _Checksums, path)["files"]
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise RunError(f"{path}: files: {name!r} is not a file of the run")
    return files


def verify_files(folder: Path, names: Collection[str]) -> None:
    """Raise where one of these files is not the one that was written. What no checksum is known of is left alone."""
    known = read_checksums(folder)
    for name in names:
        if name in known:
            check_file(folder, name, known)


def check_file(folder: Path, name: str, known: Mapping[str, str]) -> str:
    """The checksum of a file, compared with the one that is known of it, if any."""
    try:
        found = file_checksum(folder / name)
    except QuintetError as error:
        raise RunError(f"{error}; {_remedy(folder)}") from None
    if known.get(name, found) != found:
        raise RunError(
            f"{folder / name} is damaged or was changed: it is not the file that was written; {_remedy(folder)}"
        )
    return found


@dataclass
class Verified:
    """What `verify_run` found."""

    folder: Path
    checked: int  # files
    damaged: dict[str, str]  # file -> what is wrong, and what to do
    has_checksums: bool


def verify_run(run: Path | str) -> Verified:
    """Read every file of a run and compare it with its checksum. Nothing is changed."""
    folder, _ = locate(run)
    if is_pretrained(folder):
        raise RunError(f"{folder} is a published model and no run folder: there are no checksums to compare it with")
    damaged: dict[str, str] = {}
    known: dict[str, str] = {}
    names = [name for name in RUN_FILES if is_there(folder / name)]
    readers = {"run.json": read_head, "model.json": read_model, "images.json": read_image_input}
    if "run.json" not in names:
        read_head(folder)  # raises
    try:
        known = read_checksums(folder)
    except QuintetError as error:
        damaged["checksums.json"] = str(error)
    for name in dict.fromkeys([*names, *(() if _is_unfinished(folder) else known)]):
        try:
            if name in readers:
                readers[name](folder)
            check_file(folder, name, {} if name == "run.json" and _is_unfinished(folder) else known)
        except QuintetError as error:
            damaged.setdefault(name, str(error))
    return Verified(folder, len({*names, *known}), damaged, bool(known))


def _is_unfinished(folder: Path) -> bool:
    try:
        return bool(read_head(folder)["status"] != "complete")
    except QuintetError:
        return False


def locate(path: Path | str, stage: str | None = None) -> tuple[Path, str | None]:
    """The run folder and the stage that a path means: a run, a stage of it, or the weights file of either.

    The name of a run that comes with Quintet (see `shipped_runs`) means that one, unless a folder here is called so.
    `hub:OWNER/NAME` is a run on the hub, and means its copy in the cache.
    `hf:NAME` stays itself: a model of transformers stands wherever a run may stand.

    >>> locate("runs/first"), locate("runs/first/stages/online/selected.safetensors")
    ((PosixPath('runs/first'), None), (PosixPath('runs/first'), 'online'))
    """
    if is_pretrained(path):
        if stage is not None:
            raise RunError(f"{path} has no stages; leave stage {stage!r} out")
        return Path(path), None
    if str(path).startswith(HUB):
        path = _hub_folder(str(path).removeprefix(HUB))
    path = user_path(path)
    if not is_there(path):
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


def _hub_folder(name: str) -> Path:
    """A run on the hub, in its cache: safetensors and JSON alone are fetched."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise RunError(f"{HUB}{name} is not {HUB}OWNER/NAME, as models of the hub are called")
    folder = download(name, [*RUN_FILES, "config.json", "modules.json"], "run")
    if not is_there(folder / "run.json"):
        other = foreign_model(folder)
        hint = f"it is {other}; a dual encoder is opened as {PREFIX}{name}" if other else "it has no run.json"
        raise RunError(f"{HUB}{name} is not a run of Quintet: {hint}")
    return folder


def find_weights(folder: Path, stage: str | None) -> Path:
    """The weights file of a finished run, or of one of its stages; checked to be there."""
    if is_pretrained(folder):
        return dual_encoder_files(folder).weights[0]
    if stage is None and read_head(folder)["status"] != "complete":
        raise RunError(
            f"run {folder} has not finished training; go on with `quintet train --resume {folder}`, or name a stage to "
            "open the best weights it has so far"
        )
    weights = folder / "weights.safetensors" if stage is None else folder / "stages" / stage / "selected.safetensors"
    if not is_there(weights):
        raise RunError(f"{weights} does not exist; this run has no such stage, or it has not come that far")
    open_regular(weights).close()  # raises where it is a folder, a FIFO, a link to itself
    return weights


def weights_identity(folder: Path, stage: str | None) -> str:
    """SHA-256 of the weights of a run, or of a stage; of a model in several files, of their checksums."""
    if is_pretrained(folder):
        return dual_encoder_files(folder).identity()
    return file_checksum(find_weights(folder, stage))


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


def training_seed(folder: Path) -> int | None:
    """The seed that a run was trained with; None where no recipe of Quintet trained it."""
    recipe = folder / "recipe.yaml"
    return _field(recipe, "which seed the run was trained with", int, "seed") if recipe.is_file() else None


def _tested_on(recipe: Path) -> str:
    return _field(recipe, "which split the run is tested on", str, "data", "test")


def _field(recipe: Path, what: str, kind: type[T], *path: str) -> T:
    try:
        value = yaml.safe_load(read_bytes(recipe, LARGEST_RECIPE).decode())
        for key in path:
            value = value[key]
        return kind(value)
    except (ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise RunError(f"{recipe} does not say {what} ({'.'.join(path)}): {error}") from None
