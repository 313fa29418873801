"""The API as its own document describes it, against generated requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

POSTS = ("/api/search", "/api/search/image", "/api/explain", "/api/session")
GETS = ("/api/similar", "/api/newest", "/api/facets", "/api/item", "/api/image", "/api/thumbnail")
GETS += ("/api/download", "/api/paths")
# Nothing is said to them, so nothing wrong either.
PLAIN = ("/api/index", "/api/examples", "/health", "/ready", "/metrics")


def test_the_document_names_every_route_and_every_trouble(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {*POSTS, *GETS, *PLAIN, "/api/sessions"}
    for path, methods in paths.items():
        for operation in methods.values():
            assert operation["description"], path
            assert path in ("/health", "/ready") or {"401", "403", "429", "503"} <= set(operation["responses"]), path


def test_no_page_of_others_code_is_offered(client: TestClient) -> None:
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "mode"),
    [
        *((f"POST {path}", mode) for path in POSTS for mode in ("positive", "negative")),
        *((f"GET {path}", mode) for path in GETS for mode in ("positive", "negative")),
        *((f"GET {path}", "positive") for path in PLAIN),
        *((f"DELETE /api/{name}", "positive") for name in ("session", "sessions")),
    ],
)
def test_generated_requests_get_the_answers_that_are_described(
    make_app: Callable[..., FastAPI], ask_anything: Callable[..., None], operation: str, mode: str
) -> None:
    ask_anything(make_app(), operation, mode, {"query": "red circle", "id": "p0"})
