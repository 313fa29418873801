"""The API as its own document describes it, against generated requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from starlette.testclient import TestClient

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
HOST = {"Host": "localhost"}
POSTS = ("/api/search", "/api/search/picture", "/api/explain", "/api/session")
GETS = ("/api/similar", "/api/item", "/api/picture", "/api/thumbnail", "/api/index", "/health", "/metrics")
OPERATIONS = [*(f"POST {path}" for path in POSTS), *(f"GET {path}" for path in GETS)]


def test_the_document_names_every_route_and_every_trouble(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {*POSTS, *GETS}
    for path, methods in paths.items():
        for operation in methods.values():
            assert operation["description"], path
            assert path == "/health" or {"401", "403", "503"} <= set(operation["responses"]), path


def test_no_page_of_others_code_is_offered(client: TestClient) -> None:
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


@pytest.fixture
def document(make_app: Callable[..., FastAPI]) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", make_app(), headers=HOST)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_generated_requests_get_the_answers_that_are_described(document: Any, operation: str, mode: str) -> None:
    """Sensible requests and nonsense: no 5xx, and every status, type and body as the document says."""
    method, _, path = operation.partition(" ")
    wanted = schemathesis.GenerationMode(mode)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=document[path][method].as_strategy(generation_mode=wanted))
    def ask(case: Any) -> None:
        # What a filter or a known word is the document cannot say, so some that it allows are refused.
        case.call_and_validate(headers=HOST, excluded_checks=[schemathesis.checks.positive_data_acceptance])

    try:
        ask()
    except Unsatisfiable:
        pytest.skip("there is no nonsense to ask of a route without arguments")
