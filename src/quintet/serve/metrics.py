"""Counts and times of a server in the text form that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by route and status with their times, and values that are read when somebody asks.

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
        method = method if method in METHODS else "other"  # a client may invent as many as it likes
        with self._lock:
            self._requests[method, route, status] += 1
            self._buckets[route][bisect_left(BOUNDS_S, seconds)] += 1
            self._seconds[route] += seconds

    def value(self, name: str, kind: str, help_text: str, read: Callable[[], float]) -> None:
        """A `gauge` or `counter` that is kept elsewhere."""
        self._values.append((name, kind, help_text, read))

    def text(self) -> str:
        values = [(name, kind, words, read()) for name, kind, words, read in self._values]
        with self._lock:
            lines = _head("quintet_requests_total", "counter", "Requests that were answered.")
            for (method, route, status), count in sorted(self._requests.items()):
                labels = _labels(method=method, route=route, status=str(status))
                lines.append(f"quintet_requests_total{labels} {count}")
            lines += _head("quintet_request_seconds", "histogram", "Time from the request to the end of its answer.")
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
