"""Sockets that wait, dribble or do not read: they lose their connection, and nobody else loses the service."""

from __future__ import annotations

import http.client
import logging
import resource
import select
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from quintet.errors import QuintetError
from quintet.serve.connections import RESERVED, connection_limit
from quintet.serve.server import OneLine, Throttle
from quintet.serve.settings import tls_context

TOKEN = "a-token-of-some-length"
HEAD = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\n"
QUICK = {"idle_s": 0.6, "header_s": 0.6, "body_s": 0.6, "write_s": 0.6}


def connect(address: str, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=5)
    connection.sendall(data)
    return connection


def ended(connection: socket.socket) -> bool:
    """Whether the server closed it; what it sent before is read."""
    try:
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(2**16):
                return True
    except ConnectionError:
        return True
    return False


def seconds_until_ended(connection: socket.socket, dribble: bytes = b"") -> float:
    """`dribble` is sent ten times a second."""
    began = time.monotonic()
    while not ended(connection):
        assert time.monotonic() - began < 10, "it is still open"
        time.sleep(0.1)
        try:
            connection.sendall(dribble)
        except ConnectionError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize("already", [b"", b"GET /", HEAD, HEAD + b"Content-Length: 50\r\n\r\n"])
def test_idle_and_slow_sockets_beyond_the_limit_do_not_stop_the_service(
    make_app: Callable[..., FastAPI], live: Callable[..., str], already: bytes
) -> None:
    address = live(make_app(), max_connections=20)
    waiting = [connect(address, already) for _ in range(100)]
    began = time.monotonic()
    for _ in range(10):
        assert httpx2.post(address + "/api/search", json={"query": "red"}).status_code == 200
    assert time.monotonic() - began < 30
    assert sum(not ended(connection) for connection in waiting) < 20
    for connection in waiting:
        connection.close()


def test_connections_that_are_being_answered_keep_their_room(
    make_app: Callable[..., FastAPI], live: Callable[..., str], searcher: Any
) -> None:
    address = live(make_app(), max_connections=8)
    searcher.gate.clear()
    body = b'{"query": "red"}'
    request = HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    answered = [connect(address, request) for _ in range(4)]
    time.sleep(0.3)
    waiting = [connect(address) for _ in range(30)]
    time.sleep(0.3)
    assert not any(ended(connection) for connection in answered)
    searcher.gate.set()
    assert all(connection.recv(100).startswith(b"HTTP/1.1 200") for connection in answered)
    for connection in answered + waiting:
        connection.close()


@pytest.mark.parametrize(
    ("already", "dribble"),
    [
        (b"", b""),  # nothing
        (HEAD, b""),  # half a header
        (HEAD, b"x"),  # a header that never ends
        (HEAD + b"Content-Length: 5000\r\n\r\n", b" "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),  # answered, and nothing follows
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"x"),
    ],
)
def test_every_step_of_a_request_has_a_deadline(
    make_app: Callable[..., FastAPI], live: Callable[..., str], already: bytes, dribble: bytes
) -> None:
    connection = connect(live(make_app(), **QUICK, slowest_upload=2**20), already)
    assert 0.4 < seconds_until_ended(connection, dribble) < 4


def test_a_body_that_nobody_reads_any_more_has_a_deadline_too(
    make_app: Callable[..., FastAPI], live: Callable[..., str]
) -> None:
    address = live(make_app(token=TOKEN), **QUICK, slowest_upload=2**20)
    connection = connect(address, HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    assert connection.recv(100).startswith(b"HTTP/1.1 401")
    assert seconds_until_ended(connection, b"1\r\n \r\n") < 4


def test_a_steady_upload_may_take_longer_than_the_deadline(
    make_app: Callable[..., FastAPI], live: Callable[..., str]
) -> None:
    address = live(make_app(), **QUICK, slowest_upload=2000)
    connection = connect(address, HEAD + b"Content-Type: application/json\r\nContent-Length: 15000\r\n\r\n")
    for _ in range(15):  # 2 s in all
        connection.sendall(b" " * 1000)
        time.sleep(0.13)
    assert connection.recv(100).startswith(b"HTTP/1.1 422")  # read to the end
    connection.close()


def test_a_keep_alive_connection_that_is_used_stays_open(
    make_app: Callable[..., FastAPI], live: Callable[..., str]
) -> None:
    limits = dict.fromkeys(QUICK, 1.0)
    connection = http.client.HTTPConnection("127.0.0.1", int(live(make_app(), **limits).rpartition(":")[2]), timeout=5)
    connection.connect()
    first = connection.sock
    for _ in range(12):
        connection.request("GET", "/health")
        assert b'"ok"' in connection.getresponse().read()
        time.sleep(0.2)
    assert connection.sock is first
    connection.close()


def test_an_answer_that_is_not_read_is_dropped(make_app: Callable[..., FastAPI], live: Callable[..., str]) -> None:
    app = make_app()

    @app.get("/large")
    async def large() -> Any:
        return "x" * 30_000_000

    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", int(live(app, **QUICK).rpartition(":")[2])))
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(3)
    connection.settimeout(5)
    received = 0
    with suppress(ConnectionResetError):
        while data := connection.recv(2**20):
            received += len(data)
    assert received < 30_000_000
    connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 200_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_gets_no_traceback(
    make_app: Callable[..., FastAPI], live: Callable[..., str], caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    address = live(make_app(), **QUICK)
    connection = connect(address)
    try:
        connection.sendall(data)
        answer = connection.recv(2**16)
        time.sleep(0.1)
        connection.sendall(b"zz\r\n" * 10)  # behind the answer
    except ConnectionError:
        answer = b""
    assert not answer or answer[9:10] in b"24", answer
    assert httpx2.get(address + "/health").status_code == 200
    assert not [record for record in caplog.records if record.exc_info]
    connection.close()


def test_there_are_fewer_connections_than_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: limits.append(values))
    assert connection_limit(100) == 100
    assert limits == [(1024, 4096)]
    assert connection_limit(1000) == 1000
    assert limits[-1] == (RESERVED + 2000, 4096)  # the soft limit was raised
    limits.append((1024, 1024))
    assert connection_limit(1000) == (1024 - RESERVED) // 2
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connection_limit(1000) == 1000
    limits.append((100, 100))
    with pytest.raises(QuintetError, match="open files"):
        connection_limit(1000)


def test_the_log_has_so_many_records_a_minute_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    throttle, kept = Throttle(per_minute=3), []

    def log(number: int, line: int) -> None:
        record = logging.LogRecord("a", logging.WARNING, "file.py", line, "number %d", (number,), None)
        if throttle.filter(record):
            kept.append(record.getMessage())

    for number in range(10):
        log(number, 1)
    log(10, 2)  # another line of code
    clock[0] = 61
    log(11, 1)
    log(12, 1)
    expected = ["number 0", "number 1", "number 2", "number 10", "number 11 (7 more of these were not logged)"]
    assert kept == [*expected, "number 12"]


def test_a_record_is_one_printable_line() -> None:
    record = logging.LogRecord("a", logging.WARNING, "", 1, "%s", ("a\r\nb\x1b[2J\udcff" + "x" * 9000,), None)
    shown = OneLine("%(message)s").format(record)
    assert shown.startswith(r"a\r\nb\x1b[2J\udcffx")
    assert shown.isprintable()
    assert len(shown) < 4100


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl on this computer")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def test_https(
    make_app: Callable[..., FastAPI], live: Callable[..., str], certificate: tuple[Path, Path], caplog: Any
) -> None:
    limits = {"tls": tls_context(*certificate), "max_connections": 10, "header_s": 1.0}
    address = live(make_app(token=TOKEN), **limits).replace("http:", "https:")
    with httpx2.Client(base_url=address, verify=ssl.create_default_context(cafile=certificate[0])) as client:
        answer = client.post("/api/session", json={"token": TOKEN})
        assert "Secure" in answer.headers["Set-Cookie"]
        assert client.post("/api/search", json={"query": "red"}).status_code == 200
    # Sockets that never shake hands are connections, too.
    waiting = [connect(address, b"\x16\x03\x01" if number % 2 else b"") for number in range(40)]
    with httpx2.Client(base_url=address, verify=ssl.create_default_context(cafile=certificate[0])) as client:
        assert client.get("/health").status_code == 200
    assert sum(not ended(connection) for connection in waiting) < 10
    assert seconds_until_ended(waiting[-1]) < 4
    plain = connect(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert seconds_until_ended(plain) < 4
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="there is no prlimit on this computer")
def test_1100_sockets_do_not_stop_a_server_with_256_descriptors(index: Any, serve: Callable[..., Any]) -> None:
    server = serve(index, descriptors=256)
    began, slowest = time.monotonic(), 0.0
    waiting: list[socket.socket] = []
    starts = [
        b"",
        b"GET / HT",
        HEAD,
        HEAD + b"Content-Length: 900\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    with httpx2.Client(base_url=server.address, timeout=10) as client:
        while time.monotonic() - began < 25:
            while len(waiting) < 1100:
                waiting.append(connect(server.address, starts[len(waiting) % len(starts)]))
            for each in waiting[::7]:
                try:
                    each.sendall(b"x")
                except OSError:
                    each.close()
            waiting = [each for each in waiting if each.fileno() >= 0]
            asked = time.monotonic()
            # A new connection each time: one that waits may be closed at any moment.
            answer = client.post("/api/search", json={"query": "red"}, headers={"Connection": "close"})
            assert answer.status_code == 200
            slowest = max(slowest, time.monotonic() - asked)
    assert slowest < 5
    assert server.log.stat().st_size < 20_000
    for each in waiting:
        each.close()
