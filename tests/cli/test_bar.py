from __future__ import annotations

import io
import time

from rich.console import Console

from quintet.cli.bar import work_bar


def drawn(steps: list[tuple[int, int]], *, terminal: bool = True, wait: float = 0.0) -> str:
    """The bar as it was drawn last."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    with work_bar(console, "indexing", "items") as progress:
        time.sleep(wait)  # a matcher is loaded
        for step in steps:
            progress(*step)
            time.sleep(0.02)
    assert isinstance(console.file, io.StringIO)
    return next((line for line in reversed(console.file.getvalue().splitlines()) if "indexing" in line), "")


def test_it_says_how_much_is_done_how_fast_and_how_long_it_takes() -> None:
    last = drawn([(10, 40), (20, 40), (30, 40)])
    assert "30/40" in last
    assert "items/s" in last
    assert "left 0:00:0" in last


def test_neither_what_was_done_before_nor_the_start_counts_for_the_rate() -> None:
    last = drawn([(1000, 1002), (1001, 1002), (1002, 1002)], wait=0.5)
    rate = float(last.partition(" items/s")[0].split()[-1])
    assert 10 < rate < 110  # 2 in 60 ms or more; with the start 4, with what was done before thousands


def test_where_nobody_watches_nothing_is_drawn() -> None:
    assert drawn([(1, 2), (2, 2)], terminal=False) == ""
