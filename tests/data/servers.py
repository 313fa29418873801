"""A server of files that fails as servers do, and one that speaks as Google Cloud Storage does."""

from __future__ import annotations

import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Served:
    """`files`: path -> content. `drop`: of every so many answers about one file one ends in its middle."""

    files: dict[str, bytes]
    drop: int = 0
    ranges: bool = True
    down: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, range of every GET
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(files: dict[str, bytes], drop: int = 0, ranges: bool = True) -> Iterator[Served]:
    served = Served(files, drop, ranges)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(False)

        def do_GET(self) -> None:
            self._answer(True)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0].removeprefix("/")
            if served.down:
                self.send_error(503)
                return
            if path not in served.files:
                self.send_error(404)
                return
            content = served.files[path]
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            partial = asked is not None and served.ranges
            start, stop = (
                (int(asked[1]), min(int(asked[2]) + 1, len(content))) if partial and asked else (0, len(content))
            )
            self.send_response(206 if partial else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("ETag", f'"{abs(hash(content))}"')
            if served.ranges:
                self.send_header("Accept-Ranges", "bytes")
            if partial:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            self.end_headers()
            if not body:
                return
            with served.lock:
                served.asked.append((path, self.headers.get("Range")))
                times = sum(name == path for name, _ in served.asked)
                dropped = served.drop and times % served.drop == 0
            self.wfile.write(content[start : (start + stop) // 2 if dropped else stop])
            if dropped:
                self.close_connection = True
                self.connection.shutdown(2)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving_gs(bucket: str, files: dict[str, bytes]) -> Iterator[str]:
    """A bucket as Google Cloud Storage shows it: lists of objects, and their content."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            query = urllib.parse.parse_qs(url.query)
            objects = f"/storage/v1/b/{bucket}/o"
            name = urllib.parse.unquote(url.path.rpartition(f"{objects}/")[2])
            if url.path == objects:
                prefix = query.get("prefix", [""])[0]
                self._send(200, json.dumps({"items": [_gs_object(n, bucket) for n in files if n.startswith(prefix)]}))
            elif name not in files:
                self._send(404, json.dumps({"error": {"code": 404, "message": "Not Found"}}))
            elif query.get("alt") == ["media"]:
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(files[name]))
                self._send(206 if asked else 200, files[name][start:stop])
            else:
                self._send(200, json.dumps(_gs_object(name, bucket)))

        def _send(self, status: int, content: str | bytes) -> None:
            data = content.encode() if isinstance(content, str) else content
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if isinstance(content, str) else "application/x-tar")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    def _gs_object(name: str, bucket: str) -> dict[str, Any]:
        facts = {"etag": f"e{len(files[name])}", "updated": "2026-01-01T00:00:00.000Z"}
        return {"name": name, "bucket": bucket, "size": str(len(files[name])), "kind": "storage#object", **facts}

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
