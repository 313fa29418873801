"""A running `quintet serve`: slow sockets, malformed requests, hostile uploads, an index that is harmed, hot swaps.

One server, with few descriptors, bears all attacks of a campaign. After each it must live, be healthy, have no
traceback in its log, and have little more memory than at first.
"""

from __future__ import annotations

import atexit
import ctypes
import http.client
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import quintet
from benchmarks.torture import material
from benchmarks.torture.attack import Attack, Ending, Outcome, copy_tree, start_child, wait_for
from benchmarks.torture.hostile import NESTED
from benchmarks.torture.hostile import _bomb as bomb
from benchmarks.torture.hostile import _exif as damaged_exif
from benchmarks.torture.hostile import _flipped as flipped
from benchmarks.torture.material import Material

DESCRIPTORS = 256
GROWTH = 400 * 2**20  # bytes of memory that a server and its decoders may keep
PEAK = 2 * 2**30  # ... and may have for a moment, above those at first
LOG_BYTES = 200_000  # of one attack
PATIENCE_S = 40.0
SEARCH = json.dumps({"query": material.QUERY}).encode()
JSON = {"Content-Type": "application/json"}


@dataclass
class Serving:
    process: subprocess.Popen[bytes]
    port: int
    index: Path
    log: Path
    memory: int = 0

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def search(self) -> int:
        return self.ask("POST", "/api/search", SEARCH, **JSON)[0]

    def healthy(self) -> bool:
        return b'"ok"' in self.ask("GET", "/health")[1]

    def resident(self) -> int:
        """Bytes of the server and its decoders."""
        pids = [self.process.pid]
        with suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
        total = 0
        for pid in pids:
            with suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
        return total


_serving: dict[Path, Serving] = {}  # by its folder


def serving(made: Material) -> Serving:
    """The server of this worker of a campaign; another one where it was lost."""
    folder = made.folder / f"server-{os.getpid()}"
    server = _serving.get(folder)
    if server is None or server.process.poll() is not None:
        server = _serving[folder] = _start(made, folder)
        server.memory = server.resident()
    return server


def _start(made: Material, folder: Path) -> Serving:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index, log = copy_tree(made.index, folder / "index"), folder / "log"
    command = [sys.executable, "-m", "quintet", "serve", str(index), "--port", "0", "--device", "cpu"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--thumbnails", str(folder / "thumbnails")],
            stderr=file,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "500"},
            preexec_fn=_few_descriptors_and_no_orphan,
        )
    atexit.register(process.kill)
    for _ in range(1200):
        if found := re.search(r"http://localhost:(\d+)", log.read_text()):
            server = Serving(process, int(found[1]), index, log)
            if server.search() != 200:
                break
            return server
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the server does not start: {log.read_text()[-2000:]}")


def _few_descriptors_and_no_orphan() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the campaign, however that ends


def attack(
    name: str, harm: Callable[[random.Random, Serving, Material], str], rng: random.Random, made: Material, folder: Path
) -> Iterator[Outcome]:
    """`harm` returns what was lost on the way, or nothing."""
    server = serving(made)
    logged = server.log.stat().st_size
    try:
        lost = harm(rng, server, made)
        lost = lost or _aftermath(server, logged)
    except (OSError, http.client.HTTPException) as error:
        lost = f"no answer: {type(error).__name__}"
    if lost:
        with suppress(OSError):
            server.process.kill()
        server.process.wait()
    yield Outcome(name, lost, server.log.read_bytes()[logged:][-300:].decode("utf-8", "replace") if lost else "")


def _aftermath(server: Serving, logged: int) -> str:
    if server.process.poll() is not None:
        return f"the server ended with {server.process.returncode}"
    if not _until(lambda: server.search() == 200 and server.healthy()):
        return "not healthy afterwards"
    if b"Traceback" in server.log.read_bytes()[logged:]:
        return "a traceback in the log"
    if server.log.stat().st_size - logged > LOG_BYTES:
        return "a large log"
    if not _until(lambda: server.resident() < server.memory + GROWTH):
        return "memory was kept"
    return ""


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


# The attacks


def slow_sockets(rng: random.Random, server: Serving, made: Material) -> str:
    """Several times more sockets than the server has descriptors, at different places of a request."""
    head = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(SEARCH) + SEARCH
    waiting: list[socket.socket] = []
    try:
        for _ in range(3):
            while len(waiting) < 700:
                each = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
                each.sendall(whole[: rng.randrange(len(whole))] if rng.random() < 0.8 else b"")
                waiting.append(each)
            if server.search() != 200:
                return "another client was not answered"
            for each in rng.sample(waiting, 200):
                with suppress(OSError):
                    each.sendall(b"x")
                if rng.random() < 0.5:
                    each.close()
            waiting = [each for each in waiting if each.fileno() >= 0]
    finally:
        for each in waiting:
            each.close()
    return ""


TEXTS = ["\ud800", "\0", "", "a" * 20_000, "../../etc/passwd", "%s%n", "\u202e", "' OR 1=1", NESTED, "nan", "1e999"]
VALUES: list[Any] = [None, True, -1, 0, 10**30, 1e308, [], {}, [[]], {"a": {}}, *TEXTS]
HEADERS = ["Cookie", "Authorization", "If-None-Match", "Range", "Accept", "Expect", "Connection", "Host", "Upgrade"]
HEADERS += ["Transfer-Encoding", "Content-Length", "X-Forwarded-For", "Sec-Fetch-Site"]
HEADER_VALUES = ["", "quintet-session=\xff", "Bearer \xff", "bytes=9-1", "chunked", "-1", "9" * 30, "100-continue"]
HEADER_VALUES += ["a\tb", "websocket", "upgrade", "[::1].evil.example", "x" * 70_000]
GETS = ["item", "image", "thumbnail", "similar", "index", "session", "nothing"]


def _request(rng: random.Random) -> bytes:
    method = rng.choice(["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "BREW", "get"])
    path = rng.choice(
        ["/", "/health", "/metrics", "/openapi.json", "/static/../app.py", "*", "//", "/%00", "/api/search"]
    )
    body, headers = b"", {"Host": "localhost"}
    if rng.random() < 0.5:
        path = rng.choice(["/api/search", "/api/explain", "/api/session", "/api/search/image"])
        keys = ("query", "id", "kind", "limit", "offset", "where", "token", "more")
        body = json.dumps({key: rng.choice(VALUES) for key in rng.sample(keys, 3)}).encode()
        method, headers["Content-Type"] = "POST", rng.choice(["application/json", "text/plain", "image/png", "\xff"])
        if rng.random() < 0.3:
            body = rng.choice([rng.randbytes(300), NESTED.encode(), b'{"query": 9' + b"9" * 5000 + b"}", b"\xff\xfe"])
    elif rng.random() < 0.6:
        value = "".join(
            rng.choice(["%ED%A0%80", "%00", "%", "a", "&", "=", "#", "+", "%FF", "..%2f"]) for _ in range(6)
        )
        path = f"/api/{rng.choice(GETS)}?{rng.choice(['id', 'size', 'kind', 'limit', ''])}={value}"
    for _ in range(rng.randrange(3)):
        headers[rng.choice(HEADERS)] = rng.choice(HEADER_VALUES)
    headers.setdefault("Content-Length", str(len(body) + rng.choice([0, 0, 0, -1, 5])))
    lines = [f"{method} {path} HTTP/{rng.choice(['1.1', '1.1', '1.0', '2.0'])}"]
    data = (
        "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode("latin-1") + body
    )
    return flipped(data, rng) if rng.random() < 0.3 else data


def malformed_requests(rng: random.Random, server: Serving, made: Material) -> str:
    for _ in range(60):
        data = _request(rng)
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
            answer = b""
            with suppress(ConnectionError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(2**16)
        if answer[9:10] == b"5":
            return f"{answer[9:12].decode()} for {data[:60]!r}"
    return ""


def _upload(rng: random.Random, good: bytes) -> bytes:
    def saved(mode: str, side: int, kind: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        Image.new(mode, (side, side)).save(buffer, kind, **options)
        return buffer.getvalue()

    def noise() -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (64, 64, 3), np.uint8)).save(
            buffer, rng.choice(["GIF", "WEBP", "TIFF", "BMP", "PPM", "JPEG"])
        )
        return buffer.getvalue()

    kinds: list[Callable[[], bytes]] = [
        lambda: bomb(rng.choice([6_000, 8_900, 50_000, 2**31 - 1])),
        lambda: saved("RGBA", 6_300, "PNG"),
        lambda: saved("1", 8_900, "TIFF", compression="group4"),
        lambda: saved("RGB", 8_000, "JPEG", progressive=True),
        lambda: flipped(good, rng),
        lambda: flipped(noise(), rng),
        lambda: damaged_exif(good, rng),
        lambda: good[: rng.randrange(len(good))],
        lambda: rng.randbytes(2000),
        lambda: b"",
        lambda: good,
    ]
    return rng.choice(kinds)()


def hostile_uploads(rng: random.Random, server: Serving, made: Material) -> str:
    """Four at a time, while the memory of the server and its decoders is watched."""
    good = sorted(made.images.glob("*.png"))[0].read_bytes()
    uploads, lost, most = [_upload(rng, good) for _ in range(12)], list[str](), [0]

    def send(some: list[bytes]) -> None:
        for data in some:
            status, body = server.ask("POST", "/api/search/image", data)
            if status >= 500 and b'"busy"' not in body:
                lost.append(f"{status} for an upload")

    threads = [threading.Thread(target=send, args=(uploads[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most.append(server.resident())
        time.sleep(0.02)
    if max(most) > server.memory + PEAK:
        return f"{max(most) >> 20} MiB at most"
    return lost[0] if lost else ""


def _harm(rng: random.Random, index: Path) -> None:
    files = [index / "index.json", index / "items.sqlite", *sorted((index / "vectors").iterdir())]
    how = rng.choice(["deleted", "replaced by a file", "file deleted", "flipped", "cut short", "replaced by a FIFO"])
    path = rng.choice(files)
    if how in ("deleted", "replaced by a file"):
        shutil.rmtree(index)
        if how != "deleted":
            index.write_bytes(b"something else")
    elif how == "flipped":
        path.write_bytes(flipped(path.read_bytes() or b"x", rng))
    elif how == "cut short":
        os.truncate(path, rng.randrange(path.stat().st_size + 1))
    else:
        path.unlink()
        if how != "file deleted":
            os.mkfifo(path)


def harmed_index(rng: random.Random, server: Serving, made: Material) -> str:
    """Searches are answered from memory or refused, and the next good index is served."""
    _harm(rng, server.index)
    for _ in range(10):
        status, body = server.ask("POST", "/api/search", SEARCH, **JSON)
        if status != 200 and (status != 503 or b"stale_index" not in body):
            return f"{status} from a harmed index"
        if server.ask("GET", "/health")[0] != 200:
            return "no health"
        time.sleep(0.1)
    shutil.rmtree(server.index) if server.index.is_dir() else server.index.unlink(missing_ok=True)
    copy_tree(made.index, server.index)
    return ""


def hot_swap(rng: random.Random, server: Serving, made: Material) -> str:
    """Rebuilt back and forth between two contents, under load: every search is answered."""
    writer = start_child(_rebuild, made, server.index)
    statuses, stop = set[int](), threading.Event()

    def load() -> None:
        while not stop.is_set():
            statuses.add(server.search())

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    wrote: Ending = wait_for(*writer, seconds=120)
    stop.set()
    for thread in threads:
        thread.join()
    if wrote.kind != "done":
        return f"the writer: {wrote.what}"
    return "" if statuses == {200} else f"statuses {sorted(statuses)}"


def _rebuild(made: Material, at: Path) -> None:
    for source in (made.corpus, made.images, made.corpus):
        quintet.build_index(made.run, source, at, batch_size=2, workers=1, device="cpu", prune=True)


def _named(name: str, harm: Callable[[random.Random, Serving, Material], str]) -> Attack:
    return lambda rng, made, folder: attack(name, harm, rng, made, folder)


ATTACKS: dict[str, Attack] = {
    name: _named(name, harm)
    for name, harm in {
        "server: slow sockets": slow_sockets,
        "server: malformed requests": malformed_requests,
        "server: hostile uploads": hostile_uploads,
        "server: index harmed under it": harmed_index,
        "server: hot swap under load": hot_swap,
    }.items()
}
