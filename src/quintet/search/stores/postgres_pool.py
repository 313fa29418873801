"""Connections to PostgreSQL: one for each thread that asks, given up when the server stays silent."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any, TypeVar

from quintet.search.stores.extras import required
from quintet.search.stores.patience import Patience

T = TypeVar("T")
IDLE = 16  # connections that are kept


class Pool:
    """`run` calls a function with a connection and tries again, within limits, when the server is away."""

    def __init__(self, uri: str, patience: Patience) -> None:
        self._psycopg = required("psycopg", "pgvector")
        self._register = required("pgvector.psycopg", "pgvector").register_vector
        self._uri, self._patience = uri, patience
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue(IDLE)
        self._closed = False

    def run(self, action: Callable[[Any], T], *, timeout: float | None = None, vectors: bool = True) -> T:
        """`vectors`: the connection knows pgvector's type, which has to exist by then."""

        def once(left: float) -> T:
            with self._connection(left, vectors) as connection, _silence_ends(connection, left):
                return action(connection)

        return self._patience.persist(once, (self._psycopg.Error,), self._may_pass, timeout)

    def close(self) -> None:
        self._closed = True
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def _connection(self, left: float, vectors: bool) -> Iterator[Any]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._psycopg.connect(self._uri, autocommit=True, connect_timeout=ceil(left))
        try:
            if vectors and connection.adapters.types.get("vector") is None:
                self._register(connection)
            yield connection
        except BaseException:  # in what state it is, nobody knows
            connection.close()
            raise
        self._keep(connection)

    def _keep(self, connection: Any) -> None:
        try:
            if self._closed:
                raise queue.Full
            self._idle.put_nowait(connection)
        except queue.Full:
            connection.close()

    def _may_pass(self, error: Exception) -> bool:
        """A connection that is refused or lost; not a statement that the server understood and refused."""
        away = isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError)
        # Class 08 is about connections, 57 about a server that is being stopped or took too long.
        return away and (error.sqlstate is None or error.sqlstate[:2] in ("08", "57"))  # type: ignore[attr-defined]


@contextmanager
def _silence_ends(connection: Any, seconds: float) -> Iterator[None]:
    """Cut the connection after so long: waiting for a server that is frozen, or gone without a word, has no end."""
    end = threading.Timer(seconds, _cut, [connection])
    end.daemon = True
    end.start()
    try:
        yield
    finally:
        end.cancel()


def _cut(connection: Any) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
