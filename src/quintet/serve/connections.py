"""Connections: how many are open, and how long each may take.

Sockets that send nothing, send slowly, or do not read their answer hold a descriptor each. A server that runs out of
descriptors answers nobody. So there are fewer connections than descriptors, each step of a connection has a deadline,
and when all connections are taken, those that wait longest for a request are closed for new ones.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any

import h11
import uvicorn
from h11._connection import DEFAULT_MAX_INCOMPLETE_EVENT_SIZE
from uvicorn.protocols.http.h11_impl import H11Protocol

from quintet.errors import QuintetError
from quintet.serve.guard import problem_page
from quintet.serve.settings import Settings

LOG = logging.getLogger("quintet.serve")
RESERVED = 128  # descriptors for the index, thumbnails, decoders and libraries
CLOSE_S = 5.0  # from the end of a connection until it is cut
SWEEP_S = 0.5
LAST_S = 0.5  # after a drain, for the requests of the last connections
UNREAD_S = 5.0  # an answer that is not read for so long makes its connection the last resort for room


class Phase(IntEnum):
    """What a connection is doing; the lower, the earlier it is closed to make room."""

    CLOSING = 0
    IDLE = 1  # no byte of a request yet
    HEADER = 2
    BODY = 3
    UNREAD = 4  # the client does not read its answer
    ANSWER = 5  # never closed to make room


class Connection(H11Protocol):
    """An HTTP/1.1 connection that knows how long it has been in its phase."""

    def __init__(self, config: uvicorn.Config, state: Any, app_state: dict[str, Any], settings: Settings) -> None:
        super().__init__(config, state, app_state)
        self._settings = settings
        self._at: tuple[Phase, object] = (Phase.IDLE, None)
        self._since = self._moved = time.monotonic()
        self._received = 0
        self._refused = False  # what still comes is not looked at

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._received += len(data)
        super().data_received(data)

    def pause_writing(self) -> None:
        self._moved = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:  # some 48 kB were sent since it was paused
        self._moved = time.monotonic()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state is h11.IDLE:  # in a header, of the first or of a later request
            if len(self.conn.trailing_data[0]) > DEFAULT_MAX_INCOMPLETE_EVENT_SIZE:
                return self._refuse_header()
        elif self.cycle is not None:  # damage in a body: the application must not answer as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer is on its way already
            self.transport.abort()

    def _refuse_header(self) -> None:
        """With a page. The rest of the header is received, as a browser that cannot send it would not show the page."""
        page = problem_page(414, "the address, or the header, is too long; search for a shorter text").body
        head = f"HTTP/1.1 414 URI Too Long\r\nContent-Length: {len(page)}\r\n"
        self.transport.write(
            f"{head}Content-Type: text/html; charset=utf-8\r\nConnection: close\r\n\r\n".encode() + page
        )
        self._refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def phase(self, now: float) -> tuple[Phase, float]:
        """The phase, and how many seconds it has lasted."""
        phase = self._phase()
        if (phase, self.cycle) != self._at:  # another request is another object
            self._at = phase, self.cycle
            self._since, self._received = now, 0
        if phase is Phase.ANSWER and self._unread(now) > UNREAD_S:
            return Phase.UNREAD, self._unread(now)
        return phase, now - self._since

    def overdue(self, now: float) -> bool:
        phase, seconds = self.phase(now)
        if self._unread(now) > self._settings.write_s:
            return True
        if phase is Phase.CLOSING:
            return seconds > CLOSE_S and not self.transport.get_write_buffer_size()
        if phase is Phase.IDLE:
            return seconds > self._settings.idle_s
        if phase is Phase.HEADER:
            return seconds > self._settings.header_s
        if phase is Phase.BODY:
            return seconds > self._settings.body_s + self._received / self._settings.slowest_upload
        return False

    def _phase(self) -> Phase:
        if self.transport.is_closing() or self._refused:
            return Phase.CLOSING
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.ANSWER
        return Phase.HEADER if self.conn.trailing_data[0] else Phase.IDLE

    def _unread(self, now: float) -> float:
        """Seconds since the client last took a part of its answer."""
        if not self.transport.get_write_buffer_size():
            self._moved = now
        return now - self._moved


class Server(uvicorn.Server):
    """Accepts connections one by one, so that there are never more than `limit`.

    `ready` is called when it does, and `drain` when it is about to stop.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        settings: Settings,
        limit: int,
        ready: Callable[[], None],
        drain: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.limit = limit
        self._settings = settings
        self._ready, self._drain = ready, drain
        self._beginning: dict[asyncio.Task[None], float] = {}  # TLS handshakes, the oldest first
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(3)
        self.servers = []
        self._tasks = [asyncio.create_task(self._accept(listener)) for listener in sockets or []]
        self._tasks.append(asyncio.create_task(self._sweep()))
        self.started = True
        self._ready()

    async def main_loop(self) -> None:
        """Until a signal; after SIGTERM a while longer, in which a proxy learns that it should ask another server."""
        await super().main_loop()
        self._drain()
        self.server_state.default_headers.append((b"connection", b"close"))  # who keeps a connection opens another
        end = time.monotonic() + self._settings.drain_s
        while time.monotonic() < end and signal.SIGINT not in self._captured_signals:
            await asyncio.sleep(0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        *accepting, sweeping = self._tasks
        for task in accepting:
            task.cancel()
        await asyncio.wait(accepting)
        for listener in sockets or []:
            self._accept_last(listener)
            listener.close()  # from here on a proxy is refused, and asks another server
        if self._settings.drain_s:
            await asyncio.sleep(LAST_S)
        for task in self._beginning:
            task.cancel()
        if self._beginning:
            await asyncio.wait(self._beginning)
        await super().shutdown(sockets)
        sweeping.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                LOG.warning("a connection could not be accepted: %s", error.strerror or error)
                await asyncio.sleep(0.1)
                continue
            if await self._make_room():
                self._start(accepted)
            else:
                LOG.warning("a connection was refused: all %d are being answered", self.limit)
                accepted.close()
            await asyncio.sleep(0)  # requests have their turn between connections

    def _accept_last(self, listener: socket.socket) -> None:
        """The connections that the system has accepted already: closing the listener would reset them."""
        with suppress(OSError):
            while len(self.server_state.connections) + len(self._beginning) < self.limit:
                self._start(listener.accept()[0])

    def _start(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._begin(accepted))
        self._beginning[task] = time.monotonic()
        task.add_done_callback(self._beginning.pop)

    async def _begin(self, accepted: socket.socket) -> None:
        secure = self._settings.tls
        limits = {"ssl_handshake_timeout": self._settings.header_s, "ssl_shutdown_timeout": CLOSE_S} if secure else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self.config, self.server_state, self.lifespan.state, self._settings),
                accepted,
                ssl=secure,
                **limits,
            )
        except OSError:  # the client went away, or does not speak TLS
            accepted.close()

    async def _make_room(self) -> bool:
        """Whether there is room for a connection, after closing some that nobody needs."""
        connections: set[Any] = self.server_state.connections
        for _ in range(10):
            if len(connections) + len(self._beginning) < self.limit:
                return True
            now = time.monotonic()
            found = [(*connection.phase(now), connection.abort) for connection in connections]
            found += [(Phase.IDLE, now - began, task.cancel) for task, began in self._beginning.items()]
            idle = [entry for entry in found if entry[0] is not Phase.ANSWER]
            idle.sort(key=lambda entry: (entry[0], -entry[1]))
            for _, _, cut in idle[: 1 + self.limit // 16]:  # several: the list is not made for every connection
                cut()
            await asyncio.sleep(0)  # a connection that was cut closes its descriptor a moment later
        return False

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                if connection.overdue(now):
                    connection.abort()


def connection_limit(wanted: int) -> int:
    """How many connections the limit of descriptors allows, at most `wanted`; the soft limit is raised for them.

    Two for each: the socket, and the file that is sent through it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = RESERVED + 2 * wanted
    if resource.RLIM_INFINITY != soft < need:
        soft = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = wanted if soft == resource.RLIM_INFINITY else min(wanted, (soft - RESERVED) // 2)
    if limit < 1:
        raise QuintetError(f"a process may have {soft} open files here; a server needs {RESERVED + 2}: see `ulimit -n`")
    return limit
