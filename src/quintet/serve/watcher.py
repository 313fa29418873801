"""The searcher in use, exchanged for a newer index while it is used, and the watch over the index's files."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quintet.errors import QuintetError
from quintet.search.index_folder import Manifest
from quintet.search.searcher import Searcher

LOG = logging.getLogger("quintet.serve")
LONGEST_PAUSE_S = 60.0
STUCK_S = 60.0  # a look at the files that takes longer: the disk or network folder does not answer

Stamp = tuple[int, int, int] | None  # of a file: inode, time of change, size


@dataclass(slots=True)
class _Lent:
    searcher: Searcher
    users: int = 0
    retired: bool = False


class Searchers:
    """Lends the current searcher. A replaced one is closed when its last user is done."""

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
        """Lend `newer` from now on."""
        with self._lock:
            older, self._current = self._current, _Lent(newer)
            self.swaps += 1
        self._retire(older)

    def close(self) -> None:
        """Close the current searcher when its last user is done. A searcher that is lent later is closed."""
        self._retire(self._current)

    def _retire(self, lent: _Lent) -> None:
        with self._lock:
            last = not lent.retired and lent.users == 0
            lent.retired = True
        if last:
            lent.searcher.close()


class IndexWatcher:
    """Polls the files of an index, and opens it again when its database holds a newer generation.

    The database grows all through a build, so its generation is read once it has stayed unchanged between two polls.

    The old searcher answers until the new one is open. While the index is missing, damaged or cannot be opened, for
    whatever reason, the old searcher stays in use and `error` says why. Opening is tried again when a file changes, and
    with longer and longer pauses when none does.
    """

    def __init__(self, index: Path, reopen: Callable[[], Searcher], interval_s: float = 1.0) -> None:
        self._index = index
        self._reopen = reopen
        self._interval_s = interval_s
        self._error: str | None = None
        self._looked = time.monotonic()
        self._seen = self._before = self._stamps()
        self._tried: list[Stamp] | None = None  # the files that were opened last, or could not be, ...
        self._pause, self._again = interval_s, 0.0  # ... and the pause until they are tried again
        self._doubt: str | None = None  # why the searcher in use may read damaged files
        self._files: dict[Path, Stamp] = {}
        self.searchers = Searchers(reopen())
        with self.searchers.lend() as first:
            self._files = _files_of(first)

    @property
    def error(self) -> str | None:
        """Why the index in the folder is not the one that is served, or None."""
        if time.monotonic() - self._looked > STUCK_S + self._interval_s:
            return f"the files of {self._index} have not answered for {STUCK_S:.0f} s; is the disk still connected?"
        return self._error

    def doubt(self, error: Exception) -> None:
        """A search failed because of the index: open it again at the next look."""
        self._doubt = str(error)
        self._error = self._error or self._doubt

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.to_thread(self.look)

    def look(self) -> bool:
        """Replace the searcher if there is a newer index. Returns whether it was replaced."""
        stamps, before = self._stamps(), self._before
        self._before = stamps
        try:
            return self._look(stamps, before)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # a library written in Rust may raise more than Exceptions
            self._postpone(stamps)
            expected = isinstance(error, QuintetError)
            self._tell(str(error) if expected else f"the index cannot be opened ({type(error).__name__}: {error})")
            return False
        finally:
            self._looked = time.monotonic()

    def _look(self, stamps: list[Stamp], before: list[Stamp]) -> bool:
        if None in stamps[:2]:
            # The folder is being moved or built from scratch, or it was deleted.
            self._tell(f"{self._index} holds no index any more (no {'items.sqlite' if stamps[0] else 'index.json'})")
            return False
        if stamps == self._tried and time.monotonic() < self._again:
            return False
        newer = _identity(stamps) != _identity(self._seen)
        if not newer and stamps != self._seen:
            if stamps != before:
                return False
            newer = Manifest.read(self._index).generation != self._generation()
        trouble = None if newer else self._doubt or self._damage()
        if not newer and not trouble:
            self._seen, self._error = stamps, None
            return False
        if trouble:
            self._tell(trouble)
        searcher = self._reopen()
        self._postpone(stamps)
        self._files = _files_of(searcher)
        self._seen, self._error, self._doubt = stamps, None, None
        self.searchers.swap(searcher)
        LOG.info("now serving generation %s", searcher.generation)
        return True

    def _postpone(self, stamps: list[Stamp]) -> None:
        """These files are tried again after a pause, other ones at once."""
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S) if stamps == self._tried else self._interval_s
        self._tried, self._again = stamps, time.monotonic() + self._pause

    def _tell(self, error: str) -> None:
        if error != self._error:
            LOG.warning("%s; the index that was opened before stays in use", error)
        self._error = error

    def _damage(self) -> str | None:
        """Why the files of the searcher in use are not what they were, or None. They are appended to, never cut."""
        for path, old in self._files.items():
            now = _stamp(path)
            if now is None:
                return f"{path} was deleted"
            if old and now != old and (now[0] != old[0] or now[2] <= old[2]):
                return f"{path} was replaced or changed"
        return None

    def _generation(self) -> int:
        with self.searchers.lend() as searcher:
            return searcher.generation

    def _stamps(self) -> list[Stamp]:
        """Identifies versions of the files. Read before opening, so that a change during opening is seen next time."""
        return [_stamp(self._index / name) for name in ("index.json", "items.sqlite", "items.sqlite-wal")]


def _stamp(path: Path) -> Stamp:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _identity(stamps: list[Stamp]) -> tuple[Stamp, int | None]:
    """Of index.json and items.sqlite: with another one it is another index, whatever its generation."""
    return stamps[0], stamps[1] and stamps[1][0]


def _files_of(searcher: Searcher) -> dict[Path, Stamp]:
    return {path: _stamp(path) for path in searcher.files()}
