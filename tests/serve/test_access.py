"""Tokens for everything or for searching only, and the limits of each client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from quintet.errors import QuintetError
from quintet.serve import access
from quintet.serve.access import SESSION_S, SESSIONS, Access, Clients, Keys
from quintet.serve.settings import Settings

TOKEN, READ = "a-token-of-some-length", "another-token-to-look"
FULL, LOOK = ({"Authorization": f"Bearer {token}"} for token in (TOKEN, READ))
THERE = ("192.0.2.7", 5000)


def client_at(app: FastAPI, address: tuple[str, int] = THERE, **options: Any) -> TestClient:
    return TestClient(app, base_url="http://photos.example", client=address, **options)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/search/image"), ("POST", "/api/search/picture"), ("GET", "/metrics"), ("DELETE", "/api/sessions")],
)
def test_a_read_only_token_reaches_nothing_that_reveals_or_changes_the_server(
    make_app: Callable[..., FastAPI], method: str, path: str
) -> None:
    client = client_at(make_app(token=TOKEN, read_token=READ))
    answer = client.request(method, path, headers=LOOK)
    assert (answer.status_code, answer.json()["code"]) == (403, "full_token_needed")
    client.post("/api/session", json={"token": READ})
    assert client.request(method, path).status_code == 403  # nor does its cookie
    assert client.request(method, path, headers=FULL).status_code == 403  # the session decides
    client.cookies.clear()
    assert client.request(method, path, headers=FULL).status_code in (200, 204, 422)


def test_a_read_only_token_searches_and_looks(make_app: Callable[..., FastAPI]) -> None:
    client = client_at(make_app(token=TOKEN, read_token=READ), headers=LOOK)
    assert client.post("/api/search", json={"query": "red"}).status_code == 200
    assert client.post("/api/explain", json={"query": "red", "id": "p0"}).status_code == 200
    for path in ("similar", "item", "image", "thumbnail"):
        assert client.get(f"/api/{path}?id=p0").status_code == 200
    facts = client.get("/api/index").json()
    assert facts["access"] == "read"
    assert set(facts["index"]) == {"matcher", "counts", "can_explain_regions"}  # not where it is stored
    assert client_at(make_app(token=TOKEN), headers=FULL).get("/api/index").json()["index"]["generation"] == 1


def test_what_is_wrong_with_the_index_is_told_to_full_tokens_only(
    make_app: Callable[..., FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(token=TOKEN, read_token=READ)
    monkeypatch.setattr(type(app.state.service), "index_error", "/home/anna/photos.index is damaged")
    assert client_at(app, headers=FULL).get("/api/index").json()["index_error"] == "/home/anna/photos.index is damaged"
    assert "anna" not in client_at(app, headers=LOOK).get("/api/index").text
    assert "anna" not in client_at(app).get("/health").text


def test_a_read_only_token_is_another_one_and_enough_to_start() -> None:
    with pytest.raises(QuintetError, match="read-only token"):
        Settings(token=TOKEN, read_token=TOKEN)
    with pytest.raises(QuintetError, match="can be guessed"):
        Settings(token=TOKEN, read_token="short")
    assert Settings(host="0.0.0.0", read_token=READ)


def test_wrong_tokens_are_limited_and_right_ones_do_not_help_a_guesser(make_app: Callable[..., FastAPI]) -> None:
    app = make_app(token=TOKEN)
    client, elsewhere = client_at(app), client_at(app, ("192.0.2.8", 1))
    statuses = [client.get("/api/index", headers={"Authorization": f"Bearer {n:020}"}).status_code for n in range(8)]
    statuses += [client.post("/api/session", json={"token": f"{n:020}"}).status_code for n in range(7)]
    assert statuses == [401] * 10 + [429] * 5
    answer = client.get("/api/index", headers=FULL)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 6
    assert client.get("/").status_code == client.get("/health").status_code == 200
    assert client.get("/api/index").status_code == 401  # without a token nothing is guessed
    assert elsewhere.get("/api/index", headers=FULL).status_code == 200


def test_a_session_goes_on_while_tokens_of_its_address_are_refused(make_app: Callable[..., FastAPI]) -> None:
    app = make_app(token=TOKEN)
    person, guesser = client_at(app), client_at(app)
    person.post("/api/session", json={"token": TOKEN})
    for number in range(20):
        guesser.get("/api/index", headers={"Authorization": f"Bearer {number:020}"})
    assert person.get("/api/index").status_code == 200


def test_requests_of_one_client_are_limited_by_rate(make_app: Callable[..., FastAPI]) -> None:
    app = make_app(token=TOKEN, client_rate=2)
    client = client_at(app, headers=FULL)
    statuses = [client.get("/health").status_code for _ in range(12)]
    assert statuses[:8] == [200] * 8
    assert 429 in statuses[8:]
    answer = client.get("/health")
    if answer.status_code == 429:
        assert answer.json()["code"] == "too_many_requests"
        assert answer.headers["Retry-After"] == "1"
    assert client_at(app, ("192.0.2.8", 1)).get("/health").status_code == 200


def test_requests_of_one_client_at_the_same_time_are_limited(make_app: Callable[..., FastAPI], searcher: Any) -> None:
    app = make_app(token=TOKEN, client_concurrency=3)
    searcher.gate.clear()
    with client_at(app, headers=FULL) as client, ThreadPoolExecutor(3) as threads:
        held = [threads.submit(client.post, "/api/search", json={"query": "red"}) for _ in range(3)]
        while app.state.service._searches.pending < 3:
            threading.Event().wait(0.01)
        assert client.get("/health").status_code == 429
        assert client_at(app, ("192.0.2.8", 1)).get("/health").status_code == 200
        searcher.gate.set()
        assert [future.result().status_code for future in held] == [200] * 3
        assert client.get("/health").status_code == 200


def clients(clock: list[float], **limits: Any) -> Clients:
    return Clients(Settings(**limits), lambda: clock[0])


def test_a_bucket_fills_with_its_rate() -> None:
    clock = [0.0]
    some = clients(clock, client_rate=2)
    waits = [some.begin("192.0.2.7") for _ in range(10)]
    assert waits == [0] * 8 + [0.5, 0.5]
    clock[0] = 0.4
    assert some.begin("192.0.2.7") == pytest.approx(0.1)
    clock[0] = 0.5
    assert some.begin("192.0.2.7") == 0
    clock[0] = 1000
    assert [some.begin("192.0.2.7") for _ in range(9)].count(0) == 8


def test_clients_on_this_computer_are_limited_only_when_told_so() -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert not any(clients([0.0]).begin(address) for _ in range(1000))
        some = clients([0.0], client_rate=1, client_concurrency=2)
        assert [some.begin(address) for _ in range(3)] == [0, 0, 1]
    some = clients([0.0])
    assert [some.begin("192.0.2.7") for _ in range(33)] == [0] * 32 + [1]
    unlimited = clients([0.0], client_rate=0, client_concurrency=0)
    assert not any(unlimited.begin("192.0.2.7") for _ in range(1000))


def test_a_network_of_ipv6_is_one_client_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "CLIENTS", 50)
    some = clients([0.0], client_rate=1)
    assert [some.begin(f"2001:db8::{number:x}") for number in range(5)] == [0] * 4 + [1]
    for number in range(500):
        if some.begin(address := f"2001:db8:{number:x}::1") == 0:
            some.end(address)
    assert len(some._known) <= 51


def test_sessions_end_by_themselves_and_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("quintet.serve.access.time.monotonic", lambda: clock[0])
    keys = Keys(TOKEN, None)
    first = keys.begin(Access.FULL)
    assert keys.of_session(first) is Access.FULL
    clock[0] = SESSION_S + 1
    assert keys.of_session(first) is Access.NONE
    many = [keys.begin(Access.READ) for _ in range(SESSIONS + 1)]
    assert keys.of_session(many[0]) is Access.NONE
    assert keys.of_session(many[-1]) is Access.READ


def test_a_trusted_proxy_tells_who_asks_and_nobody_else_does(
    make_app: Callable[..., FastAPI], live: Callable[..., str]
) -> None:
    for proxies, others in ((("127.0.0.1",), 200), ((), 429)):
        app = make_app(token=TOKEN, client_rate=0.01, proxies=proxies)
        address = live(app, token=TOKEN, proxies=proxies)
        asked = [httpx2.get(address + "/health", headers={"X-Forwarded-For": f"192.0.2.{n}"}) for n in (7, 7, 8)]
        assert [answer.status_code for answer in asked] == [200, 429, others]
