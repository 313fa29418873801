"""Several servers over one store: what they answer, when they are ready, and how one of them leaves."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from tests.search.stores.conftest import milvus_port, new_address, postgres  # noqa: F401  # fixtures
from tests.search.stores.proxy import Proxy

from quintet.search import StoreUnavailable
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.serve.app import create_app
from quintet.serve.server import listen, make_server
from quintet.serve.settings import Settings
from quintet.serve.watcher import IndexWatcher

TOKEN = "a-token-of-the-tests"


def test_readiness_is_open_to_probes_and_says_what_does_not_answer(
    make_app: Callable[..., FastAPI], searcher: Any
) -> None:
    with TestClient(make_app(token=TOKEN), base_url="http://10.0.0.7") as probe:
        assert probe.get("/ready").json() == {"status": "ready"}
        searcher.error = StoreUnavailable("the store does not answer")
        answer = probe.get("/ready")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert probe.get("/health").status_code == 200


def test_a_server_that_drains_says_so_and_goes_on_answering(
    make_app: Callable[..., FastAPI], settings: Callable[..., Settings]
) -> None:
    listening = threading.Event()
    with listen(settings()) as listener:
        server = make_server(make_app(), settings(drain_s=1.0), listening.set)
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        running.start()
        assert listening.wait(10)
        with httpx2.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            assert client.get("/ready").status_code == 200
            server.should_exit = True  # what SIGTERM does
            while (answer := client.get("/ready")).status_code == 200:
                time.sleep(0.02)
            assert (answer.status_code, answer.json()["code"]) == (503, "draining")
            assert answer.headers["connection"] == "close"
            assert client.post("/api/search", json={"query": "red"}).status_code == 200
            with httpx2.Client(base_url=client.base_url) as newcomer:
                assert newcomer.post("/api/search", json={"query": "red"}).status_code == 200
        running.join(10)
        assert not running.is_alive()


def test_no_connection_that_was_opened_before_the_end_of_a_drain_is_reset(
    make_app: Callable[..., FastAPI], settings: Callable[..., Settings]
) -> None:
    listening, seen = threading.Event(), []

    def ask(port: int) -> None:
        """A new connection for each request, as proxies do, until none is accepted."""
        while True:
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.connect()
            except ConnectionRefusedError:
                return
            connection.request("GET", "/health")
            seen.append(connection.getresponse().status)
            connection.close()

    with listen(settings()) as listener, ThreadPoolExecutor(8) as threads:
        port = listener.getsockname()[1]
        server = make_server(make_app(), settings(drain_s=0.3), listening.set)
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        running.start()
        assert listening.wait(10)
        asking = [threads.submit(ask, port) for _ in range(8)]
        time.sleep(0.2)
        server.should_exit = True
        for future in asking:
            future.result()  # raises where a connection was reset
        running.join(10)
    assert set(seen) == {200}


@pytest.fixture
def shared_index(made: Path, images: Path, tmp_path: Path, postgres: str) -> tuple[Proxy, Path, Path]:  # noqa: F811
    """The folder of an index whose vectors are in PostgreSQL, for two machines, and the line to the engine."""
    folder = parse_qs(urlsplit(postgres).query)["host"][0]
    (place,) = (path for path in Path(folder).glob(".s.PGSQL.*") if path.suffix != ".lock")
    line = Proxy(str(place))
    store = f"postgresql://postgres@127.0.0.1:{line.port}/postgres?timeout=2&table=replicas"
    build_index(made / "vse", [images], tmp_path / "one", store=store, device="cpu", workers=1)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    return line, tmp_path / "one", tmp_path / "two"


@pytest.mark.slow  # it starts an engine
def test_replicas_answer_alike_and_are_not_ready_while_the_store_is_away(
    shared_index: tuple[Proxy, Path, Path], settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, *folders = shared_index
    monkeypatch.setattr("quintet.serve.service.PROBE_S", 1.0)
    answers = []
    for folder in folders:
        watcher = IndexWatcher(folder, lambda folder=folder: Searcher.open(folder, device="cpu"))  # type: ignore[misc]
        with TestClient(create_app(watcher, settings()), base_url="http://localhost") as replica:
            assert replica.get("/ready").status_code == 200
            answers.append(replica.post("/api/search", json={"query": "a red circle"}).json()["hits"])
            if folder == folders[-1]:
                line.silence()
                assert replica.get("/ready").status_code == 503
                assert replica.get("/health").status_code == 200
    line.close()
    assert answers[0] == answers[1]
    assert answers[0]


@pytest.mark.slow
def test_a_replica_leaves_and_a_proxy_that_asks_for_readiness_loses_no_request(
    shared_index: tuple[Proxy, Path, Path], serve: Callable[..., Any]
) -> None:
    _, *folders = shared_index
    replicas = [serve(folder, "--drain", "2") for folder in folders]
    stop, seen = threading.Event(), []

    def is_ready(replica: Any) -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"{replica.address}/ready", timeout=10).status_code == 200
        return False

    def ask(number: int) -> None:
        """As a proxy does: the replicas in turn, of those that were ready at the last look."""
        turn, looked, ready = number, 0.0, replicas
        while not stop.is_set():
            if time.monotonic() - looked > 0.5:
                ready, looked = [each for each in replicas if is_ready(each)], time.monotonic()
            turn += 1
            answer = httpx2.post(
                f"{ready[turn % len(ready)].address}/api/search", json={"query": f"a red circle {turn}"}, timeout=30
            )
            seen.append((answer.status_code, answer.json()["hits"][0]["item"]["id"]))

    with ThreadPoolExecutor(8) as threads:
        asking = [threads.submit(ask, number) for number in range(8)]
        time.sleep(3)
        os.kill(replicas[0].pid, signal.SIGTERM)
        time.sleep(6)
        before = len(seen)
        time.sleep(2)
        stop.set()
        for future in asking:
            future.result()
    assert len(seen) > before > 0  # the other one goes on
    assert {status for status, _ in seen} == {200}
    assert not Path(f"/proc/{replicas[0].pid}/exe").exists()
