from __future__ import annotations

import io

from rich.console import Console

from quintet.cli.progress import work_bar


def drawn(steps: list[tuple[int, int]], *, terminal: bool = True, wait: float = 0.0) -> str:
    """The bar as it was drawn last, by a clock that goes on by two seconds a step."""
    now = 0.0
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None, get_time=lambda: now)
    with work_bar(console, "indexing", "items") as progress:
        now += wait  # a matcher is loaded
        for step in steps:
            progress(*step)
            now += 2
    assert isinstance(console.file, io.StringIO)
    return next((line for line in reversed(console.file.getvalue().splitlines()) if "indexing" in line), "")


def test_it_says_how_much_is_done_how_fast_and_how_long_it_takes() -> None:
    last = drawn([(10, 40), (20, 40), (30, 40)])
    assert "30/40" in last
    assert "3.3 items/s" in last  # 20 in six seconds
    assert "left 0:00:0" in last


def test_neither_what_was_done_before_nor_the_start_counts_for_the_rate() -> None:
    last = drawn([(1000, 1008), (1004, 1008), (1008, 1008)], wait=50)
    assert "took 0:00:0" in last
    assert " 1.3 items/s" in last  # 8 in six seconds; with the start 0.1, with what was done before 168


def test_where_nobody_watches_nothing_is_drawn() -> None:
    assert drawn([(1, 2), (2, 2)], terminal=False) == ""
