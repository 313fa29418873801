"""Who may ask, and what a browser may do with the answers."""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quintet.serve.problems import problem
from quintet.serve.settings import LOOPBACK_NAMES

COOKIE = "quintet-session"
OPEN = ("/", "/health", "/openapi.json", "/api/session")  # answered without a token, as is the page's own code

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """ASGI middleware: with a token, only those who know it; without one, only this computer's own pages and programs.

    A browser on this computer also runs strangers' pages. Those can reach a loopback address, by its number or by a
    name of their own that suddenly points to it, so the name that was asked for and the page that asks are looked at.
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
        await answer(scope, receive, _with_headers(send))

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str, str] | None:
        if path.startswith("/api/") and headers.get("sec-fetch-site") == "cross-site":
            return 403, "cross_site", "another site's page asked for this; it may not"
        if self._token is None:
            name = host_name(headers.get("host", ""))
            if name not in LOOPBACK_NAMES:
                return 403, "unknown_host", f"this server answers to localhost only, not to {name!r}"
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
    """What the page's cookie holds instead of the token: a thief of the cookie does not learn the token."""
    return hmac.new(token.encode(), b"quintet session", hashlib.sha256).hexdigest()


def same(sent: str, expected: str) -> bool:
    """Compared in a time that does not tell how much of it is right."""
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
