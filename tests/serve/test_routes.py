from __future__ import annotations

import io
import json
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from httpx2 import Response
from PIL import Image
from starlette.testclient import TestClient

from quintet.search import StoreUnavailable
from quintet.search.items import Hit, Item


def png(side: int = 20) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), 90, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(side: int = 60_000) -> bytes:
    """A PNG of a few hundred bytes that says it is 60,000 x 60,000."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 500)) + chunk(b"IEND", b"")
    )


def refused(answer: Response, status: int, code: str) -> str:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    message: str = answer.json()["message"]
    assert message
    return message


def test_a_text_finds_images_best_first(client: TestClient) -> None:
    answer = client.post("/api/search", json={"query": "red circle", "limit": 5}).json()
    scores = [hit["score"] for hit in answer["hits"]]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    assert answer["more"] is True
    item = answer["hits"][0]["item"]
    assert item["kind"] == "image"
    assert item["path"].startswith("shapes/")
    assert client.get("/api/item", params={"id": item["id"]}).json() == item


def test_windows_side_by_side_are_the_whole_list_and_the_last_says_so(client: TestClient) -> None:
    whole = client.post("/api/search", json={"query": "red circle", "limit": 100}).json()
    assert (len(whole["hits"]), whole["more"]) == (30, False)
    joined = []
    for offset in (0, 10, 20):
        part = client.post("/api/search", json={"query": "red circle", "limit": 10, "offset": offset}).json()
        joined += part["hits"]
        assert part["more"] is (offset < 20)
    assert joined == whole["hits"]
    assert client.post("/api/search", json={"query": "red", "offset": 900}).json()["hits"] == []


def test_texts_can_be_looked_for_and_results_filtered(client: TestClient) -> None:
    texts = client.post("/api/search", json={"query": "red", "kind": "text"}).json()["hits"]
    assert {hit["item"]["kind"] for hit in texts} == {"text"}
    assert all(hit["item"]["text"] for hit in texts)
    some = client.post("/api/search", json={"query": "red", "where": 'path~"*-0?.png"'}).json()["hits"]
    assert len(some) == 10
    message = refused(client.post("/api/search", json={"query": "red", "where": "path is nice"}), 422, "invalid_filter")
    assert "character" in message


def test_a_image_finds_images(client: TestClient) -> None:
    answer = client.post("/api/search/image?limit=3", content=png(), headers={"Content-Type": "image/png"})
    assert answer.status_code == 200
    assert answer.json()["hits"][0]["item"]["id"] == "p0"


def test_an_item_finds_its_like(client: TestClient) -> None:
    answer = client.get("/api/similar", params={"id": "p7", "limit": 4, "kind": "image"}).json()
    assert len(answer["hits"]) == 4
    assert answer["hits"][0]["score"] == 1


def test_words_and_regions_explain_a_hit(client: TestClient) -> None:
    answer = client.post("/api/explain", json={"query": "red circle", "id": "p0"}).json()
    assert [entry["word"] for entry in answer["words"]] == ["red", "circle"]
    for entry in answer["regions"]:
        assert len(entry["boxes"]) == len(entry["weights"]) > 0
        assert all(0 <= edge <= 1 for box in entry["boxes"] for edge in box)
    assert client.post("/api/explain", json={"query": "red", "id": "s0"}).json()["regions"] is None


def test_thumbnails_and_images_are_images(client: TestClient, searcher: Any) -> None:
    small = client.get("/api/thumbnail", params={"id": "p3", "size": 160})
    assert small.headers["Content-Type"] == "image/png"
    assert Image.open(io.BytesIO(small.content)).size == (96, 96)
    again = client.get(
        "/api/thumbnail", params={"id": "p3", "size": 160}, headers={"If-None-Match": small.headers["ETag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    whole = client.get("/api/image", params={"id": "p3"})
    assert whole.content == searcher.image_path("p3").read_bytes()
    assert whole.headers["Content-Type"] == "image/png"
    refused(client.get("/api/thumbnail", params={"id": "p3", "size": 161}), 422, "invalid")


def test_health_index_and_metrics(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    facts = client.get("/api/index").json()
    assert facts["index"]["counts"] == {"image": 30, "text": 30}
    assert facts["max_upload_bytes"] == 20 * 2**20
    client.post("/api/search", json={"query": "red"})
    client.get("/nowhere/at/all")
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'quintet_requests_total{method="POST",route="/api/search",status="200"} 1\n' in answer.text
    assert 'route="none",status="404"} 1\n' in answer.text
    assert "quintet_requests_in_flight 1\n" in answer.text  # this one


# ---- bad input


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_an_empty_query(client: TestClient, query: str) -> None:
    refused(client.post("/api/search", json={"query": query}), 422, "empty_query")


def test_a_query_of_100_kilobytes(client: TestClient) -> None:
    refused(client.post("/api/search", json={"query": "red " * 25_000}), 422, "query_too_long")


def test_unknown_words_only(client: TestClient) -> None:
    refused(client.post("/api/search", json={"query": "xyzzy plugh"}), 422, "unknown_words")


@pytest.mark.parametrize(
    "body", [b"", b"not an image", b"%PDF-1.7 ...", b"<svg xmlns='...'/>", b"\x89PNG\r\n\x1a\n", png()[:60]]
)
def test_an_upload_that_is_no_image(client: TestClient, body: bytes) -> None:
    refused(client.post("/api/search/image", content=body), 422, "unreadable_image")


def test_a_image_bomb_is_refused_from_its_header(client: TestClient) -> None:
    began = time.perf_counter()
    message = refused(client.post("/api/search/image", content=bomb()), 422, "unreadable_image")
    assert "decompression bombs" in message
    assert time.perf_counter() - began < 15  # a moment; on a busy computer a process has to begin first


JSON = {"Content-Type": "application/json"}
TRAVERSALS = [
    "../../etc/passwd",
    "/etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "p0/../../x",
    "file:///etc/passwd",
    "\0",
    "p0\0",
]


@pytest.mark.parametrize("path", ["/api/item", "/api/image", "/api/thumbnail", "/api/similar"])
def test_ids_are_looked_up_and_never_opened(client: TestClient, path: str) -> None:
    for name in TRAVERSALS:
        refused(client.get(path, params={"id": name}), 404, "unknown_item")


def test_static_names_are_looked_up_too(client: TestClient) -> None:
    for name in (
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "....//app.py",
        "../../../../etc/passwd",
        "..\\app.py",
        "",
    ):
        assert client.get(f"/static/{name}").status_code in (404, 405), name


def test_a_deleted_image_is_told(client: TestClient, searcher: Any) -> None:
    searcher.image_path("p5").unlink()
    refused(client.get("/api/image", params={"id": "p5"}), 410, "missing_image")
    refused(client.get("/api/thumbnail", params={"id": "p5"}), 410, "missing_image")
    assert client.get("/api/similar", params={"id": "p5"}).status_code == 200  # its code is still there


def test_a_damaged_image_is_told(client: TestClient, searcher: Any) -> None:
    searcher.image_path("p5").write_bytes(b"was an image once")
    refused(client.get("/api/thumbnail", params={"id": "p5"}), 422, "unreadable_image")


def test_only_what_decodes_as_an_image_leaves(client: TestClient, searcher: Any) -> None:
    """An index of somebody else can name any file."""
    good = searcher.image_path("p5").read_bytes()
    for data in (b"root:x:0:0::/root:/bin/sh\n", good[:100], b"<script>", b""):
        searcher.image_path("p5").write_bytes(data)
        for path in ("image", "thumbnail"):
            message = refused(client.get(f"/api/{path}", params={"id": "p5"}), 422, "unreadable_image")
            assert "root:" not in message
    searcher.image_path("p5").write_bytes(good)
    assert client.get("/api/image", params={"id": "p5"}).content == good


def test_the_media_type_is_that_of_the_content(client: TestClient, searcher: Any) -> None:
    path = searcher.image_path("p5")
    Image.open(path).save(path, "JPEG")  # still called .png
    assert client.get("/api/image", params={"id": "p5"}).headers["Content-Type"] == "image/jpeg"


def test_a_file_that_goes_away_at_any_moment_is_told(
    client: TestClient, searcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searcher, "image_path", lambda item_id: searcher.root / "just removed.png")
    for path in ("image", "thumbnail"):
        refused(client.get(f"/api/{path}", params={"id": "p5"}), 410, "missing_image")


def damaged_exif() -> list[bytes]:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[274], exif[306], exif[34665] = 6, "0000:99:99", {36867: "x" * 50}
    Image.new("RGB", (40, 30)).save(buffer, "JPEG", exif=exif)
    whole, rng, found = buffer.getvalue(), np.random.default_rng(0), []
    for _ in range(40):
        data = bytearray(whole)
        for at in rng.integers(20, 150, 6):
            data[at] = rng.integers(256)
        found.append(bytes(data))
    return found


def test_an_upload_with_damaged_exif(client: TestClient) -> None:
    statuses = {client.post("/api/search/image", content=data).status_code for data in damaged_exif()}
    assert statuses <= {200, 422}
    assert 200 in statuses


NOT_JSON = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"query": "red", "limit": NaN}', b'{"query": "\\ud800"}']
NOT_ALLOWED = [
    {"query": 3},
    {"query": "red", "limit": 0},
    {"query": "red", "limit": 101},
    {"query": "red", "offset": -1},
]


@pytest.mark.parametrize("body", [*NOT_JSON, *(json.dumps(value).encode() for value in [[], {"sql": 1}, *NOT_ALLOWED])])
def test_nonsense_in_the_body(client: TestClient, body: bytes) -> None:
    answer = client.post("/api/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["message"]


# ---- a busy, slow or broken store


def test_a_full_queue_is_told_to_come_back(make_app: Callable[..., FastAPI], searcher: Any) -> None:
    searcher.gate.clear()
    app = make_app(search_threads=1, search_queue=1)
    with TestClient(app, base_url="http://localhost") as client, ThreadPoolExecutor(2) as threads:
        held = [threads.submit(client.post, "/api/search", json={"query": "red"}) for _ in range(2)]
        while app.state.service._searches.pending < 2:
            time.sleep(0.01)
        answer = client.post("/api/search", json={"query": "red"})
        refused(answer, 503, "busy")
        assert int(answer.headers["Retry-After"]) >= 1
        assert client.get("/health").status_code == 200
        assert client.get("/api/thumbnail?id=p0").status_code == 200  # images do not wait for searches
        searcher.gate.set()
        assert [future.result().status_code for future in held] == [200, 200]


def test_a_slow_store_is_given_up(make_app: Callable[..., FastAPI], searcher: Any) -> None:
    searcher.gate.clear()
    with TestClient(make_app(timeout_s=0.2), base_url="http://localhost") as client:
        answer = client.post("/api/search", json={"query": "red"})
        searcher.gate.set()
        assert "0.2 s" in refused(answer, 503, "too_slow")
        assert "Retry-After" in answer.headers


def test_a_store_that_does_not_answer(client: TestClient, searcher: Any) -> None:
    searcher.error = StoreUnavailable("the store at milvus+http://127.0.0.1:1 does not answer")
    assert "does not answer" in refused(client.post("/api/search", json={"query": "red"}), 503, "store_unavailable")


def test_an_unexpected_error_is_an_answer_without_its_inside(make_app: Callable[..., FastAPI], searcher: Any) -> None:
    searcher.error = ZeroDivisionError("secret")
    with TestClient(make_app(), base_url="http://localhost", raise_server_exceptions=False) as client:
        assert "secret" not in refused(client.post("/api/search", json={"query": "red"}), 500, "internal")


def test_names_and_numbers_that_json_has_no_form_for(client: TestClient, searcher: Any) -> None:
    """File names of Linux are bytes, sidecars may say NaN, and damaged vectors score it."""
    item = Item("odd", "image", "a\udcff\ud800.png", 0, None, {"size": float("nan"), "note": "\udcff"})
    searcher.items["odd"], searcher.words["odd"] = item, {"odd"}
    answer = client.get("/api/item", params={"id": "odd"})
    assert answer.status_code == 200
    assert answer.json()["path"] == "a\udcff\ud800.png"
    assert answer.json()["metadata"] == {"size": None, "note": "\udcff"}
    searcher._ranked = lambda query, **options: [Hit(item, float("nan"))]
    answer = client.post("/api/search", json={"query": "odd"})
    assert answer.status_code == 200
    assert answer.json()["hits"][0]["score"] is None


@pytest.mark.parametrize("text", ["\ud800", "red \udfff"])
@pytest.mark.parametrize("path", ["search", "search?where", "explain", "explain?id", "session"])
def test_text_with_a_lone_surrogate(client: TestClient, path: str, text: str) -> None:
    body = {
        "search": {"query": text},
        "search?where": {"query": "red", "where": f'path="{text}"'},
        "explain": {"query": text, "id": "p0"},
        "explain?id": {"query": "red", "id": text},
        "session": {"token": text},
    }[path]
    answer = client.post(f"/api/{path.partition('?')[0]}", content=json.dumps(body), headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["message"]
