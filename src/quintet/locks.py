"""One writer of a folder at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quintet.errors import QuintetError
from quintet.files import make_folder, remove_empty, remove_partials, temporary_file, user_path

FORMAT = "quintet-lock"
_LARGEST = 10_000  # bytes of a lock file
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # FAT, exFAT and some network folders have none
_held: set[int] = set()


class LockedError(QuintetError):
    """Another process is writing the folder."""


@contextmanager
def folder_lock(folder: Path | str, doing: str, name: str = "lock") -> Iterator[None]:
    """Be the only writer of a folder, which is made where it does not exist. `doing` is what the error of others says.

    The lock is `flock` on a file in the folder: the system releases it when its holder ends, however it ends. The file
    is removed on release, and so are folders that were made for it and stayed empty.
    """
    folder = user_path(folder)
    made: list[Path] = []
    try:
        made = make_folder(folder)
        handle = _acquire(folder / name, doing)
    except BaseException as error:
        remove_empty(made)
        if isinstance(error, OSError):
            raise QuintetError(f"could not write to {folder}: {error.strerror or error}") from error
        raise
    try:
        yield
    finally:
        # Removed while it is held: whoever has opened it meanwhile sees that it has no name, and tries again.
        with suppress(OSError):
            (folder / name).unlink()
        _held.discard(handle)
        os.close(handle)
        remove_empty(made)


def _acquire(path: Path, doing: str) -> int:
    remove_partials(path.parent, {path.name})
    while True:
        handle = _create(path, doing)
        if handle is not None:
            _held.add(handle)
            return handle
        with suppress(FileNotFoundError):  # its holder removes it just now
            _remove_dead(path)


def _create(path: Path, doing: str) -> int | None:
    """The lock, held; None where a file of its name exists. It gets its name when it is locked and says whose it is."""
    handle, temporary = temporary_file(path)
    try:
        os.write(handle, json.dumps(_content(doing)).encode())
        os.fsync(handle)  # or a power failure leaves a lock that nobody knows
        os.link(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        os.close(handle)
        if isinstance(error, FileExistsError):
            return None
        if isinstance(error, OSError) and error.errno in NO_LINKS:
            return _create_in_place(path, doing)
        raise
    temporary.unlink(missing_ok=True)
    return handle


def _create_in_place(path: Path, doing: str) -> int | None:
    """Where a file has one name only. For a moment the lock is empty, and another writer cannot tell whose it is."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return None
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.write(handle, json.dumps(_content(doing)).encode())
    os.fsync(handle)
    return handle


def _remove_dead(path: Path) -> None:
    """Remove the lock of a process that was killed; raise where its holder lives, or where it is no lock."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        content = os.read(handle, _LARGEST) if stat.S_ISREG(found.st_mode) else b""
        holder = _holder(content)
        if holder is None:
            raise QuintetError(
                f"{path} is in the way: Quintet did not write it and does not replace it; move it, or choose another "
                "folder"
            )
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(found, path.lstat()):
            path.unlink()
    except BlockingIOError:
        raise LockedError(
            f"{path.parent} is being written by another process ({holder}); wait until it ends, or choose another "
            "folder"
        ) from None
    finally:
        os.close(handle)


def _content(doing: str) -> dict[str, object]:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"format": FORMAT, "doing": doing, "process": os.getpid(), "host": socket.gethostname(), "since": since}


def _holder(content: bytes) -> str | None:
    """Who holds a lock, from what is in its file; None where the file is no lock."""
    try:
        head = json.loads(content)
        if head["format"] != FORMAT:
            return None
        return f"{head['doing']}, process {head['process']} on {head['host']} since {head['since']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _close_in_child() -> None:
    """A forked process, such as a loader's worker, would keep the lock after its holder was killed."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
