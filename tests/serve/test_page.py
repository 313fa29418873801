"""What the page gets from the server: lists, facets, downloads, and plain HTML for browsers without JavaScript."""

from __future__ import annotations

import html
import io
import json
import re
import socket
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from fastapi import FastAPI
from httpx2 import Response
from starlette.testclient import TestClient

from quintet.search.items import Item
from quintet.serve.download import file_names

TOKEN, READ = "a-token-of-some-length", "a-token-only-for-reading"


def refused(answer: Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def names(answer: Response) -> list[str]:
    """Of the photos in a page's plain HTML."""
    return re.findall(r'alt="(scene-\d\d\.png)"', answer.text)


def test_the_newest_come_in_windows_and_by_filter(client: TestClient) -> None:
    whole = client.get("/api/newest", params={"limit": 100}).json()
    assert (len(whole["hits"]), whole["total"], whole["more"]) == (30, 30, False)
    assert {hit["score"] for hit in whole["hits"]} == {None}
    parts = [client.get("/api/newest", params={"limit": 20, "offset": at}).json() for at in (0, 20)]
    assert parts[0]["hits"] + parts[1]["hits"] == whole["hits"]
    assert [part["more"] for part in parts] == [True, False]
    some = client.get("/api/newest", params={"where": 'path~"*-0?.png"'}).json()
    assert some["total"] == 10
    for wrong in ({"offset": -1}, {"limit": 101}, {"offset": 10**9}, {"where": "x" * 1001}, {"query": "red"}):
        refused(client.get("/api/newest", params=wrong), 422, "invalid")
    refused(client.get("/api/newest", params={"where": "path is nice"}), 422, "invalid_filter")


def test_facets_and_examples(client: TestClient) -> None:
    ((facet),) = client.get("/api/facets").json()["facets"]
    assert [choice["count"] for choice in facet["choices"]] == [10, 10, 10]
    for choice in facet["choices"]:
        assert client.get("/api/newest", params={"where": choice["where"]}).json()["total"] == choice["count"]
    chosen = client.get("/api/facets", params={"where": facet["choices"][1]["where"]}).json()["facets"][0]
    assert [choice["chosen"] for choice in chosen["choices"]] == [False, True, False]
    refused(client.get("/api/facets", params={"where": "path is nice"}), 422, "invalid_filter")
    examples = client.get("/api/examples").json()["examples"]
    assert [example["query"] for example in examples] == ["red circle", "blue square"]
    assert examples[0]["item"]["id"] == "p1"


def test_near_duplicates_come_with_the_result_they_equal(client: TestClient, searcher: Any) -> None:
    searcher.collapses = True
    body = {"query": "red circle", "limit": 100, "duplicates": False}
    hits = client.post("/api/search", json=body).json()["hits"]
    assert len(hits) < 30
    assert sorted(item["id"] for hit in hits for item in [hit["item"], *hit["duplicates"]]) == sorted(
        f"p{number}" for number in range(30)
    )


def test_an_item_and_words_together(client: TestClient) -> None:
    plain = client.get("/api/similar", params={"id": "p0"}).json()["hits"]
    mixed = client.get("/api/similar", params={"id": "p0", "query": "yellow", "exclude": ["red"]}).json()["hits"]
    assert [hit["item"]["id"] for hit in plain] != [hit["item"]["id"] for hit in mixed]
    refused(client.get("/api/similar", params={"id": "p0", "exclude": ["a"] * 6}), 422, "invalid")


# ---- files


def test_a_download_has_the_files_and_names_those_that_are_gone(client: TestClient, searcher: Any) -> None:
    expected = {
        name: searcher.image_path(id_).read_bytes() for id_, name in (("p1", "scene-01.png"), ("p2", "scene-02.png"))
    }
    searcher.image_path("p5").write_bytes(b"was an image once")
    answer = client.get("/api/download", params={"id": ["p1", "p5", "p2", "p1"]})
    assert answer.headers["Content-Type"] == "application/zip"
    assert "attachment" in answer.headers["Content-Disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found.pop("not included.txt").startswith(b"scene-05.png")
    assert found == expected


def test_a_download_has_limits(client: TestClient, searcher: Any, make_app: Callable[..., FastAPI]) -> None:
    refused(client.get("/api/download"), 422, "invalid")
    refused(client.get("/api/download", params={"id": ["p1"] * 201}), 422, "invalid")
    refused(client.get("/api/download", params={"id": ["p1", "nobody"]}), 404, "unknown_item")
    refused(client.get("/api/download", params={"id": ["../../etc/passwd"]}), 404, "unknown_item")
    refused(client.get("/api/download", params={"id": "s1"}), 410, "missing_image")
    with TestClient(make_app(max_download_bytes=100), base_url="http://localhost") as small:
        refused(small.get("/api/download", params={"id": ["p1"]}), 413, "http_413")


def test_names_in_a_download_stay_inside_of_any_folder() -> None:
    paths = ["a/../../x.jpg", "b/x.jpg", "c/X.JPG", "..", "a\\b.png", "CON:a.png", "not included.txt", "\ud800.jpg"]
    found = file_names([Item(str(number), "image", path) for number, path in enumerate(paths)])
    assert len({name.casefold() for name in found}) == len(found)
    assert not any(set('/\\:*?"<>|') & set(name) or name in ("", ".", "..") for name in found)
    assert found[:3] == ["x.jpg", "x (2).jpg", "X (3).JPG"]
    assert "not included.txt" not in found


def test_a_photo_is_saved_under_its_name(client: TestClient) -> None:
    assert client.get("/api/image", params={"id": "p3"}).headers["Content-Disposition"].endswith("''scene-03.png")


def test_paths_are_told_to_the_full_token_only(make_app: Callable[..., FastAPI], searcher: Any) -> None:
    with TestClient(make_app(token=TOKEN, read_token=READ), base_url="http://localhost") as client:
        asked = {"id": ["p3", "p4"]}
        full = client.get("/api/paths", params=asked, headers={"Authorization": f"Bearer {TOKEN}"})
        assert full.json()["paths"] == [str(searcher.image_path(id_)) for id_ in asked["id"]]
        read = {"Authorization": f"Bearer {READ}"}
        refused(client.get("/api/paths", params=asked, headers=read), 403, "full_token_needed")
        assert client.get("/api/download", params=asked, headers=read).status_code == 200
        for path in ("newest", "facets", "examples", "download?id=p1", "paths?id=p1"):
            refused(client.get(f"/api/{path}"), 401, "token_needed")


# ---- the page


def test_the_page_has_the_results_as_plain_html_and_as_data(client: TestClient, searcher: Any) -> None:
    searcher.judges, searcher.strange = True, "said of every <query>"
    answer = client.get("/", params={"q": "red circle", "where": 'path~"shapes/scene-1*"'})
    assert answer.status_code == 200
    assert "<p>Note: said of every &lt;query&gt;</p>" in answer.text
    body = {"query": "red circle", "where": 'path~"shapes/scene-1*"', "duplicates": False}
    hits = client.post("/api/search", json=body).json()["hits"]
    order = [hit["item"]["path"].rpartition("/")[2] for hit in sorted(hits, key=lambda hit: hit["weak"])]
    assert names(answer) == order
    assert 'value="red circle"' in answer.text
    assert ("Weaker matches" in answer.text) is any(hit["weak"] for hit in hits)
    data = json.loads(re.findall(r'<script type="application/json" id="first">(.*?)</script>', answer.text)[0])
    assert data["results"]["hits"] == hits
    assert data["facets"] == client.get("/api/facets", params={"where": body["where"]}).json()


def test_pages_and_photos_are_reached_by_links(client: TestClient, searcher: Any) -> None:
    for number in range(30, 60):  # a second page
        item = Item(f"p{number}", "image", f"shapes/scene-{number}.png", 0)
        searcher._add(item, ["red circle"])
    first = client.get("/")
    assert (len(names(first)), "Recent photos" in first.text) == (40, True)
    (following,) = re.findall(r'href="([^"]*)" rel="next"', first.text)
    second = client.get(html.unescape(following))
    assert len(names(second)) == 20
    assert not set(names(first)) & set(names(second))
    assert 'rel="prev"' in second.text
    (photo, *_) = re.findall(r'class="open" href="([^"]*)"', second.text)
    shown = client.get(html.unescape(photo))
    assert names(second)[0] in shown.text
    assert "More like this" in shown.text
    assert html.unescape(following).partition("?")[2] in html.unescape(shown.text)  # back to where it was


@pytest.mark.parametrize(
    ("parameters", "status", "said"),
    [
        ({"photo": "gone"}, 404, "no item"),
        ({"like": "gone"}, 404, "no item"),
        ({"q": "xyzzy plugh"}, 422, "no word of the query"),
        ({"q": "red " * 2600}, 422, "10,399 characters"),
        ({"where": "path is nice"}, 422, "expected"),
        ({"without": "red"}, 422, "say also"),
        ({"page": "0"}, 422, "page in the address"),
        ({"page": "x"}, 422, "page in the address"),
        ({"q": "red", "page": "24"}, 503, "no further results"),
        ({"kind": "video"}, 422, "kind in the address"),
        ({"where": "x" * 1001}, 422, "where in the address"),
        ({"q": "a" * 20_000}, 414, "too long|more than"),
    ],
)
def test_a_bad_address_is_a_page_that_says_so(
    client: TestClient, parameters: dict[str, str], status: int, said: str
) -> None:
    answer = client.get("/", params=parameters)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].startswith("text/html")
    assert re.search(said, answer.text, re.IGNORECASE)
    assert 'href="/"' in answer.text


def test_a_long_address_of_the_api_is_refused_as_json(client: TestClient) -> None:
    refused(client.get("/api/newest", params={"where": "x" * 20_000}), 414, "too_long")


def test_markup_in_the_address_and_the_index_stays_text(client: TestClient, searcher: Any) -> None:
    evil = '</script><img src=x onerror=alert(1)>"red'
    searcher._add(Item("evil", "text", text=evil), ["red circle"])
    searcher._add(Item('p"<b>', "image", 'a/"><script>alert(2)</script>.png', 0), ["red circle"])
    for parameters in (
        {"q": evil},
        {"q": "red", "kind": "text"},
        {"q": "red"},
        {"where": evil},
        {"photo": evil},
        {"like": 'p"<b>'},
    ):
        text = client.get("/", params=parameters).text
        assert "<img src=x" not in text
        assert "<script>alert" not in text
        assert text.count("</script>") == 2, parameters  # the page's own


def test_a_server_with_a_token_shows_a_form_and_nothing_else(make_app: Callable[..., FastAPI]) -> None:
    with TestClient(make_app(token=TOKEN), base_url="http://localhost", follow_redirects=False) as client:
        for address in ("/", "/?q=red", "/?photo=p1"):
            answer = client.get(address)
            assert answer.status_code == 200
            assert "scene-" not in answer.text
            assert 'action="/api/session/form"' in answer.text
        wrong = client.post("/api/session/form", data={"token": "wrong"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        answer = client.post("/api/session/form", data={"token": f" {TOKEN} "})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/")
        assert names(client.get("/"))
        assert client.post("/api/session/form", content=b"\xff", headers={"Content-Type": "x"}).status_code == 400
        assert client.post("/api/session/form", data={"leave": "1"}).status_code == 303
        assert not names(client.get("/"))


def test_the_page_is_no_part_of_other_pages(client: TestClient) -> None:
    for destination, status in (("document", 200), ("image", 403), ("iframe", 403), ("empty", 403)):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": destination}
        assert client.get("/?" + urlencode({"q": "red"}), headers=headers).status_code == status
    assert "form-action 'self'" in client.get("/").headers["Content-Security-Policy"]


def test_static_files_hold_no_address_of_others() -> None:
    folder = Path(__file__).parents[2] / "src/quintet/serve/static"
    for path in folder.iterdir():
        found = re.findall(r"https?://[^\s\"')]*", path.read_text())
        assert set(found) <= {"http://www.w3.org/2000/svg"}, path.name


@pytest.mark.parametrize("size", [20_000, 100_000, 3_000_000])
def test_a_long_address_gets_its_page_however_it_arrives(
    make_app: Callable[..., FastAPI], live: Callable[..., str], size: int
) -> None:
    """Over a socket: whole, or in pieces of which none completes the header."""
    address = live(make_app(), header_s=5.0)
    head = b"GET /?q=" + b"a" * size + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for piece, before in product((len(head), 7000), (False, True)):
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10) as connection:
            if before:  # a browser asks again on a connection that has had an answer
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while not connection.recv(2**16).endswith(b"}"):
                    pass
            for start in range(0, len(head), piece):
                connection.sendall(head[start : start + piece])
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(2**16), b""))
        assert answer.startswith(b"HTTP/1.1 414 ")
        assert b"search for a shorter text" in answer
    assert httpx2.get(f"{address}/health").json() == {"status": "ok"}
