"""The log of a server: one line a record, and no more lines than a disk can take, whatever clients send."""

from __future__ import annotations

import logging
import threading
import time

PER_MINUTE = 20  # records of one line of code
LONGEST = 4000  # characters of a record


class Throttle(logging.Filter):
    """Passes so many records a minute of each line of code; the next one says how many were left out."""

    def __init__(self, per_minute: int = PER_MINUTE) -> None:
        super().__init__()
        self._per_minute = per_minute
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}  # line -> start of its minute, records since

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = (record.pathname, record.lineno), time.monotonic()
        with self._lock:
            began, count = self._seen.get(line, (now, 0))
            left_out = 0
            if now - began >= 60:
                began, count, left_out = now, 0, count - self._per_minute
            self._seen[line] = began, count + 1
        if left_out > 0:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more of these were not logged)", ()
        return count < self._per_minute


class OneLine(logging.Formatter):
    """Without control characters, which could forge lines or reach a terminal; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        text = super().formatMessage(record)
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:LONGEST])
        return shown + ("…" if len(text) > LONGEST else "")


def log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(Throttle())
    logging.basicConfig(handlers=[handler])
