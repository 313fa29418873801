"""The ASGI application: the API, the search page, and the guards around them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

import quintet
from quintet.serve.guard import UPLOADS, BodyLimit, Guard, Json, install
from quintet.serve.plain import Page
from quintet.serve.prometheus import Measure
from quintet.serve.routes import index_answer, router
from quintet.serve.service import Service
from quintet.serve.settings import Settings
from quintet.serve.watcher import IndexWatcher, Searchers

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def create_app(source: Searchers | IndexWatcher, settings: Settings) -> FastAPI:
    """An ASGI application that serves one searcher, or an index that is watched for newer builds.

    It owns the searchers and closes them at shutdown.
    """
    service = Service(source, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watcher.run()) if service.watcher else None
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
        description="Search photos by text or by image.",
        lifespan=lifespan,
        default_response_class=Json,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's documentation pages load scripts from other sites
        redoc_url=None,
    )
    app.state.service = service
    install(app)
    app.include_router(router)
    app.include_router(page_routes())
    # The middleware added last runs first.
    limits = dict.fromkeys(UPLOADS, settings.max_upload_bytes)
    app.add_middleware(BodyLimit, default=settings.max_body_bytes, limits=limits)
    app.add_middleware(Guard, keys=service.keys, clients=service.clients)
    app.add_middleware(Measure, metrics=service.metrics)
    return app


def page_routes() -> APIRouter:
    """`/` and `/static/NAME`. The files are read once: no path from a request is ever opened."""
    router = APIRouter(include_in_schema=False)
    folder = files("quintet.serve") / "static"
    contents = {entry.name: entry.read_bytes() for entry in folder.iterdir() if _suffix(entry.name) in TYPES}
    page = Page(contents.pop("index.html").decode())
    tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in contents.items()}

    @router.get("/")
    async def root(request: Request) -> Response:
        service: Service = request.app.state.service
        facts = await index_answer(request, service) if request.state.access else None
        return await page.answer(service, request.query_params, facts)

    @router.get("/static/{name}")
    async def static(name: str, request: Request) -> Response:
        if name not in contents:
            raise HTTPException(404, "there is no such file")
        # Browsers revalidate each time.
        headers = {"ETag": tags[name], "Cache-Control": "no-cache"}
        if tags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(contents[name], headers=headers, media_type=TYPES[_suffix(name)])

    return router


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
