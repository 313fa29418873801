from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

MEGABYTE = 2**20


def test_200_megabytes_without_a_length_are_refused_after_the_limit(make_app: Callable[..., FastAPI]) -> None:
    sent = 0

    async def chunks() -> dict[str, object]:
        nonlocal sent
        sent += MEGABYTE
        return {"type": "http.request", "body": b"x" * MEGABYTE, "more_body": sent < 200 * MEGABYTE}

    answers = _ask(make_app(max_upload_bytes=5 * MEGABYTE), "/api/search/image", [], chunks)
    assert answers[0]["status"] == 413
    assert (b"connection", b"close") in answers[0]["headers"]
    assert sent == 6 * MEGABYTE


@pytest.mark.parametrize("path", ["/api/search/image", "/api/search", "/api/explain", "/api/session"])
def test_an_announced_200_megabytes_are_refused_unread(make_app: Callable[..., FastAPI], path: str) -> None:
    async def chunks() -> dict[str, object]:
        raise AssertionError("nothing should be read")

    answers = _ask(make_app(), path, [(b"content-length", str(200 * MEGABYTE).encode())], chunks)
    assert answers[0]["status"] == 413


def test_a_image_may_be_larger_than_anything_else(client: TestClient) -> None:
    body = b" " * (2 * MEGABYTE)
    assert client.post("/api/search", content=body).status_code == 413
    assert client.post("/api/search/image", content=body).status_code == 422  # read, and not an image


@pytest.mark.parametrize(("size", "status"), [(1000, 422), (1001, 413)])
def test_exactly_the_limit_passes(make_app: Callable[..., FastAPI], size: int, status: int) -> None:
    client = TestClient(make_app(max_upload_bytes=1000), base_url="http://localhost")
    for body in (b"x" * size, iter([b"x" * 500, b"x" * (size - 500)])):  # announced, and in pieces
        assert client.post("/api/search/image", content=body).status_code == status


def _ask(app: FastAPI, path: str, headers: list[tuple[bytes, bytes]], receive: Callable[[], object]) -> list[dict]:
    """Below any client, which would hide what is read."""
    answers: list[dict] = []

    async def send(message: dict) -> None:
        answers.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return answers
