"""File operations that fail, or during which the process is killed or the power goes.

`FileFaults(...).install()` in a child replaces the operations of `os` and `io` by ones that count themselves; the n-th
does not happen. What is written by C and Rust code below Python (SQLite, safetensors, FAISS) is reached by
`limit_file_size`, where the system itself refuses the bytes, and by kills at random times.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import resource
import signal
from pathlib import Path
from typing import Any

OPERATIONS = ("fsync", "fdatasync", "rename", "replace", "mkdir")
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


class FileFaults:
    """`action`: EIO or ENOSPC (this operation and, where the disk is full, all writes after it), kill, or power.

    `power`: a kill after which every file under `folder` is cut short that was written and not synced. SQLite's own
    files are left out, whose syncs are not seen from here; so is the loss of a rename whose folder was not synced.
    """

    def __init__(self, folder: Path, at: int | None, action: str, rng: random.Random) -> None:
        self.folder, self.at, self.action, self.rng = folder, at, action, rng
        self.count = 0
        self.durable: dict[tuple[int, int], tuple[int, int]] = {}  # inode -> size and time of change when synced
        self.real = {name: getattr(os, name) for name in OPERATIONS}
        self.open = io.open

    def install(self) -> None:
        for path in self.folder.rglob("*"):
            self._note_durable(path.lstat())
        for name in OPERATIONS:
            setattr(os, name, self._counting(name))
        io.open = builtins.open = self._open  # type: ignore[assignment]

    def _counting(self, name: str) -> Any:
        real = self.real[name]

        def operation(*arguments: Any, **more: Any) -> Any:
            self.reached(name)
            result = real(*arguments, **more)
            if name in ("fsync", "fdatasync"):
                self._note_durable(os.fstat(arguments[0]))
            return result

        return operation

    def _open(self, file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        opened = self.open(file, mode, *arguments, **more)
        return _CountedFile(opened, self) if set(mode) & set("wax+") and not isinstance(file, int) else opened

    def reached(self, name: str) -> None:
        self.count += 1
        if self.at is None or self.count < self.at:
            return
        if self.action in ERRORS:
            if self.count == self.at or (self.action == "ENOSPC" and name in ("write", "mkdir", "fsync")):
                raise OSError(ERRORS[self.action], os.strerror(ERRORS[self.action]))
            return
        if self.action == "power":
            self._lose_power()
        os.kill(os.getpid(), signal.SIGKILL)

    def _note_durable(self, facts: os.stat_result) -> None:
        self.durable[facts.st_dev, facts.st_ino] = facts.st_size, facts.st_mtime_ns

    def _lose_power(self) -> None:
        for path in self.folder.rglob("*"):
            facts = path.lstat()
            synced = self.durable.get((facts.st_dev, facts.st_ino)) == (facts.st_size, facts.st_mtime_ns)
            if path.is_file() and not path.is_symlink() and not synced and ".sqlite" not in path.name:
                before = self.durable.get((facts.st_dev, facts.st_ino), (0, 0))[0]
                kept = before if before < facts.st_size else 0  # what was synced before something was appended
                os.truncate(path, self.rng.randrange(kept, facts.st_size + 1))


class _CountedFile:
    """A file whose writes are counted, and reach the system at once, in the order they are made."""

    def __init__(self, file: Any, faults: FileFaults) -> None:
        self._file, self._faults = file, faults

    def write(self, data: Any) -> Any:
        self._faults.reached("write")
        written = self._file.write(data)
        self._file.flush()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _CountedFile:
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)


def limit_file_size(size: int) -> None:
    """No file of this process may grow beyond `size`: the system refuses writes of every library."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
