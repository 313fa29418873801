"""Asking a server: again when it does not answer, with growing pauses, and never longer than was said."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from quintet.search.errors import StoreError, StoreUnavailable

T = TypeVar("T")
ATTEMPTS = 5
FIRST_PAUSE = 0.1  # seconds; each pause is twice the one before
TIMEOUT = 30.0  # seconds, of one operation with all its attempts


@dataclass(frozen=True)
class RetryPolicy:
    """`address` is for the message, without a password."""

    address: str
    timeout: float = TIMEOUT

    def call(
        self,
        action: Callable[[float], T],
        errors: tuple[type[Exception], ...],
        may_pass: Callable[[Exception], bool] = lambda error: True,
        timeout: float | None = None,
    ) -> T:
        """Call `action(seconds left)`. An error that may pass is tried again; others are told at once."""
        began = time.monotonic()
        deadline = began + (self.timeout if timeout is None else timeout)
        for attempt in range(ATTEMPTS):
            try:
                return action(deadline - time.monotonic())
            except errors as error:
                if not may_pass(error):
                    raise StoreError(f"the store at {self.address} refused: {first_line(error)}") from error
                pause, last = FIRST_PAUSE * 2**attempt, error
            if attempt + 1 == ATTEMPTS or time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        raise StoreUnavailable(
            f"the store at {self.address} did not answer ({attempt + 1} attempts in {time.monotonic() - began:.1f} s): "
            f"{first_line(last)}; is the server running, and is the address right?"
        ) from last


def checked_timeout(value: float | str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise StoreError(f"timeout is a number of seconds above 0, not {value!r:.80}")
    return seconds


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
