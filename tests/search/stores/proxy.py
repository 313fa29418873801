"""A line to a server that can be cut or go silent."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards connections to 127.0.0.1:`port` on to `target`, a port of this machine or the path of a unix socket."""

    def __init__(self, target: int | str) -> None:
        self._target, self._lines, self._silent = target, [], threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Everything stays connected, nothing arrives any more."""
        self._silent.set()

    def cut(self) -> None:
        """All connections are lost; new ones work."""
        lines, self._lines = self._lines, []
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
                far.connect(self._target if isinstance(self._target, str) else ("127.0.0.1", self._target))
                self._lines += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := here.recv(65536):
                if not self._silent.is_set():
                    there.sendall(data)
            there.shutdown(socket.SHUT_RDWR)
