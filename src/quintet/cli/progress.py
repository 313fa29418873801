"""Progress bars of long commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


@contextmanager
def work_bar(console: Console, description: str, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar with a rate; gives a function of (done, total). Nothing is drawn where there is no terminal."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(description, total=None, start=False)

        def progress(done: int, total: int | None) -> None:
            # Items of an earlier run do not count for the rate: the clock starts at the first call.
            if not bar.tasks[task].started:
                bar.start_task(task)
                bar.update(task, started=done)
            bar.update(task, completed=done, total=total)

        yield progress


class TimeColumn(TimeRemainingColumn):
    """How long it still takes; of a finished bar, how long it took."""

    def __init__(self) -> None:
        super().__init__(elapsed_when_finished=True)

    def render(self, task: Task) -> Text:
        return Text.assemble("took " if task.finished else "left ", super().render(task))


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        done = task.completed - task.fields.get("started", 0)
        rate = done / task.elapsed if task.elapsed and done else None
        return Text(f"{rate:.1f} {self.unit}/s" if rate else "", style="progress.data.speed")


class TrainingDisplay:
    """A progress bar for the stage with its loss, and a line per epoch. Without a terminal only the lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeColumn(),
            TextColumn("{task.fields[loss]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", visible=False, loss="")
        self._epochs = 0
        self._last: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, name: str, epochs: int, steps: int, done: int) -> None:
        self._epochs = epochs
        self._progress.reset(self._task, total=steps, completed=done, description=f"stage {escape(name)}", visible=True)
        at = f", resumed at step {done}" if done else ""
        self.console.print(f"[bold]stage {escape(name)}[/]: {epochs} epochs, {steps} steps{at}")

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self._last = losses
        shown = _shown(losses)
        self._progress.update(self._task, completed=done, loss=f"{shown}  lr {lr:.1e}")

    def epoch(self, epoch: int, metrics: dict[str, float], best: bool) -> None:
        self.console.print(
            f"  epoch {epoch:>3}/{self._epochs}  {_shown(self._last)}  validation rsum {metrics['rsum']:6.1f}  "
            f"R@1 {metrics['i2t_r1']:.1f} / {metrics['t2i_r1']:.1f}{'  best' if best else ''}",
            highlight=False,
        )

    def info(self, message: str) -> None:
        self.console.print(message, highlight=False, markup=False)

    def note(self, message: str) -> None:
        self.console.print(f"[yellow]warning:[/] {escape(message)}")


def _shown(losses: dict[str, float]) -> str:
    """The terms of one loss without its name; of more than three only the sum (the log has all)."""
    if len(losses) > 3:
        return f"loss {sum(losses.values()):.3f}"
    return "  ".join(f"{name.rpartition('.')[2]} {value:.3f}" for name, value in losses.items())
