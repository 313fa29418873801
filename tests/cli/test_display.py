from __future__ import annotations

import io

from rich.console import Console

from quintet.cli.progress import TrainingDisplay, _shown


def test_brackets_in_names_are_shown_and_not_obeyed() -> None:
    screen = io.StringIO()
    display = TrainingDisplay(Console(file=screen, width=200))
    display.note("no features for 'a[/b].jpg'")
    display.info("mined with [red]run")
    assert screen.getvalue() == "warning: no features for 'a[/b].jpg'\nmined with [red]run\n"


def test_what_is_only_watched_is_not_added_to_the_loss() -> None:
    assert _shown({"instance.image": 1.0, "instance.text": 2.0, "instance.image_error": 9.0, "a.gap_online": 9.0}) == (
        "loss 3.000"
    )
