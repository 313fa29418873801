"""Bodies are refused while they arrive, not after."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: a body that is announced as too long is never read, any other is read up to the limit.

    `limits` maps a path to its bytes; every other path may have `default`.
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
    # The rest of the body is not waited for, so the connection cannot be used again.
    return HTTPException(413, f"the body is larger than the limit of {limit:,} bytes", {"Connection": "close"})
