from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from fastapi import FastAPI

from quintet.errors import ImageError
from quintet.search import UnknownWords
from quintet.search.items import Hit
from quintet.serve.schemas import ImageQuery, Window
from quintet.serve.service import BusyError


@pytest.fixture
def reversing(searcher: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Re-ranking turns the first stage's order round; what was asked for is noted."""
    asked: list[dict[str, Any]] = []
    first_stage = searcher._ranked

    def ranked(query: set[str], *, k: int, rerank: int | None = None, **wish: Any) -> Sequence[Hit]:
        asked.append({"k": k, "rerank": rerank, **wish})
        hits = first_stage(query, k=max(k, rerank or 0), **wish)
        return (hits[::-1] if rerank else hits)[:k]

    monkeypatch.setattr(searcher, "_ranked", ranked)
    return asked


def test_reranked_windows_side_by_side_are_one_list(
    make_app: Callable[..., FastAPI], reversing: list[dict[str, Any]]
) -> None:
    service = make_app(rerank=8).state.service
    windows = [
        asyncio.run(service.search_text("red circle", Window(limit=5, offset=offset))) for offset in range(0, 30, 5)
    ]
    plain = asyncio.run(make_app().state.service.search_text("red circle", Window(limit=30)))
    order = [hit.item.id for hit in plain.hits]
    assert [hit.item.id for window in windows for hit in window.hits] == order[7::-1] + order[8:]
    assert [window.more for window in windows] == [True] * 5 + [False]
    assert {entry["rerank"] for entry in reversing} == {None, 8}


def test_images_are_reranked_for_texts_and_texts_for_images_only(
    make_app: Callable[..., FastAPI], reversing: list[dict[str, Any]], searcher: Any
) -> None:
    service = make_app(rerank=50).state.service

    async def image() -> AsyncIterator[bytes]:
        yield searcher.image_path("p0").read_bytes()

    def reranked(search: Callable[..., Any], what: Any, kind: Any) -> Any:
        asyncio.run(search(what, ImageQuery(kind=kind, limit=3)))
        return reversing[-1]["rerank"]

    assert reranked(service.search_text, "red", "image") == 50
    assert reranked(service.search_text, "red", "text") is None
    assert reranked(service.search_image, image(), "text") == 50
    assert reranked(service.search_image, image(), "image") is None


def test_many_large_uploads_at_once_are_told_to_come_back(make_app: Callable[..., FastAPI]) -> None:
    service = make_app(max_uploads_bytes=1000).state.service

    async def use() -> None:
        last = asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * 400
            await last.wait()

        slow = [asyncio.create_task(service.search_image(pieces(), ImageQuery())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await service.search_image(pieces(), ImageQuery())
        last.set()
        for task in slow:
            with pytest.raises(ImageError):  # read to the end, and no image
                await task
        with pytest.raises(ImageError):  # their bytes are free again
            await service.search_image(pieces(), ImageQuery())

    asyncio.run(use())


def test_texts_that_wait_to_be_encoded_are_known_to_the_first_of_them(
    make_app: Callable[..., FastAPI], searcher: Any
) -> None:
    service = make_app().state.service

    async def use() -> None:
        searcher.encoding.clear()
        tasks = [asyncio.create_task(service.search_text(text, Window())) for text in ("red", "blue", "red circle")]
        while not searcher.prepared or service._texts.pending < 3:
            await asyncio.sleep(0.01)
        searcher.encoding.set()
        await asyncio.gather(*tasks)
        with pytest.raises(UnknownWords):
            await service.search_text("unheard", Window())
        await service.search_text("blue", Window())

    asyncio.run(use())
    assert [text for text, _ in searcher.prepared] == ["red", "blue", "red circle", "unheard"]  # "blue" only once
    assert "red circle" in searcher.prepared[1][1]  # it waited while the first was encoded
    assert not service._waiting


def test_known_texts_are_searched_for_while_others_are_encoded(make_app: Callable[..., FastAPI], searcher: Any) -> None:
    service = make_app(search_threads=1).state.service

    async def use() -> None:
        before = await service.search_text("red", Window())
        searcher.encoding.clear()
        new = asyncio.create_task(service.search_text("blue", Window()))
        while len(searcher.prepared) < 2:
            await asyncio.sleep(0.01)
        assert (await asyncio.wait_for(service.search_text("red", Window()), 10)).hits == before.hits
        assert not new.done()
        searcher.encoding.set()
        await new

    asyncio.run(use())
