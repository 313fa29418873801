from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintet.files import write_json
from quintet.search import StaleIndex
from quintet.serve.service import IndexWatcher, Searchers


class Stub:
    def __init__(self, generation: int) -> None:
        self.generation, self.closed = generation, 0

    def describe(self) -> dict[str, Any]:
        return {"generation": self.generation}

    def close(self) -> None:
        self.closed += 1


def test_the_old_searcher_is_closed_once_when_its_last_borrower_is_done() -> None:
    old, new = Stub(1), Stub(2)
    searchers = Searchers(old)  # type: ignore[arg-type]
    with searchers.lend() as first, searchers.lend() as second:
        assert first is second is old
        searchers.swap(new)  # type: ignore[arg-type]
        with searchers.lend() as third:
            assert third is new
        assert (old.closed, new.closed) == (0, 0)
    assert (old.closed, new.closed) == (1, 0)
    searchers.close()
    searchers.close()
    assert (old.closed, new.closed) == (1, 1)


def test_an_unused_one_is_closed_at_the_swap() -> None:
    old = Stub(1)
    searchers = Searchers(old)  # type: ignore[arg-type]
    searchers.swap(Stub(2))  # type: ignore[arg-type]
    assert old.closed == 1


def test_no_borrower_ever_meets_a_closed_searcher() -> None:
    searchers, stop, met = Searchers(Stub(0)), threading.Event(), []  # type: ignore[arg-type]

    def borrow() -> None:
        while True:
            with searchers.lend() as searcher:
                met.append(searcher.closed)  # type: ignore[attr-defined]
            if stop.is_set():
                return

    threads = [threading.Thread(target=borrow) for _ in range(4)]
    for thread in threads:
        thread.start()
    stubs = [Stub(number) for number in range(200)]
    for stub in stubs:
        searchers.swap(stub)  # type: ignore[arg-type]
    stop.set()
    for thread in threads:
        thread.join()
    assert not any(met)
    assert [stub.closed for stub in stubs] == [1] * 199 + [0]


@pytest.fixture
def watched(tmp_path: Path) -> Callable[[], IndexWatcher]:
    """A watcher of a folder whose `index.json` says the generation, or that it is of another version."""

    def open_stub() -> Stub:
        text = (tmp_path / "index.json").read_text()
        if "broken" in text:
            raise StaleIndex("written by another version")
        return Stub(int(text))

    return lambda: IndexWatcher(tmp_path, open_stub, 0.01)  # type: ignore[arg-type, return-value]


def generation(watcher: IndexWatcher) -> Any:
    with watcher.searchers.lend() as searcher:
        return searcher.describe()["generation"]


def test_a_replaced_manifest_is_noticed_and_an_unchanged_one_is_not(
    watched: Callable[[], IndexWatcher], tmp_path: Path
) -> None:
    write_json(tmp_path / "index.json", 1)
    watcher = watched()
    assert not watcher.look()
    write_json(tmp_path / "index.json", 2)
    assert watcher.look()
    assert generation(watcher) == 2
    assert not watcher.look()


def test_an_index_by_another_version_or_a_vanished_one_leaves_the_old_one_serving(
    watched: Callable[[], IndexWatcher], tmp_path: Path
) -> None:
    write_json(tmp_path / "index.json", 1)
    watcher = watched()
    write_json(tmp_path / "index.json", "broken")
    assert not watcher.look()
    assert watcher.error == "written by another version"
    assert generation(watcher) == 1
    (tmp_path / "index.json").unlink()
    assert not watcher.look()
    write_json(tmp_path / "index.json", 3)
    assert watcher.look()
    assert watcher.error is None
    assert generation(watcher) == 3


def test_what_a_killed_build_leaves_behind_changes_nothing(watched: Callable[[], IndexWatcher], tmp_path: Path) -> None:
    write_json(tmp_path / "index.json", 1)
    watcher = watched()
    (tmp_path / "generation-2").mkdir()
    (tmp_path / ".index.json.abc.partial").write_text("2")
    assert not watcher.look()
    assert generation(watcher) == 1


def test_the_watch_runs_until_cancelled(watched: Callable[[], IndexWatcher], tmp_path: Path) -> None:
    write_json(tmp_path / "index.json", 1)
    watcher = watched()

    async def watch() -> None:
        task = asyncio.create_task(watcher.run())
        write_json(tmp_path / "index.json", 2)
        for _ in range(300):
            if generation(watcher) == 2:
                break
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(watch())
    assert generation(watcher) == 2


def test_the_first_index_must_open(watched: Callable[[], IndexWatcher], tmp_path: Path) -> None:
    write_json(tmp_path / "index.json", "broken")
    with pytest.raises(StaleIndex):
        watched()
