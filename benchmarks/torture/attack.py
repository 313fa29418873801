"""What an attack is: a function of a random generator, the material and an empty folder that yields outcomes.

Whatever an attack does to the product happens in a forked child, so that a crash, a kill or endless work is an ending
to be told, not the end of the campaign.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import pickle
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError

CHILD_SECONDS = 60.0
CHILD_MEMORY = 2 * 2**30  # address space of a child beyond what the campaign itself has


@dataclass(frozen=True)
class Outcome:
    """One try. `target`: the file or command that was attacked. `what`: how it was lost; empty if it survived."""

    target: str
    what: str = ""
    detail: str = ""  # message, or the line that raised


@dataclass(frozen=True)
class Ending:
    """How a child ended: done, refused (a QuintetError), raised (another exception), died or endless."""

    kind: str
    value: Any = None
    what: str = ""  # exception type or signal
    detail: str = ""
    seconds: float = 0.0

    @property
    def told(self) -> bool:
        """Whether a person got a result or an error that explains itself."""
        return self.kind in ("done", "refused")

    def lost(self, target: str, step: str = "") -> Outcome:
        what = self.what or self.kind
        return Outcome(target, f"{what} {step}".strip(), self.detail)


Attack = Callable[[random.Random, Any, Path], Iterator[Outcome]]


def in_child(
    work: Callable[..., Any], *arguments: Any, seconds: float = CHILD_SECONDS, kill_after: float | None = None
) -> Ending:
    """Call `work` in a forked child. `kill_after`: SIGKILL after so many seconds. The value must pickle."""
    began = time.monotonic()
    child, pipe = start_child(work, *arguments)
    return wait_for(child, pipe, seconds=seconds, kill_after=kill_after, began=began)


def start_child(work: Callable[..., Any], *arguments: Any) -> tuple[int, int]:
    """The process id of a child, and the pipe that its ending comes from."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, arguments, writing)
    os.close(writing)
    return child, reading


def _work(work: Callable[..., Any], arguments: tuple[Any, ...], pipe: int) -> None:
    """In the child: never returns."""
    os.setsid()
    faulthandler.disable()  # the campaign tells how a child died
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    write, leave = os.write, os._exit  # before an attack replaces them
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + CHILD_MEMORY, resource.RLIM_INFINITY))
    try:
        answer = ("done", work(*arguments), "", "")
    except QuintetError as error:
        answer = ("refused", None, type(error).__name__, str(error))
    except BaseException as error:  # noqa: BLE001  # to be told, whatever it is
        answer = ("raised", None, type(error).__name__, _where(error))
    data = pickle.dumps(answer)
    while data:
        data = data[write(pipe, data) :]
    leave(0)


def _where(error: BaseException) -> str:
    """The message, and the last line of Quintet that it went through."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "/quintet/" in frame.filename]
    at = f" ({lines[-1].filename.rpartition('/quintet/')[2]}:{lines[-1].lineno})" if lines else ""
    return f"{str(error)[:200]}{at}"


def wait_for(
    child: int, pipe: int, *, seconds: float = CHILD_SECONDS, kill_after: float | None = None, began: float = 0.0
) -> Ending:
    began = began or time.monotonic()
    limit = seconds if kill_after is None else kill_after
    data = b""
    killed = False
    while True:
        left = began + limit - time.monotonic()
        if left > 0 and not select.select([pipe], [], [], left)[0]:
            left = 0
        if left <= 0:
            killed = True
            os.killpg(child, signal.SIGKILL) if _leads_group(child) else os.kill(child, signal.SIGKILL)
            break
        part = os.read(pipe, 1 << 20)
        if not part:
            break
        data += part
    os.close(pipe)
    _, status = os.waitpid(child, 0)
    spent = time.monotonic() - began
    if killed:
        return Ending("killed" if kill_after is not None else "endless", what="no end", seconds=spent)
    if os.WIFSIGNALED(status):
        return Ending("died", what=signal.Signals(os.WTERMSIG(status)).name, seconds=spent)
    try:
        kind, value, what, detail = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return Ending("died", what=f"exit {os.WEXITSTATUS(status)}", seconds=spent)
    return Ending(kind, value, what, detail, spent)


def _leads_group(child: int) -> bool:
    try:
        return os.getpgid(child) == child
    except ProcessLookupError:
        return False


def copy_tree(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target


def digest(*parts: Any) -> str:
    """A checksum of bytes, arrays and JSON values."""
    sum_ = hashlib.sha256()
    for part in parts:
        if hasattr(part, "tobytes"):
            sum_.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
        elif isinstance(part, bytes):
            sum_.update(part)
        else:
            sum_.update(json.dumps(part, sort_keys=True, default=str).encode())
    return sum_.hexdigest()


def left_over(folder: Path) -> list[str]:
    """Temporary files and folders that no finished command may leave."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.name
        if name.endswith(".partial") or name.startswith(".try-") or ".mining-" in name or name.endswith("-journal"):
            found.append(str(path.relative_to(folder)))
    return found
