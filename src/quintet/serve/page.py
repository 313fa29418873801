"""The page: a few files of this package, read once, so that no path from outside is ever opened."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_routes() -> APIRouter:
    """`/` and `/static/NAME`."""
    router = APIRouter(include_in_schema=False)
    folder = files("quintet.serve") / "static"
    contents = {entry.name: entry.read_bytes() for entry in folder.iterdir() if _suffix(entry.name) in TYPES}
    tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in contents.items()}

    @router.get("/")
    async def page(request: Request) -> Response:
        return answer("index.html", request)

    @router.get("/static/{name}")
    async def static(name: str, request: Request) -> Response:
        if name not in contents:
            raise HTTPException(404, "there is no such file")
        return answer(name, request)

    def answer(name: str, request: Request) -> Response:
        headers = {
            "ETag": tags[name],
            "Cache-Control": "no-cache",
        }  # asked for again each time, sent again when changed
        if tags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(contents[name], headers=headers, media_type=TYPES[_suffix(name)])

    return router


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
