"""What a stage reports while it trains: a display, log lines, and warnings of NaN and of a collapsed loss."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from quintet.errors import QuintetError, RunError, TrainingError
from quintet.files import read_bytes, write_jsonl

LARGEST_LOG = 2**30  # bytes
PATIENCE = 100  # optimizer steps in a row at the collapse value
TOLERANCE = 0.01  # relative


class Display(Protocol):
    """Shows the progress of a run: the command line draws one, a library caller may pass none.

    `step` is given the mean of every term that has a weight. `info` says what is going on; `note` what needs attention.
    """

    def stage(self, name: str, epochs: int, steps: int, done: int) -> None: ...
    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None: ...
    def epoch(self, epoch: int, metrics: dict[str, float], best: bool) -> None: ...
    def info(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...


class Silent:
    """A display that shows nothing."""

    def stage(self, name: str, epochs: int, steps: int, done: int) -> None: ...
    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None: ...
    def epoch(self, epoch: int, metrics: dict[str, float], best: bool) -> None: ...
    def info(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...


class Window:
    """Means of the loss terms since the last log line. The checkpoint holds it, so a resumed log has the same lines."""

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        self.sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0], sums or {})

    def add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.sums[name][0] += value
            self.sums[name][1] += 1

    def take(self) -> dict[str, float]:
        means = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums.clear()
        return means


def refuse_not_finite(losses: dict[str, float], where: str) -> None:
    """Raise when a term is NaN or infinite. Nothing was saved since it became so."""
    bad = [name for name, value in losses.items() if not math.isfinite(value)]
    if bad:
        raise TrainingError(
            f"{bad[0]!r} became {losses[bad[0]]} at {where}. Try a lower learning rate, gradient "
            "clipping (clip: 2.0), or float32 instead of bfloat16. The last checkpoint is from before this step"
        )


class CollapseWatch:
    """Counts the steps in a row on which every term has its collapse value (see `Term`)."""

    def __init__(self, count: int = 0) -> None:
        self.count = count  # part of the checkpoint

    def look(self, collapse_values: dict[str, float | None], means: dict[str, float]) -> str | None:
        """A message when that has gone on for `PATIENCE` steps; it is given once."""
        known = {name: value for name, value in collapse_values.items() if value is not None}
        stuck = bool(known) and all(abs(means[name] - value) <= TOLERANCE * value for name, value in known.items())
        self.count = self.count + 1 if stuck else 0
        if self.count != PATIENCE:
            return None
        return (
            f"the loss has stood at the margin for {PATIENCE} steps (2 x batch x margin in sum): all scores are "
            "equal, the matcher has collapsed. Try warmup_epochs (gentler negatives first), warmup: softmax, a lower "
            "learning rate, warmup_steps, or a smaller batch"
        )


class Log:
    """Writes `log.jsonl` of a stage, and TensorBoard files where TensorBoard is installed.

    Lines later than the step that is resumed from are dropped.
    """

    def __init__(self, folder: Path, resumed_step: int | None = None) -> None:
        self._path = folder / "log.jsonl"
        if os.path.lexists(self._path):
            kept = [
                row for row in _complete_rows(self._path) if resumed_step is not None and row["step"] <= resumed_step
            ]
            write_jsonl(self._path, kept)
        with self._os_errors():
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
            self._board = _board(folder / "tensorboard", resumed_step)

    def write(self, kind: str, step: int, **values: Any) -> None:
        with self._os_errors():
            self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._file.flush()
            if self._board is not None:
                for name, value in values.items():
                    if isinstance(value, int | float):
                        self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        with self._os_errors():
            self._file.close()
            if self._board is not None:
                self._board.close()

    @contextmanager
    def _os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"could not write {self._path}: {error.strerror or error}; make room and resume") from error


def _complete_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log. A kill may have cut the last line short; it is left out."""
    try:
        content = read_bytes(path, LARGEST_LOG)
        rows = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].decode().split("\n")[:-1]]
        return [row | {"step": int(row["step"])} for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, QuintetError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it to go on without its earlier lines") from None


def _board(folder: Path, resumed_step: int | None) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=0 if resumed_step is None else resumed_step + 1)
