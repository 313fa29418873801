"""Serve an index with uvicorn until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI

from quintet.errors import QuintetError
from quintet.search.searcher import Searcher
from quintet.serve.app import create_app
from quintet.serve.connections import Server, connection_limit
from quintet.serve.settings import Settings
from quintet.serve.watcher import IndexWatcher

BACKLOG = 2048


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

        def reopen() -> Searcher:
            searcher = Searcher.open(index, device=device, rerank_with=rerank_with)
            if settings.rerank is not None and not searcher.describe()["rerank"]:
                searcher.close()
                raise QuintetError(
                    f"the index {index} has no run to re-rank with: build it with --rerank-with RUN, or serve it "
                    "without --rerank"
                )
            return searcher

        watcher = IndexWatcher(index, reopen, settings.watch_s)
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
    return Server(config, settings, connection_limit(settings.max_connections), ready)


def address(listener: socket.socket, settings: Settings) -> str:
    host, port = listener.getsockname()[:2]
    name = {"127.0.0.1": "localhost", "0.0.0.0": socket.gethostname()}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if settings.tls else 'http'}://{name}:{port}/"
