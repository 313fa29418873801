from __future__ import annotations

import time

import pytest

from quintet.search.errors import StoreError, StoreUnavailable
from quintet.search.stores.patience import ATTEMPTS, Patience


class Line:
    """Answers at the given attempt; each failure takes `seconds`."""

    def __init__(self, answers_at: int, seconds: float = 0.0) -> None:
        self.answers_at, self.seconds, self.calls = answers_at, seconds, []

    def __call__(self, left: float) -> str:
        self.calls.append((time.monotonic(), left))
        if len(self.calls) < self.answers_at:
            time.sleep(self.seconds)
            raise ConnectionError("refused\nand a long trace")
        return "answer"


def test_an_error_that_passes_is_not_seen() -> None:
    line = Line(3)
    assert Patience("x", timeout=5).persist(line, (ConnectionError,)) == "answer"
    (first, left), (second, _), (third, later) = line.calls
    assert 0.1 <= second - first < third - second  # pauses grow
    assert later < left <= 5


def test_attempts_are_limited() -> None:
    line = Line(99)
    with pytest.raises(
        StoreUnavailable, match=r"the store at x did not answer \(5 attempts .*: refused; is the server"
    ):
        Patience("x", timeout=60).persist(line, (ConnectionError,))
    assert len(line.calls) == ATTEMPTS


def test_time_is_limited() -> None:
    line, began = Line(99, seconds=0.3), time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not answer"):
        Patience("x", timeout=0.7).persist(line, (ConnectionError,))
    assert len(line.calls) <= 2
    assert time.monotonic() - began < 2


def test_an_error_that_will_not_pass_is_told_at_once() -> None:
    line = Line(99)
    with pytest.raises(StoreError, match="the store at x refused: refused") as caught:
        Patience("x").persist(line, (ConnectionError,), passing=lambda error: False)
    assert not isinstance(caught.value, StoreUnavailable)
    assert len(line.calls) == 1
