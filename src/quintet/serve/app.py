"""The application: routes, page and guards around a searcher."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import quintet
from quintet.serve.body_limit import BodyLimit
from quintet.serve.guard import Guard
from quintet.serve.metrics import Metrics
from quintet.serve.page import page_routes
from quintet.serve.problems import install
from quintet.serve.routes import IMAGE_ROUTE, router
from quintet.serve.searchers import IndexWatcher, Searchers
from quintet.serve.service import Service
from quintet.serve.settings import Settings

LOG = logging.getLogger("quintet.serve")


def create_app(source: Searchers | IndexWatcher, settings: Settings) -> FastAPI:
    """An ASGI application that answers from one searcher, or from an index that is watched for newer builds.

    It owns the searchers from here on and closes them when it ends.
    """
    service = Service(source, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watcher.run()) if service.watcher else None
        if watching:
            watching.add_done_callback(_report_end)
        try:
            yield
        finally:
            if watching:
                watching.cancel()
                await asyncio.wait([watching])
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Quintet",
        version=quintet.__version__,
        description="Search images by a text or by an image.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load their code from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    install(app)
    app.include_router(router)
    app.include_router(page_routes())
    # The one added last is met first.
    limits = {IMAGE_ROUTE: settings.max_upload_bytes}
    app.add_middleware(BodyLimit, default=settings.max_body_bytes, limits=limits)
    app.add_middleware(Guard, token=settings.token)
    app.add_middleware(_Measure, metrics=service.metrics)
    return app


def _report_end(watching: asyncio.Task[None]) -> None:
    if not watching.cancelled():
        LOG.error("the index is no longer watched", exc_info=watching.exception())


class _Measure:
    """ASGI middleware: counts and times every request under its route's name."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        began = time.perf_counter()

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.began()
        try:
            await self._app(scope, receive, seen)
        finally:
            self._metrics.ended()
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.request(scope["method"], route, status, time.perf_counter() - began)
