"""What goes wrong, as an answer: a status, a code for programs and a message for people."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from quintet.errors import ImageError, QuintetError
from quintet.search.errors import (
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
from quintet.serve.pool import BusyError, TooSlowError

LOG = logging.getLogger("quintet.serve")
RETRY_S = "1"

# The first class that an error belongs to decides.
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

    code: str = Field(examples=["unknown_words"], description="For programs; stays the same.")
    message: str = Field(description="For people: what is wrong and what to do.")


def problem(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    extra = dict(headers or {})
    if status == 503:
        extra["Retry-After"] = RETRY_S
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"code": code, "message": message}, status, extra)


def documented(*statuses: int) -> dict[int | str, dict[str, object]]:
    """Entries for the OpenAPI document; what any request can meet is in all of them."""
    words = {
        400: "The body cannot be read.",
        401: "The token is missing or wrong.",
        403: "Asked for by a stranger's page or under a stranger's name.",
        404: "There is no such item.",
        410: "The image's file is gone.",
        413: "The body is too large.",
        422: "The request makes no sense.",
        503: "Too busy, too slow, or the store does not answer: try again after `Retry-After` seconds.",
    }
    return {status: {"model": Problem, "description": words[status]} for status in (401, 403, *statuses, 503)}


def install(app: FastAPI) -> None:
    """Answer every error in the same form."""

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
