"""Serve an index with uvicorn until SIGINT or SIGTERM, with a log that no client can flood."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI

from quintet.errors import QuintetError
from quintet.search.searcher import Searcher
from quintet.serve.app import create_app
from quintet.serve.connections import Server, connection_limit
from quintet.serve.service import Service
from quintet.serve.settings import Settings
from quintet.serve.watcher import IndexWatcher

BACKLOG = 2048
PER_MINUTE = 20  # records of one line of code
LONGEST = 4000  # characters of a record


def serve_index(
    index: Path,
    settings: Settings,
    *,
    device: str = "auto",
    rerank_with: Path | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve an index until SIGINT or SIGTERM; requests in flight are answered first.

    `ready` is called with the page's address once the server listens.
    """
    # Concurrent searches share the cores, instead of each using all of them.
    torch.set_num_threads(max(1, torch.get_num_threads() // settings.search_threads))
    with listen(settings) as listener:  # first, so that a port in use is reported before a matcher is loaded
        watcher: IndexWatcher | None = None

        def reopen() -> Searcher:
            with watcher.searchers.lend() if watcher else nullcontext() as earlier:
                searcher = Searcher.open(index, device=device, rerank_with=rerank_with, earlier=earlier)
            if settings.rerank is not None and not searcher.describe()["rerank"]:
                searcher.close()
                raise QuintetError(
                    f"the index {index} has no run to re-rank with: build it with --rerank-with RUN, or serve it "
                    "without --rerank"
                )
            return searcher

        watcher = IndexWatcher(index, reopen, settings.watch_s)
        # Modules and the index stay: no collection has to look at their half a million objects. A request makes some
        # thousand that reference counts free, so that collections can be rare.
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        server = make_server(create_app(watcher, settings), settings, lambda: ready(address(listener, settings)))
        server.run(sockets=[listener])


def listen(settings: Settings) -> socket.socket:
    """A listening socket; port 0 means any free port."""
    try:
        family, kind, protocol, _, endpoint = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise QuintetError(f"cannot listen on {settings.host}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(endpoint)
        listener.listen(BACKLOG)  # connections wait while the matcher is loaded
    except OSError as error:
        listener.close()
        raise QuintetError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            "is another server running there? choose another with --port"
        ) from None
    return listener


def make_server(app: FastAPI, settings: Settings, ready: Callable[[], None] = lambda: None) -> Server:
    """A server, started by `run(sockets=[listener])`; `ready` is called when it answers."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=list(settings.proxies),
        timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
        timeout_keep_alive=max(1, round(settings.idle_s)),
    )
    service: Service = app.state.service
    return Server(config, settings, connection_limit(settings.max_connections), ready, service.drain)


def address(listener: socket.socket, settings: Settings) -> str:
    host, port = listener.getsockname()[:2]
    name = {"127.0.0.1": "localhost", "0.0.0.0": socket.gethostname()}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if settings.tls else 'http'}://{name}:{port}/"


class Throttle(logging.Filter):
    """Passes so many records a minute of each line of code; the next one says how many were left out."""

    def __init__(self, per_minute: int = PER_MINUTE) -> None:
        super().__init__()
        self._per_minute = per_minute
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}  # line -> start of its minute, records since

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = (record.pathname, record.lineno), time.monotonic()
        with self._lock:
            began, count = self._seen.get(line, (now, 0))
            left_out = 0
            if now - began >= 60:
                began, count, left_out = now, 0, count - self._per_minute
            self._seen[line] = began, count + 1
        if left_out > 0:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more of these were not logged)", ()
        return count < self._per_minute


class OneLine(logging.Formatter):
    """Without control characters, which could forge lines or reach a terminal; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        text = super().formatMessage(record)
        shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:LONGEST])
        return shown + ("…" if len(text) > LONGEST else "")


def log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(Throttle())
    logging.basicConfig(handlers=[handler])
