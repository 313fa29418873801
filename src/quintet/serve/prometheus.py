"""Counts and times of requests, in the text format of Prometheus."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by route and status with their times, and values that are read for each scrape.

    >>> metrics = Metrics()
    >>> metrics.request("POST", "/api/search", 200, seconds=0.02)
    >>> metrics.value("quintet_index_items", "gauge", "Items in the index.", lambda: 30)
    >>> 'quintet_requests_total{method="POST",route="/api/search",status="200"} 1' in metrics.text()
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS_S) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._values: list[tuple[str, str, str, Callable[[], float]]] = []
        self.in_flight = 0

    def began(self) -> None:
        with self._lock:
            self.in_flight += 1

    def ended(self) -> None:
        with self._lock:
            self.in_flight -= 1

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"  # a client may send any method name
        with self._lock:
            self._requests[method, route, status] += 1
            self._buckets[route][bisect_left(BOUNDS_S, seconds)] += 1
            self._seconds[route] += seconds

    def value(self, name: str, kind: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a `gauge` or `counter` whose value is read elsewhere."""
        self._values.append((name, kind, help_text, read))

    def text(self) -> str:
        values = [(name, kind, words, read()) for name, kind, words, read in self._values]
        with self._lock:
            lines = _head("quintet_requests_total", "counter", "Requests answered.")
            for (method, route, status), count in sorted(self._requests.items()):
                labels = _labels(method=method, route=route, status=str(status))
                lines.append(f"quintet_requests_total{labels} {count}")
            lines += _head("quintet_request_seconds", "histogram", "Seconds from a request to the end of its response.")
            for route in sorted(self._buckets):
                lines += self._histogram(route)
            values.append(("quintet_requests_in_flight", "gauge", "Requests being answered.", self.in_flight))
        for name, kind, words, number in values:
            lines += [*_head(name, kind, words), f"{name} {number:.10g}"]
        return "\n".join(lines) + "\n"

    def _histogram(self, route: str) -> list[str]:
        lines, total = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self._buckets[route], strict=True):
            total += count
            lines.append(f"quintet_request_seconds_bucket{_labels(route=route, le=bound)} {total}")
        lines.append(f"quintet_request_seconds_sum{_labels(route=route)} {self._seconds[route]:.6f}")
        lines.append(f"quintet_request_seconds_count{_labels(route=route)} {total}")
        return lines


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _labels(**labels: str) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


class Measure:
    """ASGI middleware: counts and times every request by its route."""

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
