"""Work done ahead in threads, batch by batch, in order: pictures are decoded while the last ones are encoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

BATCHES_AHEAD = 3  # ready and waiting

Item = TypeVar("Item")
Done = TypeVar("Done")


def batches_ahead(
    items: Sequence[Item], work: Callable[[Item], Done], batch_size: int, workers: int
) -> Iterator[tuple[Sequence[Item], list[Done]]]:
    """Batches of items with what `work` made of each (Pillow lets go of the interpreter while it works).

    >>> [done for _, done in batches_ahead([1, 2, 3], lambda n: n * n, batch_size=2, workers=2)]
    [[1, 4], [9]]
    """
    starts = iter(range(0, len(items), batch_size))
    waiting: deque[tuple[Sequence[Item], list[Future[Done]]]] = deque()
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="ahead")
    try:
        while True:
            while len(waiting) < BATCHES_AHEAD and (first := next(starts, None)) is not None:
                chosen = items[first : first + batch_size]
                waiting.append((chosen, [pool.submit(work, item) for item in chosen]))
            if not waiting:
                return
            chosen, futures = waiting.popleft()
            yield chosen, [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)
