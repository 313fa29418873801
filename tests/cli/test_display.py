from __future__ import annotations

import io

from rich.console import Console

from quintet.cli.display import TrainingDisplay


def test_brackets_in_names_are_shown_and_not_obeyed() -> None:
    screen = io.StringIO()
    display = TrainingDisplay(Console(file=screen, width=200))
    display.note("no features for 'a[/b].jpg'")
    display.info("mined with [red]run")
    assert screen.getvalue() == "warning: no features for 'a[/b].jpg'\nmined with [red]run\n"
