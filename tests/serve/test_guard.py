from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from quintet.serve.guard import COOKIE, HEADERS, host_name

TOKEN = "a-token-of-some-length"


@pytest.fixture
def guarded(make_app: Callable[..., FastAPI]) -> TestClient:
    return TestClient(make_app(token=TOKEN), base_url="http://photos.example")


@pytest.mark.parametrize(
    "path", ["/api/index", "/api/item?id=p0", "/api/thumbnail?id=p0", "/api/image?id=p0", "/metrics", "/api/none"]
)
def test_with_a_token_nothing_of_the_index_is_told_without_it(guarded: TestClient, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Cookie": f"{COOKIE}={TOKEN}"}):
        answer = guarded.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json()["code"] == "token_needed"
    assert guarded.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code in (200, 404)


@pytest.mark.parametrize("path", ["/api/search", "/api/search/image", "/api/explain"])
def test_nor_is_a_body_read(guarded: TestClient, path: str) -> None:
    def body() -> object:
        raise AssertionError("read")
        yield b""

    assert guarded.post(path, content=body()).status_code == 401  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/health", "/openapi.json"])
def test_the_page_itself_and_health_are_open(guarded: TestClient, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_a_session_cookie_stands_for_the_token_and_does_not_tell_it(guarded: TestClient) -> None:
    for wrong in ("nonsense", "", "é", TOKEN + "x"):
        assert guarded.post("/api/session", json={"token": wrong}).status_code == 401
    surrogate = guarded.post("/api/session", content=b'{"token": "\\ud800"}')
    assert surrogate.status_code in (401, 422)
    answer = guarded.post("/api/session", json={"token": TOKEN})
    assert answer.status_code == 204
    cookie = answer.headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert guarded.get("/api/index").json()["session"] is True  # the client keeps cookies


def test_a_cookie_is_worth_nothing_after_logging_out_or_a_restart(make_app: Callable[..., FastAPI]) -> None:
    app = make_app(token=TOKEN)
    client, other = (TestClient(app, base_url="https://photos.example") for _ in range(2))
    for each in (client, other):
        assert "Secure" in each.post("/api/session", json={"token": TOKEN}).headers["Set-Cookie"]
    stolen = {COOKIE: client.cookies[COOKIE]}
    thief = TestClient(app, base_url="https://photos.example", cookies=stolen)
    assert thief.get("/api/index").status_code == 200
    assert client.delete("/api/session").status_code == 204
    assert thief.get("/api/index").status_code == client.get("/api/index").status_code == 401
    assert other.get("/api/index").status_code == 200  # another browser's session
    assert other.delete("/api/sessions").status_code == 204
    assert other.get("/api/index").status_code == 401
    other.post("/api/session", json={"token": TOKEN})
    restarted = TestClient(make_app(token=TOKEN), base_url="https://photos.example", cookies=dict(other.cookies))
    assert restarted.get("/api/index").status_code == 401


NOT_LOOPBACK = (
    "127.0.0.1.evil.example:8000", "[::1].evil.example", "[::1]evil", "[::1]:80.evil.example", "[::1", "::1", "[]",
    "localhost:evil.example", "localhost@evil.example", "localhost#", "localhost:8000:8000", "evil.example:localhost",
    "localhost:", " localhost", "localhost.",
)  # fmt: skip


def test_only_a_name_or_address_with_or_without_a_port_is_a_host() -> None:
    assert host_name("Photos.Example:8000") == "photos.example"
    for header in NOT_LOOPBACK:
        assert host_name(header) not in ("localhost", "127.0.0.1", "::1"), header


def test_without_a_token_only_localhost_is_answered(make_app: Callable[..., FastAPI]) -> None:
    client = TestClient(make_app())
    for name in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LocalHost"):
        assert client.get("/api/index", headers={"Host": name}).status_code == 200, name
    for name in ("evil.example", "localhost.evil.example", "192.168.0.7", "", *NOT_LOOPBACK):
        answer = client.get("/api/index", headers={"Host": name})
        assert (answer.status_code, answer.json()["code"]) == (403, "unknown_host"), name


def test_another_sites_page_gets_nothing(client: TestClient) -> None:
    assert client.get("/api/thumbnail?id=p0", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.get("/api/thumbnail?id=p0", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    # A page of another port of this computer is another program's.
    assert client.get("/api/thumbnail?id=p0", headers={"Sec-Fetch-Site": "same-site"}).status_code == 403
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the page is fine


@pytest.mark.parametrize("path", ["/", "/static/style.css", "/api/index", "/api/none", "/api/thumbnail?id=p0"])
def test_every_answer_binds_the_browser(client: TestClient, path: str) -> None:
    answer = client.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "Cache-Control" in answer.headers
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
