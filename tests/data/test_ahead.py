from __future__ import annotations

import threading
import time

import pytest

from quintet.data.loading import BATCHES_AHEAD, batches_ahead


def test_order_is_kept_however_long_each_takes() -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return -number

    found = list(batches_ahead(list(range(10)), work, batch_size=3, workers=4))
    assert [list(items) for items, _ in found] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [number for _, done in found for number in done] == [-number for number in range(10)]


def test_only_a_few_batches_are_ahead() -> None:
    started: list[int] = []
    batches = batches_ahead(list(range(100)), started.append, batch_size=2, workers=2)
    next(batches)
    time.sleep(0.05)
    assert len(started) <= 2 * (BATCHES_AHEAD + 1)
    batches.close()  # type: ignore[attr-defined]


def test_an_error_comes_out_and_the_threads_end() -> None:
    def work(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        list(batches_ahead([1, 0, 2], work, batch_size=1, workers=1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
