"""Long commands that are stopped say how to go on."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends as Ctrl-C does: what is half-written is removed."""

    status = 143  # what a shell gives for it


@contextmanager
def says_how_to_go_on(console: Console, how: str = "the same command goes on") -> Iterator[None]:
    """On Ctrl-C or SIGTERM: clean up, print the command, and exit with the status that a shell expects (130, 143)."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if in_main else None
    try:
        yield
    except KeyboardInterrupt as error:
        command = shlex.join(["quintet", *sys.argv[1:]])
        console.print(f"stopped; {how}: {command}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(getattr(error, "status", 130)) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
