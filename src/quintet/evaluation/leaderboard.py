"""A folder of result files as a leaderboard: `add_results` checks files, copies them there, and writes the table.

A file is one of `quintet evaluate -o`, of a study's `results/`, or of a row of a grid of `benchmarks.measure.flickr8k`.
It must say on what split it was measured, by which code, on what device, and with which seed the run was trained.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError
from quintet.files import MARK, check_output, check_shape, json_text, output_text, read_json, user_path
from quintet.locks import folder_lock

RECALLS = tuple(f"{way}_r{cut}" for way in ("i2t", "t2i") for cut in (1, 5, 10))
TABLE = "leaderboard.md"
AGAIN = "make it again with this version of Quintet"


@dataclass(frozen=True)
class Entry:
    """A line of the leaderboard: one result file."""

    file: str
    members: tuple[str, ...]
    seeds: tuple[int | None, ...]  # of the members' training; None: not trained by a recipe
    weights: tuple[str, ...]  # SHA-256 of each member
    protocol: str
    split: str
    split_checksum: str
    metrics: dict[str, float]  # the six recalls and rsum
    device: str
    code: str  # the commit, or the checksum of the package's sources

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two results the same one."""
        return self.split_checksum, self.protocol, tuple(sorted(self.weights))


@dataclass(frozen=True)
class Leaderboard:
    """The results of a folder, best first. `print(board.table())` shows them."""

    folder: Path
    entries: tuple[Entry, ...]

    def table(self) -> str:
        """As Markdown."""
        columns = ("", "run", "seed", "rsum", "i2t R@1", "t2i R@1", "device", "code")
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        for place, entry in enumerate(self.entries, 1):
            seeds = ", ".join("-" if seed is None else str(seed) for seed in entry.seeds)
            numbers = [f"{entry.metrics[name]:.1f}" for name in ("rsum", "i2t_r1", "t2i_r1")]
            cells = [str(place), _cell(" + ".join(entry.members)), seeds, *numbers, _cell(entry.device)]
            commit, plus, changed = entry.code.partition("+")  # "+changed": with changes that the commit does not have
            lines.append("| " + " | ".join([*cells, _cell(commit[:12] + plus + changed)]) + " |")
        return "\n".join(lines)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]


@dataclass
class _Code:
    sources_sha256: str
    commit: str | None = None


@dataclass
class _Machine:
    accelerator: str | None
    processor: str | None = None


@dataclass
class _Run:
    name: str
    weights_sha256: str
    seed: int | None


@dataclass
class _Provenance:
    code: _Code
    machine: _Machine
    runs: list[_Run]


@dataclass
class _File:
    """What is read of a result file."""

    members: list[str]
    protocol: str
    split: str
    split_checksum: str
    metrics: dict[str, float]
    settings: dict[str, Any]
    provenance: _Provenance


def add_results(files: Path | str | Sequence[Path | str], *, folder: Path | str = "results") -> Leaderboard:
    """Check result files, copy them into a folder and write its leaderboard.md. All of them, or none.

    A folder holds results on one split under one protocol. A result of other texts or images, one that is there
    already (the same weights), and one that does not say how it was made are refused.
    """
    given = [files] if isinstance(files, Path | str) else list(files)
    if not given:
        raise QuintetError("name at least one result file")
    folder = user_path(folder)
    if folder.exists() and not folder.is_dir():
        raise QuintetError(f"{folder} is a file; the results go into a folder")
    with folder_lock(folder, "adding results"):
        return _add(given, folder)


def _add(given: Sequence[Path | str], folder: Path) -> Leaderboard:
    known = [read_entry(path) for path in sorted(folder.glob("*.json"))]
    new: dict[Path, tuple[Entry, Any]] = {}
    for path in map(user_path, given):
        entry = read_entry(path)
        for other in known:
            _check_same_question(entry, other)
            if entry.key == other.key:
                raise QuintetError(
                    f"{path} is in {folder} already, as {other.file}: the same weights on the same split"
                )
        code = hashlib.sha256(repr(entry.key).encode()).hexdigest()[:12]
        name = f"{re.sub(r'[^A-Za-z0-9._-]+', '_', '+'.join(entry.members))[:80]}-{code}.json"
        known.append(entry)
        new[folder / name] = entry, read_json(path)
    for target in (*new, folder / TABLE):
        check_output(target)
    for target, (_, content) in new.items():
        output_text(target, json_text(content))
    board = Leaderboard(folder, tuple(_ranked(read_entry(path) for path in folder.glob("*.json"))))
    output_text(folder / TABLE, f"<!-- {MARK} -->\n{board.table()}\n")
    return board


def read_entry(path: Path) -> Entry:
    """A result file, checked."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise QuintetError(f"{path} is not a result file")
    if isinstance(content.get("results"), dict) and "metrics" not in content:
        raise QuintetError(f"{path} holds several results; evaluate one run, or one ensemble, into each file")
    found = check_shape(_with_runs(content), _File, f"{path} cannot be compared with others ({AGAIN})")
    values = [found.metrics.get(name, math.nan) for name in (*RECALLS, "rsum")]
    if not all(0 <= value <= 100 for value in values[:-1]) or not abs(sum(values[:-1]) - values[-1]) < 0.01:
        raise QuintetError(f"{path}: the metrics are not six recalls in per cent and their sum, rsum")
    made = found.provenance
    if not made.runs or not found.members:
        raise QuintetError(f"{path} names no run that was measured; {AGAIN}")
    device = str(found.settings.get("device") or "")
    if not device:
        raise QuintetError(f"{path} does not say on what device it was measured; {AGAIN}")
    return Entry(
        file=path.name,
        members=tuple(found.members),
        seeds=tuple(run.seed for run in made.runs),
        weights=tuple(run.weights_sha256 for run in made.runs),
        protocol=found.protocol,
        split=found.split,
        split_checksum=found.split_checksum,
        metrics=dict(zip((*RECALLS, "rsum"), values, strict=True)),
        device=device if device == "cpu" else made.machine.accelerator or device,
        code=made.code.commit or made.code.sources_sha256,
    )


def _with_runs(content: dict[str, Any]) -> dict[str, Any]:
    """Rows of a grid have their runs and their seed outside of the provenance."""
    made = content.get("provenance")
    if isinstance(made, dict) and "runs" not in made and isinstance(content.get("runs"), list):
        seed = {"seed": content["seed"]} if "seed" in content else {}
        runs = [seed | run if isinstance(run, dict) else run for run in content["runs"]]
        content = content | {"provenance": made | {"runs": runs}}
    return content


def _check_same_question(entry: Entry, other: Entry) -> None:
    if entry.split_checksum != other.split_checksum:
        raise QuintetError(
            f"{entry.file} was measured on other images or texts than {other.file}: split {entry.split!r} with "
            f"checksum {entry.split_checksum[:12]}, there {other.split!r} with {other.split_checksum[:12]}; "
            "use another folder"
        )
    if entry.protocol != other.protocol:
        raise QuintetError(
            f"{entry.file} is of the protocol {entry.protocol!r}, {other.file} of {other.protocol!r}; "
            "use another folder"
        )


def _ranked(entries: Any) -> list[Entry]:
    return sorted(entries, key=lambda entry: (-entry.metrics["rsum"], entry.file))


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
