from __future__ import annotations

import pytest

from quintet.search import StoreError, StoreUnavailable
from quintet.search.stores.store import ATTEMPTS, RetryPolicy


class Clock:
    """Stands for `time`: it goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("quintet.search.stores.store.time", clock)
    return clock


class Line:
    """Answers at the given attempt; each failure takes `seconds`."""

    def __init__(self, clock: Clock, answers_at: int, seconds: float = 0.0) -> None:
        self.clock, self.answers_at, self.seconds = clock, answers_at, seconds
        self.calls: list[tuple[float, float]] = []

    def __call__(self, left: float) -> str:
        self.calls.append((self.clock.now, left))
        if len(self.calls) < self.answers_at:
            self.clock.sleep(self.seconds)
            raise ConnectionError("refused\nand a long trace")
        return "answer"


def test_an_error_that_passes_is_not_seen(clock: Clock) -> None:
    line = Line(clock, 3)
    assert RetryPolicy("x", timeout=5).call(line, (ConnectionError,)) == "answer"
    (first, left), (second, _), (third, later) = line.calls
    assert 0.1 <= round(second - first, 6) < third - second  # pauses grow
    assert later < left == 5


def test_attempts_are_limited(clock: Clock) -> None:
    line = Line(clock, 99)
    with pytest.raises(StoreUnavailable, match=r"at x .*5 attempts"):
        RetryPolicy("x", timeout=60).call(line, (ConnectionError,))
    assert len(line.calls) == ATTEMPTS


def test_time_is_limited(clock: Clock) -> None:
    line, began = Line(clock, 99, seconds=0.3), clock.now
    with pytest.raises(StoreUnavailable, match="did not answer"):
        RetryPolicy("x", timeout=0.7).call(line, (ConnectionError,))
    assert len(line.calls) == 2  # 0.3 s, a pause of 0.1 s, 0.3 s; a third would come too late
    assert clock.now - began <= 0.71


def test_an_error_that_will_not_pass_is_told_at_once(clock: Clock) -> None:
    line = Line(clock, 99)
    with pytest.raises(StoreError, match="x refused: refused") as caught:
        RetryPolicy("x").call(line, (ConnectionError,), may_pass=lambda error: False)
    assert not isinstance(caught.value, StoreUnavailable)
    assert len(line.calls) == 1
