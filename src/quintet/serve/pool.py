"""Work that would block the server, in a few threads, with a queue that ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from quintet.errors import QuintetError

T = TypeVar("T")


class BusyError(QuintetError):
    """Too much waits already. The same request may succeed a moment later."""


class TooSlowError(QuintetError):
    """The work took longer than anybody waits for it."""


class WorkPool:
    """At most `threads` pieces of work at once and `queue` waiting; one more raises `BusyError` at once."""

    def __init__(self, name: str, threads: int, queue: int, timeout_s: float) -> None:
        self.name = name
        self._limit = threads + queue
        self._timeout_s = timeout_s
        self._pending = 0  # waiting or running
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"quintet-{name}")

    @property
    def pending(self) -> int:
        return self._pending

    async def run(self, work: Callable[[], T]) -> T:
        """The work's result or its error; `TooSlowError` when neither came in time.

        Work that nobody waits for any longer keeps its place until it ends: a thread cannot be stopped, and a stuck
        store should fill this queue rather than the memory. Work that had not begun is dropped.
        """
        with self._lock:
            if self._pending >= self._limit:
                raise BusyError(f"{self._pending} requests wait already; ask again in a moment")
            self._pending += 1
        future = self._executor.submit(work)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), self._timeout_s)
        except TimeoutError:
            if future.done():
                return future.result()  # it ended in the same moment, or the work raised a TimeoutError of its own
            future.cancel()
            raise TooSlowError(f"there was no answer within {self._timeout_s:g} s; ask again later") from None

    def _done(self, future: Future[T]) -> None:
        with self._lock:
            self._pending -= 1

    def close(self) -> None:
        """Wait for what runs, drop what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)
