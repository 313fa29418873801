"""`Result`: numbers with everything needed to judge and to repeat them."""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

import quintet
from quintet.data.corpus import split_checksum as split_checksum
from quintet.errors import QuintetError
from quintet.evaluation.metrics import Metrics
from quintet.evaluation.ranks import Ranks
from quintet.evaluation.significance import Interval
from quintet.files import atomic_write, write_json

FORMAT, VERSION = "quintet-result", 1
_RANK_FIELDS = ("image_groups", "text_groups", "pair_image", "pair_text", "pair_i2t", "pair_t2i")


@dataclass(frozen=True)
class Result:
    """One measurement: a matcher or an ensemble on a split, under a protocol."""

    protocol: str
    split: str
    split_checksum: str  # of the ids and groups, in order: two results with the same one are comparable
    members: tuple[str, ...]  # one name: a single model; several: an ensemble
    metrics: Metrics
    intervals: dict[str, Interval]  # 95 % bootstrap; empty where none was asked for
    chance: Metrics
    counts: dict[str, Any]
    settings: dict[str, Any]  # block, bootstrap, seed, device
    ranks: tuple[Ranks, ...]  # one a fold

    @property
    def kind(self) -> str:
        return "single model" if len(self.members) == 1 else f"ensemble of {len(self.members)}"

    def to_json(self) -> dict[str, Any]:
        """Everything but the ranks, as JSON values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "members": list(self.members),
            "protocol": self.protocol,
            "split": self.split,
            "split_checksum": self.split_checksum,
            "metrics": self.metrics,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "chance": self.chance,
            "counts": self.counts,
            "settings": self.settings,
        }

    def save_ranks(self, path: Path | str) -> None:
        """The rank of every positive pair in both directions as one .npz file, complete or absent."""
        arrays = {
            f"fold{k}_{name}": getattr(ranks, name) for k, ranks in enumerate(self.ranks) for name in _RANK_FIELDS
        }
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)


def load_ranks(path: Path | str) -> tuple[Ranks, ...]:
    """What `Result.save_ranks` wrote: the ranks of each fold, for a paired test without scoring again."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            folds = max(1, len(arrays.files) // len(_RANK_FIELDS))
            return tuple(Ranks(*(arrays[f"fold{k}_{name}"] for name in _RANK_FIELDS)) for k in range(folds))
    except FileNotFoundError:
        raise QuintetError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise QuintetError(f"{path} does not hold ranks saved by Quintet: {error}") from None


def provenance() -> dict[str, Any]:
    """How this process was started, with what, on what."""
    versions = {"quintet": quintet.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "command": _command(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {**versions, "python": platform.python_version()},
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _command() -> str:
    """As it was typed: an installed program without the folder of the environment that it happens to be in."""
    program, *arguments = sys.argv or [""]
    return shlex.join([Path(program).name if Path(program).is_absolute() else program, *arguments])


def write_result(path: Path | str, result: Result, **more: Any) -> None:
    """One JSON file, complete or absent: the result, how it was made, and what the caller adds.

    Callers add what a result cannot know: `corpus` (name), `runs` (names and checksums of their weights), `recipe`.
    """
    write_json(path, {**result.to_json(), "provenance": {**provenance(), **more}})
