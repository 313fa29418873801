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


def test_of_many_terms_the_sum_is_shown() -> None:
    assert _shown({"instance.image": 1.0, "instance.text": 2.0}) == "image 1.000  text 2.000"
    assert _shown({"a.one": 1.0, "a.two": 2.0, "b.one": 3.0, "b.one_error": 4.0}) == "loss 10.000"
