"""The searcher that answers now, and its exchange for a newer one while requests are answered."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quintet.errors import QuintetError
from quintet.search.searcher import Searcher

LOG = logging.getLogger("quintet.serve")
LONGEST_PAUSE_S = 60.0


@dataclass(slots=True)
class _Lent:
    searcher: Searcher
    users: int = 0
    retired: bool = False


class Searchers:
    """Lends the current searcher. One that was exchanged is closed when the last who borrowed it is done."""

    def __init__(self, first: Searcher) -> None:
        self._lock = threading.Lock()
        self._current = _Lent(first)
        self.swaps = 0

    @contextmanager
    def lend(self) -> Iterator[Searcher]:
        with self._lock:
            lent = self._current
            lent.users += 1
        try:
            yield lent.searcher
        finally:
            with self._lock:
                lent.users -= 1
                last = lent.retired and lent.users == 0
            if last:
                lent.searcher.close()

    def swap(self, newer: Searcher) -> None:
        """From now on lend `newer`."""
        with self._lock:
            older, self._current = self._current, _Lent(newer)
            self.swaps += 1
        self._retire(older)

    def close(self) -> None:
        """Close the current one as soon as nobody uses it. What is lent from now on is closed."""
        self._retire(self._current)

    def _retire(self, lent: _Lent) -> None:
        with self._lock:
            last = not lent.retired and lent.users == 0
            lent.retired = True
        if last:
            lent.searcher.close()


class IndexWatcher:
    """Looks at `index.json`, which a build replaces last, and opens the index anew whenever it was replaced.

    While the new one is being opened the old one answers. When it cannot be opened (written by another version, its
    store does not answer) the old one goes on, `error` says why, and the attempt is repeated with longer pauses.
    """

    def __init__(self, index: Path, reopen: Callable[[], Searcher], interval_s: float = 1.0) -> None:
        self.error: str | None = None
        self._manifest = index / "index.json"
        self._reopen = reopen
        self._interval_s = interval_s
        self._seen = self._stamp()
        self.searchers = Searchers(reopen())

    async def run(self) -> None:
        """Watch until cancelled."""
        pause = self._interval_s
        while True:
            await asyncio.sleep(pause)
            await asyncio.to_thread(self.look)
            pause = self._interval_s if self.error is None else min(2 * pause, LONGEST_PAUSE_S)

    def look(self) -> bool:
        """Exchange the searcher if there is a newer index; whether it was exchanged."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return False
        try:
            newer = self._reopen()
        except (QuintetError, OSError) as error:
            self.error = str(error)
            LOG.warning("the new index cannot be opened, the old one goes on: %s", error)
            return False
        self.error = None
        self._seen = stamp
        self.searchers.swap(newer)
        LOG.info("now serving generation %s", newer.describe().get("generation"))
        return True

    def _stamp(self) -> tuple[int, int, int] | None:
        """What changes when the file is replaced; taken before opening, so a change meanwhile is seen next time."""
        try:
            facts = self._manifest.stat()
        except OSError:
            return None  # a folder being moved or rebuilt from nothing: the old index goes on
        return facts.st_ino, facts.st_mtime_ns, facts.st_size
