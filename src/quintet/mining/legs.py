"""Where the time goes, leg by leg, without making the device wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Legs:
    """`with legs("product"): ...` adds up the time of each named leg; switched off (`device` None) it does nothing."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self.device is None:
            yield
        elif self.device.type == "cuda":
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record()
            yield
            ended.record()
            self._events.append((name, began, ended))
        else:
            start = time.perf_counter()
            yield
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        if self._events:
            torch.cuda.synchronize()
        for name, began, ended in self._events:
            self._seconds[name] = self._seconds.get(name, 0.0) + began.elapsed_time(ended) / 1000
        self._events.clear()
        return dict(self._seconds)
