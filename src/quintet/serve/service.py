"""What answers requests: the current searcher, in pools of threads."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from quintet.errors import QuintetError
from quintet.search import MissingImage, StaleIndex
from quintet.search.facets import Facet
from quintet.search.items import Hit, Item
from quintet.search.searcher import Searcher
from quintet.search.stores.where import Where, parse_where
from quintet.serve.access import Clients, Keys
from quintet.serve.decoder import Decoders, anonymous_file
from quintet.serve.prometheus import Metrics
from quintet.serve.schemas import (
    LAST_ITEM,
    HitAnswer,
    ImageQuery,
    ItemAnswer,
    NewestQuery,
    Parts,
    Results,
    SimilarQuery,
    Window,
)
from quintet.serve.settings import Settings
from quintet.serve.thumbnails import Thumbnail, Thumbnails, open_file
from quintet.serve.watcher import IndexWatcher, Searchers

LOG = logging.getLogger("quintet.serve")
T = TypeVar("T")
REMEMBERED = 10_000  # image files that were checked
PROBE_S, PROBES = 3.0, 8  # time limit of a check of the index and its store; such checks that may wait


class BusyError(QuintetError):
    """The queue is full. The same request may succeed a moment later."""


class TooSlowError(QuintetError):
    """The work took longer than the time limit."""


class DrainingError(QuintetError):
    """The server is about to stop. Another one may answer."""


class WorkPool:
    """Runs at most `threads` tasks at a time, with at most `queue` waiting; a further one raises `BusyError`."""

    def __init__(self, name: str, threads: int, queue: int, timeout_s: float) -> None:
        self.name = name
        self._limit = threads + queue
        self._timeout_s = timeout_s
        self._pending = 0  # waiting or running
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"quintet-{name}")

    @property
    def pending(self) -> int:
        return self._pending

    async def run(self, work: Callable[[], T], spent_s: float = 0.0) -> T:
        """The result of the task, or its error; `TooSlowError` if neither came in time.

        `spent_s`: of that time, before the task came here.

        A running task that timed out counts as pending until it ends: a thread cannot be stopped, and a store that
        hangs should fill this queue rather than the memory. A task that had not started is dropped.
        """
        with self._lock:
            if self._pending >= self._limit:
                raise BusyError(f"{self._pending} requests are waiting; try again in a moment")
            self._pending += 1
        future = self._executor.submit(work)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), self._timeout_s - spent_s)
        except TimeoutError:
            if future.done():
                return future.result()  # it ended at this moment, or the task itself raised TimeoutError
            future.cancel()
            raise TooSlowError(f"no answer within {self._timeout_s:g} s; try again later") from None

    def _done(self, future: Future[T]) -> None:
        with self._lock:
            self._pending -= 1

    def close(self) -> None:
        """Wait for running tasks and drop waiting ones."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class Service:
    """Runs every request to the searcher in a thread of a pool, which borrows the searcher for that time."""

    def __init__(self, source: Searchers | IndexWatcher, settings: Settings) -> None:
        self.settings = settings
        self.watcher = source if isinstance(source, IndexWatcher) else None
        self.metrics = Metrics()
        self.keys = Keys(settings.token, settings.read_token)
        self.clients = Clients(settings)
        self.decoders = Decoders(settings.decoders, settings.decode_s)
        self.thumbnails = Thumbnails(settings.cache, settings.cache_bytes, self.decoders)
        self._searchers = source.searchers if isinstance(source, IndexWatcher) else source
        self._searches = WorkPool("search", settings.search_threads, settings.search_queue, settings.timeout_s)
        # One batch of texts is encoded at a time, while texts that were encoded already are searched for.
        self._texts = WorkPool("text", 1, settings.search_queue, settings.timeout_s)
        self._images = WorkPool("image", settings.image_threads, settings.image_queue, settings.timeout_s)
        # Few at a time: each has an image in memory.
        self._uploads = WorkPool("upload", settings.decoders, settings.upload_queue, settings.timeout_s)
        self._probes = WorkPool("probe", 1, PROBES, PROBE_S)
        self._draining = False
        self._uploading = 0  # bytes
        self._waiting: Counter[str] = Counter()  # texts that are searched for, or will be
        self._examples: tuple[float, list[tuple[str, Item]]] = -1, []  # of a generation
        self._finding: asyncio.Task[list[tuple[str, Item]]] | None = None
        self._media_types: OrderedDict[tuple[object, ...], str] = OrderedDict()
        self._count()

    @property
    def index_error(self) -> str | None:
        """Why the index in the folder is not served, or None."""
        return self.watcher.error if self.watcher else None

    async def search_text(self, query: str, window: Window) -> Results:
        if isinstance(window, Parts) and window.exclude:
            return await self._list(
                window,
                lambda searcher, **options: searcher.search(
                    query, **{"duplicates": True, **options}, exclude=window.exclude
                ),
            )
        rerank = self.settings.rerank if window.kind == "image" else None

        began = time.perf_counter()
        self._waiting[query] += 1
        try:
            if not self._borrowed(lambda searcher: searcher.is_prepared(query)):
                await self._texts.run(
                    lambda: self._borrowed(lambda searcher: searcher.prepare(query, list(self._waiting)))
                )
            return await self._list(
                window, lambda searcher, **options: searcher.search_text([query], **options)[0], rerank, began=began
            )
        finally:
            self._waiting[query] -= 1
            if not self._waiting[query]:
                del self._waiting[query]

    async def search_image(self, chunks: AsyncIterator[bytes], window: ImageQuery) -> Results:
        """`chunks` are read one by one, so that too many large uploads are refused before they fill the memory."""
        size = 0
        with anonymous_file() as file:
            try:
                async for chunk in chunks:
                    file.write(chunk)
                    size += len(chunk)
                    self._uploading += len(chunk)
                    if self._uploading > self.settings.max_uploads_bytes:
                        raise BusyError("too many photos are being sent at once; try again in a moment")
                return await self._like(file, window)
            finally:
                self._uploading -= size

    async def _like(self, file: IO[bytes], window: ImageQuery) -> Results:
        image = cache(lambda: self.decoders.pixels(file, "the uploaded photo", self.settings.max_pixels))

        def search(searcher: Searcher, **options: Any) -> list[Hit]:
            if window.query is None and not window.exclude:
                return searcher.search_image([image()], **options)[0]
            parts = {"image": image(), "exclude": window.exclude, "duplicates": True, **options}
            return searcher.search(window.query, **parts)

        is_plain = window.query is None and not window.exclude
        rerank = self.settings.rerank if window.kind == "text" and is_plain else None
        return await self._list(window, search, rerank, pool=self._uploads)

    async def similar(self, query: SimilarQuery) -> Results:
        more: dict[str, Any] = {"query": query.query, "exclude": query.exclude}
        more = {name: value for name, value in more.items() if value}
        return await self._list(query, lambda searcher, **options: searcher.similar(query.id, **options, **more))

    async def newest(self, window: NewestQuery) -> Results:
        """Nothing is searched for: all items that pass the filter, the latest first."""
        where, began = _parsed(window.where), time.perf_counter()
        wanted: dict[str, Any] = {"k": window.limit, "start": window.offset, "kind": window.kind, "where": where}
        items, total = await self.look_up(lambda searcher: searcher.newest(**wanted))
        hits = [HitAnswer(item=ItemAnswer.of(item), score=None) for item in items]
        more = window.offset + window.limit < min(total, LAST_ITEM)
        return Results(hits=hits, more=more, seconds=round(time.perf_counter() - began, 4), total=total)

    async def facets(self, where: str | None) -> list[Facet]:
        condition = _parsed(where)
        return await self.look_up(lambda searcher: searcher.facets(condition))

    async def examples(self) -> list[tuple[str, Item]]:
        """Found once for each generation of the index; it takes a second or two."""

        def find(searcher: Searcher) -> list[tuple[str, Item]]:
            if self._examples[0] != searcher.generation:
                self._examples = searcher.generation, searcher.examples()
            return self._examples[1]

        return await self.search(find)

    def known_examples(self) -> list[tuple[str, Item]]:
        """Those found already; else they are looked for, and nobody waits."""
        if self._examples[0] != self._generation() and self._finding is None:
            self._finding = asyncio.create_task(self.examples())
            self._finding.add_done_callback(self._found)
        return self._examples[1]

    def _found(self, task: asyncio.Task[list[tuple[str, Item]]]) -> None:
        self._finding = None
        if not task.cancelled() and (error := task.exception()):
            LOG.warning("no queries were found that the page could offer: %s", error)

    async def search(self, work: Callable[[Searcher], T]) -> T:
        """Run a task that computes."""
        return await self._searches.run(lambda: self._borrowed(work))

    async def look_up(self, work: Callable[[Searcher], T]) -> T:
        """Run a task that reads files; it does not wait for searches."""
        return await self._images.run(lambda: self._borrowed(work))

    def drain(self) -> None:
        """The server is about to stop: requests are answered, and `/ready` says that none should be sent."""
        self._draining = True

    async def check(self) -> None:
        """Raise unless requests should be sent here: the index and its store answer, and the server is not stopping."""
        if self._draining:
            raise DrainingError("the server is stopping")
        await self._probes.run(lambda: self._borrowed(lambda searcher: searcher.check()))

    async def item(self, item_id: str) -> Item:
        return await self.look_up(lambda searcher: searcher.item(item_id))

    async def thumbnail(self, item_id: str, size: int) -> Thumbnail:
        return await self.look_up(lambda searcher: self.thumbnails.get(searcher.image_path(item_id), size))

    async def files(self, ids: Sequence[str]) -> list[tuple[Item, Path]]:
        """The images of these ids whose files are there."""

        def find(searcher: Searcher) -> list[tuple[Item, Path]]:
            found = []
            for item in [searcher.item(id_) for id_ in dict.fromkeys(ids)]:
                with suppress(MissingImage):
                    found.append((item, searcher.image_path(item.id)))
            return found

        files = await self.look_up(find)
        if not files:
            raise MissingImage("the files of these items are gone, or they are texts")
        return files

    async def image_file(self, item_id: str) -> tuple[BinaryIO, str]:
        """An image's file and media type. What does not decode as an image is never given out."""
        return await self.look_up(lambda searcher: self._checked(searcher.image_path(item_id)))

    def _checked(self, path: Path) -> tuple[BinaryIO, str]:
        file = open_file(path)
        try:
            facts = os.fstat(file.fileno())
            key = (path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            media_type = self._media_types.pop(key, None) or self.decoders.media_type(file, path.name)
            self._media_types[key] = media_type  # the last used last
            if len(self._media_types) > REMEMBERED:
                self._media_types.popitem(last=False)
            return file, media_type
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        for pool in (self._texts, self._searches, self._images, self._uploads, self._probes):
            pool.close()
        self.decoders.close()
        self._searchers.close()

    async def _list(
        self,
        window: Window,
        search: Callable[..., list[Hit]],
        rerank: int | None = None,
        pool: WorkPool | None = None,
        began: float | None = None,
    ) -> Results:
        where = _parsed(window.where)
        depth = window.offset + window.limit + 1  # one more than shown: tells whether there are more

        def hits(searcher: Searcher) -> list[Hit]:
            options: dict[str, Any] = {"kind": window.kind, "where": where}
            if isinstance(window, Parts) and not window.duplicates:
                options["duplicates"] = False
            if rerank is None:
                return search(searcher, k=depth, **options)
            best = search(searcher, k=min(depth, rerank), rerank=rerank, **options)
            if depth <= rerank:
                return best
            # The first `rerank` hits are the same for every window, so that windows do not overlap.
            known = {each.item.id for hit in best for each in (hit, *hit.duplicates)}
            return best + [hit for hit in search(searcher, k=depth, **options) if hit.item.id not in known]

        def answer(searcher: Searcher) -> tuple[list[Hit], str | None]:
            query = getattr(window, "query", None)
            return hits(searcher), searcher.query_note(query) if query else None

        now = time.perf_counter()
        began = now if began is None else began
        found, note = await (pool or self._searches).run(lambda: self._borrowed(answer), now - began)
        return Results.of(found, window, time.perf_counter() - began, note)

    def _borrowed(self, work: Callable[[Searcher], T]) -> T:
        with self._searchers.lend() as searcher:
            try:
                return work(searcher)
            except (StaleIndex, sqlite3.Error) as error:
                if self.watcher:
                    self.watcher.doubt(error)
                if isinstance(error, StaleIndex):
                    raise
                raise StaleIndex(f"the index cannot be read: {error or type(error).__name__}") from error

    def _pending(self) -> int:
        return self._texts.pending + self._searches.pending

    def _generation(self) -> float:
        return self._borrowed(lambda searcher: searcher.generation)

    def _count(self) -> None:
        add, kept = self.metrics.value, self.thumbnails
        add("quintet_searches_pending", "gauge", "Searches waiting or running.", self._pending)
        texts = "Texts that were encoded, in batches; what is searched for again is kept."
        add("quintet_texts_encoded", "gauge", texts, lambda: self._borrowed(lambda each: each.queries.encoded))
        batches = "Their batches."
        add("quintet_text_batches", "gauge", batches, lambda: self._borrowed(lambda each: each.queries.batches))
        add("quintet_index_generation", "gauge", "Generation of the index in use.", self._generation)
        add(
            "quintet_index_swaps_total", "counter", "Times a newer index was put in use.", lambda: self._searchers.swaps
        )
        stale = "1 while the index in the folder is missing, damaged or cannot be opened."
        add("quintet_index_stale", "gauge", stale, lambda: self.index_error is not None)
        add("quintet_thumbnails_made_total", "counter", "Thumbnails made.", lambda: kept.made)
        add("quintet_thumbnails_found_total", "counter", "Thumbnails found in the cache.", lambda: kept.found)
        add("quintet_thumbnails_bytes", "gauge", "Bytes of thumbnails on disk.", lambda: kept.kept_bytes)


def _parsed(where: str | None) -> Where | None:
    return parse_where(where) if where and where.strip() else None
