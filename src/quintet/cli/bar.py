"""A bar for work that is counted: how much is done, how fast, how long it will take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


@contextmanager
def work_bar(console: Console, description: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function of (done, total). Where nobody watches, nothing is drawn."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        _Rate(unit),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(description, total=None, start=False)

        def progress(done: int, total: int) -> None:
            # What an earlier run did must not count as speed: the clock starts at the first call.
            if not bar.tasks[task].started:
                bar.start_task(task)
                bar.update(task, started=done)
            bar.update(task, completed=done, total=total)

        yield progress


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        done = task.completed - task.fields.get("started", 0)
        rate = done / task.elapsed if task.elapsed and done else None
        return Text(f"{rate:.1f} {self.unit}/s" if rate else "", style="progress.data.speed")
