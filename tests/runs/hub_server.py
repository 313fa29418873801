"""A stand-in for the hub of Hugging Face: the part of its HTTP interface that loading and uploading use."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub:
    """The models that it holds, name -> path -> content, and what was asked for."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.cut_short: set[str] = set()  # files of which half is sent
        self.url = ""

    def commit(self, name: str) -> str:
        content = sorted((path, hashlib.sha1(data).hexdigest()) for path, data in self.models[name].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, status: int, content: bytes | Any = b"", **headers: str) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(path)
            if file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                name, wanted = file.groups()
                data = hub.models.get(name, {}).get(wanted)
                if data is None:
                    code = "EntryNotFound" if name in hub.models else "RepoNotFound"
                    self.answer(404, X_Error_Code=code)
                    return
                etag = f'"{hashlib.sha1(data).hexdigest()}"'
                if wanted in hub.cut_short and self.command == "GET":
                    self.send_response(200)
                    for key, value in (("ETag", etag), ("X-Repo-Commit", hub.commit(name))):
                        self.send_header(key, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data[: len(data) // 2])
                    self.close_connection = True
                    return
                self.answer(200, data, ETag=etag, X_Repo_Commit=hub.commit(name))
            elif model := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(/revision/.+|/tree/.+)?", path):
                name, part = model[1], model[2] or ""
                if name not in hub.models:
                    self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
                elif part.startswith("/tree/"):
                    files = hub.models[name].items()
                    self.answer(200, [{"type": "file", "path": p, "size": len(d), "oid": "0" * 40} for p, d in files])
                else:
                    files = [{"rfilename": path} for path in hub.models[name]]
                    self.answer(200, {"id": name, "sha": hub.commit(name), "siblings": files, "private": False})
            else:
                self.answer(404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.asked.append(self.path)
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                if not self.headers.get("Authorization"):
                    self.answer(401, {"error": "who are you?"})
                    return
                name = f"{asked['organization']}/{asked['name']}"
                hub.models.setdefault(name, {})
                self.answer(200, {"url": f"{hub.url}/{name}", "name": name, "id": "1"})
            elif "/preupload/" in self.path:
                files = json.loads(body)["files"]
                modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
                self.answer(200, {"files": modes})
            elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/.+", self.path.partition("?")[0]):
                name = match[1]
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        hub.models[name][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                commit = hub.commit(name)
                url = f"{hub.url}/{name}/commit/{commit}"
                self.answer(200, {"success": True, "commitOid": commit, "commitUrl": url})
            else:
                self.answer(200, {"errors": [], "warnings": []})  # the check of a model card

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
