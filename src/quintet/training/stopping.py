"""Ctrl-C and SIGTERM while a stage trains: the step is finished and a checkpoint is written, then training ends."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):  # a signal, no error
    """Training was asked to stop, and its checkpoint is from the last step it made."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number  # what a shell gives for it


class Stop:
    """Catches the signals for the duration of a block. The first one asks to stop, a second one stops at once.

    Only the main thread of a program can catch signals; in another one nothing changes.
    """

    def __init__(self) -> None:
        self.number = 0
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.number != 0

    def leave(self) -> NoReturn:
        raise Stopped(self.number or signal.SIGTERM)  # another process was asked

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._caught) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader's worker, forked meanwhile: the training process ends it
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.number:
            raise Stopped(number)
        self.number = number
        if os.isatty(2):  # past Python's streams, which the signal may have met in the middle of a line
            os.write(2, b"\nstopping after this step, with a checkpoint; once more stops at once\n")
