"""What a run writes down while it trains: JSON lines always, TensorBoard where it is installed."""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol

from quintet.files import write_jsonl


class Display(Protocol):
    """Who watches a run. The command line draws a live display; a library caller may pass nothing.

    `info` is what is going on, `note` is something to look into.
    """

    def stage(self, name: str, epochs: int, steps: int, done: int) -> None: ...
    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None: ...
    def epoch(self, epoch: int, metrics: dict[str, float], best: bool) -> None: ...
    def info(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...


class Silent:
    """The display that shows nothing."""

    def stage(self, name: str, epochs: int, steps: int, done: int) -> None: ...
    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None: ...
    def epoch(self, epoch: int, metrics: dict[str, float], best: bool) -> None: ...
    def info(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...


class Window:
    """Means of the terms since the last log line; part of the checkpoint, so that a resumed log has the same lines."""

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


class Log:
    """`log.jsonl` of a stage, and its TensorBoard twin. Lines later than the step resumed from are dropped."""

    def __init__(self, folder: Path, resumed_step: int | None = None) -> None:
        self._path = folder / "log.jsonl"
        if self._path.exists():
            kept = [
                row for row in _complete_rows(self._path) if resumed_step is not None and row["step"] <= resumed_step
            ]
            write_jsonl(self._path, kept)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        self._board = _board(folder / "tensorboard", resumed_step)

    def write(self, kind: str, step: int, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def _complete_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log whose last line a kill may have cut short."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _board(folder: Path, resumed_step: int | None) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=0 if resumed_step is None else resumed_step + 1)
