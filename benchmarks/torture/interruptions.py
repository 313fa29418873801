"""Kills, power failures and failing file operations in training, mining, extraction, indexing and conversion.

After each: what is read is the earlier state or the later one; the same command, given again, completes with the result
of an uninterrupted one, bit for bit; nothing is left over.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import quintet
from benchmarks.torture import material
from benchmarks.torture.attack import Attack, Ending, Outcome, copy_tree, digest, in_child, left_over
from benchmarks.torture.faults import ERRORS, FileFaults, limit_file_size
from benchmarks.torture.material import Material
from quintet.errors import QuintetError


@dataclass(frozen=True)
class Job:
    """A command in a folder of its own. `begin`: what is there before; `run`: the command; `read`: its result."""

    begin: Callable[[Material, Path], None]
    run: Callable[[Material, Path], Any]
    read: Callable[[Material, Path], Any]
    resume: Callable[[Material, Path], Any] | None = None  # where the command is not simply given again


def _nothing(made: Material, folder: Path) -> None:
    folder.mkdir()


def _corpus(made: Material, folder: Path) -> None:
    copy_tree(made.corpus, folder / "corpus")
    shutil.rmtree(folder / "corpus/features")


def _older_index(made: Material, folder: Path) -> None:
    """An index of half the photos, to be brought up to date."""
    copy_tree(made.index_before, folder / "index")


def _resume(made: Material, folder: Path) -> None:
    try:
        quintet.train(resume=folder / "run", device="cpu")
    except QuintetError:
        if (folder / "run/model.json").exists():  # there is something to resume, and it was refused
            raise
        material.train(folder / "run", made.corpus)


def _read_weights(made: Material, folder: Path) -> str:
    material.read_run(folder / "run")
    return digest((folder / "run/weights.safetensors").read_bytes())


JOBS = {
    "train": Job(_nothing, lambda made, at: material.train(at / "run", made.corpus), _read_weights, _resume),
    "mine": Job(
        _nothing,
        lambda made, at: material.mine(made.run, made.corpus, at / "lists"),
        lambda made, at: material.read_lists(at / "lists", made.corpus),
    ),
    "features": Job(
        _corpus,
        lambda made, at: material.extract(at / "corpus", made.tower),
        lambda made, at: material.read_features(at / "corpus/features/small"),
    ),
    "index": Job(
        _older_index,
        lambda made, at: material.index(made.run, made.images, at / "index"),
        lambda made, at: material.read_index(at / "index"),
    ),
    "convert": Job(
        _nothing,
        lambda made, at: quintet.convert("bfan", made.folder / "model_best.pth.tar", at / "run"),
        lambda made, at: digest((at / "run/weights.safetensors").read_bytes(), material.opened(at / "run")),
    ),
}


@dataclass(frozen=True)
class Measured:
    """An uninterrupted run of a job."""

    before: Any  # what is read before, None where nothing can be
    after: Any
    seconds: float
    operations: int


_measured: dict[str, Measured] = {}


def measure(name: str, made: Material, folder: Path) -> Measured:
    if name not in _measured:
        job = JOBS[name]
        job.begin(made, folder)
        before = in_child(job.read, made, folder)
        ran = in_child(_count_operations, job, made, folder)
        after = in_child(job.read, made, folder)
        if ran.kind != "done" or after.kind != "done":
            raise RuntimeError(f"{name} fails undisturbed: {ran} {after}")
        _measured[name] = Measured(before.value, after.value, ran.seconds, ran.value)
    return _measured[name]


def _count_operations(job: Job, made: Material, folder: Path) -> int:
    faults = FileFaults(folder, None, "", random.Random())
    faults.install()
    job.run(made, folder)
    return faults.count


def _disturbed(job: Job, made: Material, folder: Path, action: str, at: int, seed: int) -> None:
    FileFaults(folder, at, action, random.Random(seed)).install()
    job.run(made, folder)


def _limited(job: Job, made: Material, folder: Path, size: int) -> None:
    limit_file_size(size)
    job.run(made, folder)


def attack(name: str, action: str, rng: random.Random, made: Material, folder: Path) -> Iterator[Outcome]:
    """One disturbance of one job, and what follows."""
    job, usual = JOBS[name], measure(name, made, folder / "undisturbed")
    at = folder / "disturbed"
    job.begin(made, at)
    if action == "kill at a random time":
        ending = in_child(job.run, made, at, kill_after=rng.uniform(0, 1.1 * usual.seconds))
    elif action == "file size limit":
        ending = in_child(_limited, job, made, at, int(2 ** rng.uniform(0, 17)))
    else:
        how = {"kill at a file operation": "kill", "power failure": "power"}.get(action, action)
        ending = in_child(_disturbed, job, made, at, how, rng.randint(1, usual.operations), rng.getrandbits(32))
    yield judge(name, job, usual, made, at, ending)


def judge(name: str, job: Job, usual: Measured, made: Material, at: Path, ending: Ending) -> Outcome:
    meant = ending.told or ending.kind == "killed" or ending.what == "SIGKILL"
    if not meant:
        return ending.lost(name, "where the operation failed")
    now = in_child(job.read, made, at)
    if now.kind == "done" and now.value not in (usual.before, usual.after):
        return Outcome(name, "another result after it")
    if now.kind == "done" and ending.kind == "done" and now.value != usual.after:
        return Outcome(name, "said to be done, and is not")
    if usual.before is not None and now.kind != "done":
        return now.lost(name, "when the earlier result is read")
    if not now.told and not isinstance(now.value, str) and now.what != "FileNotFoundError":
        return now.lost(name, "when it is read")
    again = in_child(job.resume or job.run, made, at)
    if again.kind != "done" and not (job.resume is None and _refuses_finished(again, now, usual)):
        return again.lost(name, "when the command is given again")
    after = in_child(job.read, made, at)
    if after.kind != "done":
        return after.lost(name, "when the result is read")
    if after.value != usual.after:
        return Outcome(name, "another result than undisturbed")
    rest = left_over(at)
    return Outcome(name, "left over", ", ".join(_plain(each) for each in rest[:3])) if rest else Outcome(name)


def _refuses_finished(again: Ending, now: Ending, usual: Measured) -> bool:
    """A command that had finished may say that its output is there already."""
    return again.kind == "refused" and now.kind == "done" and now.value == usual.after


def _plain(name: str) -> str:
    """Without the random part of a temporary name."""
    return "/".join(
        part if ".partial" not in part else "." + part.split(".")[1] + "….partial" for part in name.split("/")
    )


ACTIONS = ("kill at a random time", "kill at a file operation", "power failure", *ERRORS, "file size limit")
ATTACKS: dict[str, Attack] = {f"{action}: {name}": partial(attack, name, action) for action in ACTIONS for name in JOBS}
