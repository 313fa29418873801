"""A real server on a real socket."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from quintet.errors import QuintetError
from quintet.serve.app import create_app
from quintet.serve.server import address, listen, make_server
from quintet.serve.settings import Settings
from quintet.serve.watcher import Searchers

MEGABYTE = 2**20


def test_a_taken_port_is_told(settings: Callable[..., Settings]) -> None:
    with listen(settings()) as taken:
        port = taken.getsockname()[1]
        assert address(taken, settings()) == f"http://localhost:{port}/"
        with pytest.raises(QuintetError, match=f"port {port}.*--port"):
            listen(settings(port=port))


def test_a_stopping_server_answers_what_it_was_asked_and_closes_the_index(
    make_app: Callable[..., FastAPI], settings: Callable[..., Settings], searcher: Any
) -> None:
    listening = threading.Event()
    with listen(settings()) as listener:
        app = make_app()
        server = make_server(app, settings(), listening.set)
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        running.start()
        assert listening.wait(10)
        port = listener.getsockname()[1]
        searcher.gate.clear()
        with ThreadPoolExecutor(3) as threads:
            held = [threads.submit(_search, port) for _ in range(3)]
            while app.state.service._searches.pending < 3:
                time.sleep(0.01)
            server.should_exit = True  # what SIGTERM does
            while _lets_in(port):
                time.sleep(0.01)
            assert not searcher.closed
            searcher.gate.set()
            assert [future.result() for future in held] == [200, 200, 200]
        running.join(10)
        assert not running.is_alive()
    assert searcher.closed


@pytest.mark.parametrize("announced", [True, False])
def test_an_upload_of_200_megabytes_is_refused_early(
    make_app: Callable[..., FastAPI], live: Callable[[FastAPI], str], announced: bool
) -> None:
    port = int(live(make_app()).rpartition(":")[2])
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(200):
            sent += MEGABYTE
            yield bytes(MEGABYTE)

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Content-Length": str(200 * MEGABYTE)} if announced else {}
    with suppress(OSError):  # the server hangs up, as it should; its answer is waiting
        connection.request("POST", "/api/search/image", pieces(), headers, encode_chunked=not announced)
    assert connection.getresponse().status == 413
    assert sent < 60 * MEGABYTE  # the limit is 20; some is on its way in buffers
    connection.close()


def test_the_index_is_exchanged_under_load_and_no_request_is_dropped(
    settings: Callable[..., Settings], live: Callable[[FastAPI], str], make_searcher: Callable[[int], Any]
) -> None:
    generations = [make_searcher(number) for number in range(5)]
    searchers = Searchers(generations[0])
    base = live(create_app(searchers, settings()))
    stop = threading.Event()
    seen: list[int] = []

    def ask() -> None:
        with httpx2.Client(base_url=base, headers={"Host": "localhost"}, timeout=60) as client:
            while not stop.is_set():
                seen.append(client.post("/api/search", json={"query": "red circle"}).status_code)

    def wait_for_answers(more: int) -> None:
        goal = len(seen) + more
        while len(seen) < goal and not any(future.done() for future in asking):  # done: it failed
            time.sleep(0.01)

    with ThreadPoolExecutor(8) as threads:
        asking = [threads.submit(ask) for _ in range(8)]
        for newer in generations[1:]:
            wait_for_answers(20)
            searchers.swap(newer)
        wait_for_answers(20)
        stop.set()
        for future in asking:
            future.result()
    assert set(seen) == {200}
    assert [old.closed for old in generations] == [True] * 4 + [False]


def test_two_hundred_clients_at_once_all_get_an_answer(
    make_app: Callable[..., FastAPI], live: Callable[[FastAPI], str]
) -> None:
    port = int(live(make_app()).rpartition(":")[2])
    with ThreadPoolExecutor(200) as threads:
        answers = list(threads.map(lambda _: _search(port), range(400)))
    assert set(answers) == {200}


def test_names_in_answers_do_not_tell_the_folders_above(
    make_app: Callable[..., FastAPI], live: Callable[[FastAPI], str], tmp_path: Path
) -> None:
    with httpx2.Client(base_url=live(make_app())) as client:
        assert str(tmp_path) not in client.post("/api/search", json={"query": "red"}).text
        assert "server" not in client.get("/health").headers


def _lets_in(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _search(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/api/search", b'{"query": "red"}', {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status
