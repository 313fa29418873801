"""`quintet serve` over a real index of generated scenes, made by untrained matchers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from quintet.errors import QuintetError
from quintet.files import read_json, write_json
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.serve.app import create_app
from quintet.serve.server import serve_index
from quintet.serve.settings import Settings
from quintet.serve.watcher import IndexWatcher


def build(made: Path, images: Path, out: Path) -> None:
    build_index(made / "vse", [images], out, rerank_with=[made / "scan"], device="cpu", workers=1)


@pytest.fixture
def watcher(index: Path) -> IndexWatcher:
    return IndexWatcher(index, lambda: Searcher.open(index, device="cpu"))


@pytest.fixture
def real(watcher: IndexWatcher, tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(cache=tmp_path / "cache", rerank=10, watch_s=1000)  # the tests look for themselves
    with TestClient(create_app(watcher, settings), base_url="http://localhost") as client:
        yield client


def test_every_route_on_a_real_index(real: TestClient, images: Path) -> None:
    count = len(list(images.rglob("*.png")))
    assert real.get("/ready").json() == {"status": "ready"}
    facts = real.get("/api/index").json()["index"]
    assert facts["counts"]["image"] == count
    found = real.post("/api/search", json={"query": "a large red circle", "limit": 100}).json()["hits"]
    assert len({hit["item"]["id"] for hit in found}) == count
    best = found[0]["item"]
    file = images / best["path"]
    assert real.get("/api/image", params={"id": best["id"]}).content == file.read_bytes()
    assert real.get("/api/thumbnail", params={"id": best["id"]}).headers["Content-Type"] == "image/png"
    same = real.post("/api/search/image", content=file.read_bytes()).json()["hits"][0]
    assert same["item"] == best
    assert same["score"] == pytest.approx(1, abs=1e-4)
    near = real.get("/api/similar", params={"id": best["id"], "limit": 3}).json()["hits"]
    assert len(near) == 3
    why = real.post("/api/explain", json={"query": "a large red circle", "id": best["id"]}).json()
    assert [entry["word"] for entry in why["words"]] == ["a", "large", "red", "circle"]
    assert len(why["regions"][0]["boxes"]) == 6
    some = real.post("/api/search", json={"query": "red", "where": f'path="{best["path"]}"'}).json()["hits"]
    assert [hit["item"] for hit in some] == [best]


def test_what_cannot_be_reranked_is_told_at_the_start(
    made: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # it would stay so for all tests
    build_index(made / "vse", [images], tmp_path / "plain", device="cpu", workers=1)
    settings = Settings(port=0, cache=tmp_path / "cache", rerank=10)
    with pytest.raises(QuintetError, match="re-rank"):
        serve_index(tmp_path / "plain", settings, device="cpu", ready=lambda _: pytest.fail("it serves"))


def test_bad_questions_to_a_real_index(real: TestClient) -> None:
    def code(**question: object) -> str:
        answer = real.post("/api/search", json=question)
        assert answer.status_code == 422
        return str(answer.json()["code"])

    assert code(query=" ") == "empty_query"
    assert code(query="red " * 25_000) == "query_too_long"
    assert code(query="xyzzy plugh") == "unknown_words"
    assert code(query="red \0 dog") == "not_possible"  # no text
    assert code(query="red", where="year ==") == "invalid_filter"
    for name in ("../../etc/passwd", "\0", "", "x" * 4000):
        for path in ("item", "image", "thumbnail", "similar"):
            assert real.get(f"/api/{path}", params={"id": name}).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(
    "operation",
    [
        *(f"POST /api/{name}" for name in ("search", "search/image", "explain")),
        *(f"GET /api/{name}" for name in ("similar", "item", "image", "thumbnail")),
    ],
)
def test_generated_requests_to_a_real_index(
    real: TestClient, ask_anything: Callable[..., None], operation: str, mode: str
) -> None:
    found = real.post("/api/search", json={"query": "red"}).json()["hits"][0]["item"]["id"]
    ask_anything(real.app, operation, mode, {"query": "a red circle", "id": found})
    if mode == "positive":  # some were answered: not everything was refused at the door
        assert f'route="{operation.partition(" ")[2]}",status="200"}}' in real.get("/metrics").text


def test_no_image_outside_the_indexed_folder_is_given_out(real: TestClient, images: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(secret)
    item = real.post("/api/search", json={"query": "red"}).json()["hits"][0]["item"]
    (images / item["path"]).unlink()
    (images / item["path"]).symlink_to(secret)
    for path in ("image", "thumbnail"):
        answer = real.get(f"/api/{path}", params={"id": item["id"]})
        assert (answer.status_code, answer.json()["code"]) == (410, "missing_image")


def test_a_rebuilt_index_is_served_and_a_foreign_one_is_not(
    real: TestClient, watcher: IndexWatcher, made: Path, images: Path, index: Path
) -> None:
    before = real.get("/api/index").json()["index"]["counts"]["image"]
    next(images.rglob("*.png")).unlink()
    build(made, images, index)
    assert any(watcher.look() for _ in range(2))  # at the second look the database has settled
    assert real.get("/api/index").json()["index"]["counts"]["image"] == before - 1
    manifest = read_json(index / "index.json")
    write_json(index / "index.json", manifest | {"version": 999})
    assert not watcher.look()
    assert real.post("/api/search", json={"query": "red"}).status_code == 200
    assert real.get("/health").json() == {"status": "degraded"}
    assert real.get("/api/index").json()["index_error"]
    assert "quintet_index_stale 1\n" in real.get("/metrics").text
    write_json(index / "index.json", manifest)
    assert watcher.look()
    assert real.get("/health").json() == {"status": "ok"}


def _delete(index: Path) -> None:
    shutil.rmtree(index)


def _replace(index: Path) -> None:
    shutil.rmtree(index)
    index.write_text("something else")


def _damage_database(index: Path) -> None:
    data = (index / "items.sqlite").read_bytes()
    (index / "items.sqlite").write_bytes(data[:100] + os.urandom(len(data) - 100))
    (index / "items.sqlite-wal").unlink(missing_ok=True)


def _damage_vectors(index: Path) -> None:
    for path in (index / "vectors").iterdir():
        os.truncate(path, path.stat().st_size // 2)


def _damage_marker(index: Path) -> None:
    (index / "index.json").write_text("[" * 100_000)


@pytest.mark.parametrize("harm", [_delete, _replace, _damage_database, _damage_vectors, _damage_marker])
def test_health_tells_what_became_of_the_index_and_a_good_build_is_served_again(
    real: TestClient, watcher: IndexWatcher, made: Path, images: Path, index: Path, harm: Callable[[Path], None]
) -> None:
    count = real.get("/api/index").json()["index"]["counts"]["image"]
    harm(index)
    for _ in range(3):
        watcher.look()
    assert real.get("/health").json() == {"status": "degraded"}
    assert real.get("/api/index").json()["index_error"]
    for _ in range(2):  # from what is in memory, or told that the index is damaged
        answer = real.post("/api/search", json={"query": "red"})
        assert answer.status_code in (200, 503), answer.text
        assert answer.status_code == 200 or answer.json()["code"] == "stale_index"
    next(images.rglob("*.png")).unlink()
    index.unlink() if index.is_file() else shutil.rmtree(index, ignore_errors=True)
    build(made, images, index)
    assert any(watcher.look() for _ in range(2))
    assert real.get("/health").json() == {"status": "ok"}
    assert real.get("/api/index").json()["index"]["counts"]["image"] == count - 1
    assert real.post("/api/search", json={"query": "red"}).status_code == 200


WRITER = """
import os, signal, sys
from pathlib import Path
from quintet.search.indexing import build_index
made, images, out = map(Path, sys.argv[1:])
def die(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
build_index(made / "vse", [images], out, rerank_with=[made / "scan"], device="cpu", workers=1, progress=die)
"""


@pytest.mark.slow
def test_the_command_serves_on_while_a_build_is_killed_and_stops_when_told(
    made: Path, images: Path, index: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "quintet", "serve", str(index), "--port", "0", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "200"}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stderr
        line = server.stderr.readline()
        base = re.search(r"http://localhost:\d+", line)
        assert base, line
        with httpx2.Client(base_url=base[0], timeout=60) as client:
            before = client.get("/api/index").json()["index"]
            Image.fromarray(np.full((40, 40, 3), 77, np.uint8)).save(images / "new.png")
            killed = subprocess.run([sys.executable, "-c", WRITER, made, images, index], env=environment, check=False)
            assert killed.returncode == -signal.SIGKILL
            time.sleep(1.5)
            assert client.post("/api/search", json={"query": "red"}).status_code == 200
            assert client.get("/api/index").json()["index"] == before
            build(made, images, index)  # goes on where the killed one was
            for _ in range(600):
                facts = client.get("/api/index").json()["index"]
                if facts["generation"] > before["generation"]:
                    break
                time.sleep(0.1)
            assert facts["counts"]["image"] == before["counts"]["image"] + 1
            assert client.get("/health").json() == {"status": "ok"}
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.wait()
