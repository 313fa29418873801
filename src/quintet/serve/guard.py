"""Which requests are refused, and the form of every error: a status, a code for programs and a message for people."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic_core import PydanticSerializationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quintet.errors import ImageError, QuintetError
from quintet.search import (
    EmptyQuery,
    MissingImage,
    QueryTooLong,
    SearchError,
    StaleIndex,
    StoreUnavailable,
    UnknownItem,
    UnknownWords,
    WhereError,
)
from quintet.serve.access import Access, Clients, Keys
from quintet.serve.service import BusyError, DrainingError, TooSlowError
from quintet.serve.settings import LOOPBACK_NAMES

LOG = logging.getLogger("quintet.serve")
RETRY_S = "1"

# The first class that matches an error decides.
STATUS: dict[type[QuintetError], tuple[int, str]] = {
    EmptyQuery: (422, "empty_query"),
    QueryTooLong: (422, "query_too_long"),
    UnknownWords: (422, "unknown_words"),
    WhereError: (422, "invalid_filter"),
    UnknownItem: (404, "unknown_item"),
    MissingImage: (410, "missing_image"),
    ImageError: (422, "unreadable_image"),
    BusyError: (503, "busy"),
    TooSlowError: (503, "too_slow"),
    DrainingError: (503, "draining"),
    StoreUnavailable: (503, "store_unavailable"),
    StaleIndex: (503, "stale_index"),
    SearchError: (422, "not_possible"),
    QuintetError: (503, "unavailable"),
}


class Problem(BaseModel):
    """Why a request was not answered."""

    code: str = Field(examples=["unknown_words"], description="For programs; never changes.")
    message: str = Field(description="For people: what is wrong and what to do.")


def problem(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    extra = dict(headers or {})
    if status == 503:
        extra["Retry-After"] = RETRY_S
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return Json({"code": code, "message": message}, status, extra)


def problem_page(status: int, message: str) -> Response:
    """The same as a page, for people whose browser asks for one."""
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Quintet</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/static/style.css"></head>'
        f"<body><main><h1>Quintet</h1>{trouble(message)}</main></body></html>"
    )
    return HTMLResponse(text, status)


def trouble(message: str) -> str:
    message = re.sub(r"^[a-z]+(?= )", lambda word: word[0].capitalize(), message)  # a name that it begins with stays
    return f'<p class="trouble" role="alert">{escape(message)}</p><p><a href="/">To the start page</a></p>'


class Json(JSONResponse):
    """JSON that any text and any number can be written as: names of files may be no UTF-8, and a score NaN."""

    def render(self, content: Any) -> bytes:
        if isinstance(content, BaseModel):
            try:
                return content.model_dump_json().encode()  # by pydantic's own writer, which is much the quickest
            except PydanticSerializationError:
                content = content.model_dump()
        try:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        except ValueError:
            return json.dumps(finite(content), separators=(",", ":")).encode()


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def documented(*statuses: int) -> dict[int | str, dict[str, object]]:
    """Entries for the OpenAPI document; statuses that any request can get are always included."""
    words = {
        400: "The body cannot be read.",
        401: "The token is missing or wrong.",
        403: "The request comes from another site, or names another host.",
        404: "There is no such item.",
        410: "The image's file is gone.",
        413: "The body is too large.",
        414: "The address is too long.",
        422: "The request is not valid.",
        429: "Too many requests or wrong tokens of this client: try again after `Retry-After` seconds.",
        503: "Too busy, too slow, or the store does not answer: try again after `Retry-After` seconds.",
    }
    return {status: {"model": Problem, "description": words[status]} for status in (401, 403, *statuses, 414, 429, 503)}


def install(app: FastAPI) -> None:
    """Give every error the same form."""

    @app.exception_handler(QuintetError)
    async def expected(request: Request, error: QuintetError) -> Response:
        status, code = next(entry for kind, entry in STATUS.items() if isinstance(error, kind))
        if status == 503:
            LOG.warning("%s %s: %s", request.method, request.url.path, error)
        return problem(status, code, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return problem(422, "invalid", "; ".join(_words(entry) for entry in error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, f"http_{error.status_code}", str(error.detail), dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return problem(400, "disconnected", "the request ended before its body did")

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return problem(500, "internal", "the server failed; its log says why")


def _words(entry: dict[str, object]) -> str:
    location = entry["loc"]
    assert isinstance(location, tuple)
    return f"{'.'.join(str(part) for part in location[1:]) or 'body'}: {entry['msg']}"


COOKIE = "quintet-session"
LONGEST_ADDRESS = 12 * 2**10  # bytes; a header with 16 KiB may be refused before it is complete
PAGE = "/"  # shows what the session may see
OPEN = (
    "/health",
    "/ready",
    "/openapi.json",
    "/api/session",
    "/api/session/form",
)  # answered without a token, like the static files of the page
UPLOADS = ("/api/search/image", "/api/search/picture")
FULL = (*UPLOADS, "/api/paths", "/api/sessions", "/metrics")  # what a read-only token may not do

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class IncompleteError(Exception):
    """An answer that has begun and cannot be completed: its connection is closed."""


class Guard:
    """ASGI middleware: limits of each client; with a token, only requests that carry it; without one, only requests
    from this computer.

    Pages of other sites, open in a browser on this computer, can reach a loopback address: by its number, or by a host
    name that is made to point to it (DNS rebinding). So the Host and Sec-Fetch-Site headers are checked.
    """

    def __init__(self, app: ASGIApp, *, keys: Keys, clients: Clients) -> None:
        self._app = app
        self._keys = keys
        self._clients = clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client, send = client_of(scope), _with_headers(send)
        wait = self._clients.begin(client)
        if wait:
            await too_many(wait, "this client sends too many requests")(scope, receive, send)
            return
        try:
            access, refusal = self._access(scope["path"], Headers(scope=scope), client)
            if len(scope["query_string"]) + len(scope["raw_path"]) > LONGEST_ADDRESS:
                refusal = too_long(scope["path"])
            scope.setdefault("state", {})["access"] = access
            with suppress(IncompleteError):
                await (refusal or self._app)(scope, receive, send)
        finally:
            self._clients.end(client)

    def _access(self, path: str, headers: Headers, client: str) -> tuple[Access, Response | None]:
        # Also of another port of this computer ("same-site"): another program's page is another site.
        # A link to the page itself may be followed; it may not be loaded as a part of another page, as it searches.
        is_link = path == PAGE and headers.get("sec-fetch-dest", "document") == "document"
        crosses = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if crosses and not is_link and (path == PAGE or path.startswith("/api/")):
            return Access.NONE, problem(403, "cross_site", "requests from pages of other sites are refused")
        if not self._keys.needed:
            name = headers.get("host", "")
            if host_name(name) not in LOOPBACK_NAMES:
                message = f"this server answers requests to localhost only, not to {name[:100]!r}"
                return Access.NONE, problem(403, "unknown_host", message)
            return Access.FULL, None
        if path in OPEN or path.startswith("/static/"):
            return Access.NONE, None
        access = self._keys.of_session(session_of(headers))
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        if not access and scheme.lower() == "bearer":
            if wait := self._clients.wrong_wait(client):
                return Access.NONE, too_many(wait, "too many wrong tokens came from this address")
            access = self._keys.of_token(sent.strip())
            if not access:
                self._clients.wrong(client)
        if not access and path != PAGE:
            return access, problem(401, "token_needed", "send the server's token: `Authorization: Bearer TOKEN`")
        if access < Access.FULL and path in FULL:
            return access, problem(403, "full_token_needed", "a read-only token may search and look, not do this")
        return access, None


def client_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def session_of(headers: Headers) -> str:
    return cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


def too_long(path: str) -> Response:
    message = f"the address has more than {LONGEST_ADDRESS:,} characters; search for a shorter text"
    if path == PAGE:
        return problem_page(414, message)
    return problem(414, "too_long", message)


def too_many(wait: float, message: str) -> Response:
    seconds = max(1, math.ceil(wait))
    return problem(429, "too_many_requests", f"{message}; try again in {seconds} s", {"Retry-After": str(seconds)})


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z.-]+))(?::[0-9]{1,5})?", re.IGNORECASE)


def host_name(header: str) -> str | None:
    """The name in a Host header, without its port; None for what is no name with or without a port.

    >>> host_name("LOCALHOST:8000"), host_name("[::1]:8000"), host_name("[::1].evil.example")
    ('localhost', '::1', None)
    """
    match = _HOST.fullmatch(header)
    return (match[1] or match[2]).lower() if match else None


_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message["headers"])  # no route sets any of HEADERS
            if not any(name == b"cache-control" for name, _ in own):
                own.append((b"cache-control", b"no-store"))
            message["headers"] = own + _RAW_HEADERS
        await send(message)

    return sending


class BodyLimit:
    """ASGI middleware: limits the size of request bodies. A body whose Content-Length is too large is not read at all.

    `limits` maps a path to its limit in bytes; other paths have `default`.
    """

    def __init__(self, app: ASGIApp, *, default: int, limits: Mapping[str, int]) -> None:
        self._app = app
        self._default = default
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limits.get(scope["path"], self._default)
        announced = Headers(scope=scope).get("content-length", "")[:20]
        count = 0

        async def limited() -> Message:
            nonlocal count
            if announced.isdecimal() and int(announced) > limit:
                raise too_large(limit)
            message = await receive()
            count += len(message.get("body", b""))
            if count > limit:
                raise too_large(limit)
            return message

        await self._app(scope, limited, send)


def too_large(limit: int) -> HTTPException:
    # The rest of the body is not read, so the connection cannot be reused.
    return HTTPException(413, f"the body is larger than the limit of {limit:,} bytes", {"Connection": "close"})
