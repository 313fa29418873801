"""One writer at a time: a lock on a file, which the system gives back when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from quintet.search.errors import StoreError


class WriterLock:
    """Readers never ask for it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"the store {folder} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 20).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise StoreError(
                f"the store {folder} is being written by another process (number {holder}); "
                "wait until it ends, or write to another folder"
            ) from None
        if os.read(self._file, 40).strip(b"0123456789\n"):
            os.close(self._file)
            raise StoreError(f"{path} is not the lock of a store and was left as it is; name another folder")
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._file)
