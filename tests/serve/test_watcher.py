from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quintet.files import read_json, write_json
from quintet.search import StaleIndex
from quintet.serve.watcher import IndexWatcher, Searchers


class Stub:
    def __init__(self, generation: int, read: list[Path] | None = None) -> None:
        self.generation, self.closed, self.read = generation, 0, read or []

    def files(self) -> list[Path]:
        return self.read

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
    """A watcher of a folder whose `index.json` says the generation, or that opening it raises an exception."""
    (tmp_path / "items.sqlite").write_text("database")

    def open_stub() -> Stub:
        text = read_json(tmp_path / "index.json")
        if text in RAISED:
            raise RAISED[text]
        return Stub(text, [tmp_path / "vectors.bin"] if (tmp_path / "vectors.bin").exists() else [])

    return lambda: IndexWatcher(tmp_path, open_stub, 0.01)  # type: ignore[arg-type, return-value]


class Panic(BaseException):
    """What libraries written in Rust raise."""


RAISED: dict[Any, BaseException] = {
    "StaleIndex": StaleIndex("written by another version"),
    "OSError": OSError(5, "Input/output error"),
    "KeyError": KeyError("runs"),
    "RecursionError": RecursionError("maximum recursion depth exceeded"),
    "MemoryError": MemoryError(),
    "DatabaseError": sqlite3.DatabaseError("database disk image is malformed"),
    "Panic": Panic("range end index 9 out of range"),
    "SystemExit": SystemExit(3),
}


def generation(watcher: IndexWatcher) -> Any:
    with watcher.searchers.lend() as searcher:
        return searcher.generation


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
    write_json(tmp_path / "index.json", "StaleIndex")
    assert not watcher.look()
    assert watcher.error == "written by another version"
    assert generation(watcher) == 1
    (tmp_path / "index.json").unlink()
    assert not watcher.look()
    assert "no index.json" in str(watcher.error)
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
    write_json(tmp_path / "index.json", "StaleIndex")
    with pytest.raises(StaleIndex):
        watched()


@pytest.mark.parametrize("raised", sorted(RAISED))
def test_no_exception_ends_the_watch_and_a_later_good_build_is_served(
    watched: Callable[[], IndexWatcher], tmp_path: Path, raised: str
) -> None:
    write_json(tmp_path / "index.json", 1)
    watcher = watched()

    async def until(condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(watcher.error)

    async def watch() -> None:
        task = asyncio.create_task(watcher.run())
        write_json(tmp_path / "index.json", raised)
        await until(lambda: watcher.error is not None)
        assert generation(watcher) == 1
        write_json(tmp_path / "index.json", 2)
        await until(lambda: watcher.error is None)
        assert generation(watcher) == 2
        assert not task.done()
        task.cancel()

    asyncio.run(watch())


def test_files_that_cannot_be_opened_are_tried_again_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tried = [0.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for name in ("index.json", "items.sqlite"):
        (tmp_path / name).write_text("1")

    def open_stub() -> Stub:
        tried.append(clock[0])
        if len(tried) > 1:
            raise StaleIndex("a store does not answer")
        return Stub(1)

    watcher = IndexWatcher(tmp_path, open_stub, 1.0)  # type: ignore[arg-type]
    write_json(tmp_path / "index.json", 2)
    for second in range(300):
        clock[0] = float(second)
        watcher.look()
    pauses = [after - before for before, after in pairwise(tried[1:])]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    write_json(tmp_path / "index.json", 3)
    watcher.look()
    assert tried[-1] == 299  # another file is tried at once


@pytest.mark.parametrize("change", ["deleted", "replaced", "cut short"])
def test_damage_to_the_files_that_are_read_is_noticed_and_mended(
    watched: Callable[[], IndexWatcher], tmp_path: Path, change: str
) -> None:
    write_json(tmp_path / "index.json", 1)
    vectors = tmp_path / "vectors.bin"
    vectors.write_bytes(bytes(100))
    watcher = watched()
    vectors.write_bytes(bytes(120))  # a build appends
    assert not watcher.look()
    assert watcher.error is None
    watcher._reopen = lambda: (_ for _ in ()).throw(StaleIndex("is damaged"))
    if change == "cut short":
        vectors.write_bytes(bytes(90))
    else:
        vectors.unlink()
        if change == "replaced":
            (tmp_path / "new").write_bytes(bytes(100))
            (tmp_path / "new").rename(vectors)
    watcher.look()
    assert watcher.error == "is damaged"
    assert generation(watcher) == 1
    watcher._reopen = lambda: Stub(1)  # type: ignore[assignment, return-value]
    time.sleep(0.03)
    assert watcher.look()
    assert watcher.error is None


def test_a_search_that_fails_because_of_the_index_opens_it_again(
    watched: Callable[[], IndexWatcher], tmp_path: Path
) -> None:
    write_json(tmp_path / "index.json", 1)
    watcher = watched()
    watcher.doubt(sqlite3.DatabaseError("malformed"))
    assert watcher.error == "malformed"
    assert watcher.look()
    assert watcher.error is None
    watcher.doubt(sqlite3.DatabaseError("malformed"))
    assert not watcher.look()  # not all the time
    time.sleep(0.03)
    assert watcher.look()


def test_a_disk_that_does_not_answer_is_told(
    watched: Callable[[], IndexWatcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "index.json", 1)
    watcher = watched()
    assert watcher.error is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 70)
    assert "disk" in str(watcher.error)
