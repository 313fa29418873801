"""Which requests are refused, and the form of every error: a status, a code for programs and a message for people."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from contextlib import suppress

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import JSONResponse, Response
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
from quintet.serve.service import BusyError, TooSlowError
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
    MissingImage: (410, "missing_picture"),
    ImageError: (422, "unreadable_picture"),
    BusyError: (503, "busy"),
    TooSlowError: (503, "too_slow"),
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
    return JSONResponse({"code": code, "message": message}, status, extra)


def documented(*statuses: int) -> dict[int | str, dict[str, object]]:
    """Entries for the OpenAPI document; statuses that any request can get are always included."""
    words = {
        400: "The body cannot be read.",
        401: "The token is missing or wrong.",
        403: "The request comes from another site, or names another host.",
        404: "There is no such item.",
        410: "The image's file is gone.",
        413: "The body is too large.",
        422: "The request is not valid.",
        503: "Too busy, too slow, or the store does not answer: try again after `Retry-After` seconds.",
    }
    return {status: {"model": Problem, "description": words[status]} for status in (401, 403, *statuses, 503)}


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
    place = entry["loc"]
    assert isinstance(place, tuple)
    return f"{'.'.join(str(part) for part in place[1:]) or 'body'}: {entry['msg']}"


COOKIE = "quintet-session"
OPEN = ("/", "/health", "/openapi.json", "/api/session")  # answered without a token, like the static files of the page

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class IncompleteError(Exception):
    """An answer that has begun and cannot be completed: its connection is closed."""


class Guard:
    """ASGI middleware: with a token, only requests that carry it; without one, only requests from this computer.

    Pages of other sites, open in a browser on this computer, can reach a loopback address: by its number, or by a host
    name that is made to point to it (DNS rebinding). So the Host and Sec-Fetch-Site headers are checked.
    """

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["path"], Headers(scope=scope))
        answer = self._app if refusal is None else problem(*refusal)
        with suppress(IncompleteError):
            await answer(scope, receive, _with_headers(send))

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str, str] | None:
        if path.startswith("/api/") and headers.get("sec-fetch-site") == "cross-site":
            return 403, "cross_site", "requests from pages of other sites are refused"
        if self._token is None:
            name = host_name(headers.get("host", ""))
            if name not in LOOPBACK_NAMES:
                return 403, "unknown_host", f"this server answers requests to localhost only, not to {name!r}"
        elif path not in OPEN and not path.startswith("/static/") and not self._knows_token(headers):
            return 401, "token_needed", "send the server's token: `Authorization: Bearer TOKEN`"
        return None

    def _knows_token(self, headers: Headers) -> bool:
        assert self._token is not None
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return same(sent.strip(), self._token)
        return same(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""), session_value(self._token))


def session_value(token: str) -> str:
    """The value of the page's cookie: derived from the token, so that a stolen cookie does not reveal it."""
    return hmac.new(token.encode(), b"quintet session", hashlib.sha256).hexdigest()


def same(sent: str, expected: str) -> bool:
    """Constant-time comparison."""
    return hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), expected.encode())


def host_name(header: str) -> str:
    """The name in a Host header, without its port.

    >>> host_name("LOCALHOST:8000"), host_name("[::1]:8000"), host_name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
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
        announced = Headers(scope=scope).get("content-length", "")
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
