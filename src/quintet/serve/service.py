"""What the routes share: the searchers, the threads that do the work, the small copies, the counts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from quintet.data.images import open_image
from quintet.search.items import Hit
from quintet.search.searcher import Searcher
from quintet.search.stores.where import Where, parse_where
from quintet.serve.metrics import Metrics
from quintet.serve.pool import BusyError, WorkPool
from quintet.serve.schemas import Results, Window
from quintet.serve.searchers import IndexWatcher, Searchers
from quintet.serve.settings import Settings
from quintet.serve.thumbnails import Thumbnail, Thumbnails

T = TypeVar("T")


class Service:
    """Everything that asks the searcher runs in a thread of a pool, which borrows the searcher while it does."""

    def __init__(self, source: Searchers | IndexWatcher, settings: Settings) -> None:
        self.settings = settings
        self.watcher = source if isinstance(source, IndexWatcher) else None
        self.metrics = Metrics()
        self.thumbnails = Thumbnails(settings.cache, settings.cache_bytes, settings.max_pixels)
        self._searchers = source.searchers if isinstance(source, IndexWatcher) else source
        self._searches = WorkPool("search", settings.search_threads, settings.search_queue, settings.timeout_s)
        self._images = WorkPool("picture", settings.image_threads, settings.image_queue, settings.timeout_s)
        self._uploading = 0  # bytes
        self._count()

    @property
    def index_error(self) -> str | None:
        """Why a newer index is not being served."""
        return self.watcher.error if self.watcher else None

    async def search_text(self, query: str, window: Window) -> Results:
        rerank = self.settings.rerank if window.kind == "image" else None
        return await self._list(window, lambda searcher, **wish: searcher.search_text([query], **wish)[0], rerank)

    async def search_picture(self, chunks: AsyncIterator[bytes], window: Window) -> Results:
        """The image comes in pieces, so that many large ones at a time are refused before they fill the memory."""
        data = bytearray()
        try:
            async for chunk in chunks:
                data += chunk
                self._uploading += len(chunk)
                if self._uploading > self.settings.max_uploads_bytes:
                    raise BusyError("too many images are being sent at once; send yours again in a moment")
            return await self._like(bytes(data), window)
        finally:
            self._uploading -= len(data)

    async def _like(self, data: bytes, window: Window) -> Results:
        def search(searcher: Searcher, **wish: Any) -> list[Hit]:
            image = open_image(data, max_pixels=self.settings.max_pixels, name="the uploaded file")
            return searcher.search_image([image], **wish)[0]

        return await self._list(window, search, self.settings.rerank if window.kind == "text" else None)

    async def similar(self, item_id: str, window: Window) -> Results:
        return await self._list(window, lambda searcher, **wish: searcher.similar(item_id, **wish))

    async def search(self, work: Callable[[Searcher], T]) -> T:
        """Work that computes."""
        return await self._searches.run(lambda: self._borrowed(work))

    async def look_up(self, work: Callable[[Searcher], T]) -> T:
        """Work that reads files; it does not wait for searches."""
        return await self._images.run(lambda: self._borrowed(work))

    async def thumbnail(self, item_id: str, size: int) -> Thumbnail:
        return await self.look_up(lambda searcher: self.thumbnails.get(searcher.image_path(item_id), size))

    async def image_path(self, item_id: str) -> Path:
        return await self.look_up(lambda searcher: searcher.image_path(item_id))

    def close(self) -> None:
        self._searches.close()
        self._images.close()
        self._searchers.close()

    async def _list(self, window: Window, search: Callable[..., list[Hit]], rerank: int | None = None) -> Results:
        where: Where | None = parse_where(window.where) if window.where and window.where.strip() else None
        depth = window.offset + window.limit + 1  # one more tells whether there are more

        def hits(searcher: Searcher) -> list[Hit]:
            wish = {"kind": window.kind, "where": where}
            if rerank is None:
                return search(searcher, k=depth, **wish)
            best = search(searcher, k=min(depth, rerank), rerank=rerank, **wish)
            if depth <= rerank:
                return best
            # The same first `rerank` for every window, then the first stage's order: windows side by side fit.
            known = {hit.item.id for hit in best}
            return best + [hit for hit in search(searcher, k=depth, **wish) if hit.item.id not in known]

        began = time.perf_counter()
        found = await self.search(hits)
        return Results.of(found, window, time.perf_counter() - began)

    def _borrowed(self, work: Callable[[Searcher], T]) -> T:
        with self._searchers.lend() as searcher:
            return work(searcher)

    def _generation(self) -> float:
        return self._borrowed(lambda searcher: int(searcher.describe()["generation"]))

    def _count(self) -> None:
        add, kept = self.metrics.value, self.thumbnails
        add("quintet_searches_pending", "gauge", "Searches that wait or run.", lambda: self._searches.pending)
        add("quintet_index_generation", "gauge", "Which build of the index is served.", self._generation)
        add("quintet_index_swaps_total", "counter", "Newer indexes put in service.", lambda: self._searchers.swaps)
        stale = "1 while a newer index cannot be opened."
        add("quintet_index_stale", "gauge", stale, lambda: self.index_error is not None)
        add("quintet_thumbnails_made_total", "counter", "Small copies made.", lambda: kept.made)
        add("quintet_thumbnails_found_total", "counter", "Small copies found in the cache.", lambda: kept.found)
        add("quintet_thumbnails_bytes", "gauge", "Bytes of small copies on disk.", lambda: kept.kept_bytes)
