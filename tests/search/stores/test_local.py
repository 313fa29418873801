"""What only the local store promises: the last commit outlives a kill, one writer, readers that keep their state."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.search.stores.conftest import LOCAL_ENGINES

from quintet.search import StoreError
from quintet.search.stores import Store, file_address, local, open_store, parse_where
from quintet.search.stores.local import LocalStore

DIM = 4


@pytest.fixture(params=LOCAL_ENGINES)
def address(request: pytest.FixtureRequest, new_address: Callable[[str], str]) -> str:
    return new_address(request.param)


def folder_of(address: str) -> Path:
    store = open_store(address)
    assert isinstance(store, LocalStore)
    store.close()
    return store.folder


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)


def made(address: str, n: int = 20) -> Store:
    store = open_store(address, DIM, create=True)
    store.add([f"p{row:03}" for row in range(n)], vectors(n), [{"row": row} for row in range(n)])
    store.flush()
    return store


KILLED = """
import os, signal, sys
import numpy as np
from quintet.search.items import ItemDatabase
from quintet.search.stores import local, open_store

store, steps = open_store(sys.argv[1]), 0

def die_at(original):
    def call(*arguments, **more):
        global steps
        if steps == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        return original(*arguments, **more)
    return call

ItemDatabase.transaction = die_at(ItemDatabase.transaction)
local.prepare_index = die_at(local.prepare_index)
store.add(["p003", "new"], np.ones((2, 4)), [{"row": -1}, {}])
store.delete(["p000"])
store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("step", "added", "deleted"), [(0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 1), (4, 1, 1), (9, 1, 1)]
)
def test_a_kill_leaves_what_was_added_and_deleted_before(address: str, step: int, added: bool, deleted: bool) -> None:
    made(address).close()
    ended = subprocess.run([sys.executable, "-c", KILLED, address, str(step)], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    store = open_store(address)
    assert ("new" in store.ids(), "p000" in store.ids()) == (added, not deleted)
    assert store.metadata(["p003"]) == [{"row": -1 if added else 3}]
    store.add(["after"], np.ones((1, DIM)), [{}])  # the lock went with its holder, the unfinished rows are cut off
    store.close()
    now = {f"p{row:03}": vector for row, vector in enumerate(vectors(20))} | {"after": np.ones(DIM)}
    if added:
        now = now | {"p003": np.ones(DIM), "new": np.ones(DIM)}
    if deleted:
        del now["p000"]
    query = vectors(1, seed=6)[0]
    best = sorted(now, key=lambda id_: (-np.float32(now[id_] @ query.astype(np.float64)), id_))
    assert [hit.id for hit in open_store(address).search(query[None], 30)[0]] == best
    with sqlite3.connect(folder_of(address) / "items.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT * FROM unused").fetchall() == []
    assert not list(folder_of(address).glob("**/.*partial"))


def test_two_writers_are_one_too_many(address: str) -> None:
    one, other = made(address), open_store(address)
    assert len(other) == 20  # reading is free
    for change in (lambda: other.add(["x"], vectors(1), [{}]), lambda: other.delete(["p001"])):
        with pytest.raises(StoreError, match=rf"another process .*{os.getpid()}"):
            change()
    one.add(["mine"], vectors(1), [{}])
    one.close()
    other.add(["yours"], vectors(1), [{}])  # takes up what was written meanwhile
    assert len(other) == 22
    other.close()


def test_a_reader_keeps_the_state_of_its_opening(address: str) -> None:
    writer, reader = made(address), open_store(address)
    before = reader.search(vectors(2, seed=3), 20)
    writer.delete([f"p{row:03}" for row in range(15)])
    writer.flush()  # compacted: the reader's files are gone
    writer.add(["p019"], vectors(1, seed=4), [{}])
    writer.close()
    assert reader.search(vectors(2, seed=3), 20) == before
    assert len(open_store(address)) == 5


def test_dead_rows_are_removed_when_they_are_most(address: str) -> None:
    store = made(address, 30)
    for turn in range(6):
        store.add([f"p{row:03}" for row in range(10)], vectors(10, seed=turn), [{"turn": turn}] * 10)
        store.flush()
    store.close()
    folder = folder_of(address)
    (file,) = folder.glob("vectors/*-embedding.bin")
    assert file.stat().st_size <= 2 * 30 * DIM * 4
    assert len(list(folder.glob("vectors/*.faiss"))) <= 1
    now = np.concatenate([vectors(10, seed=5), vectors(30)[10:]])
    store = open_store(address)
    for query in vectors(5, seed=9):
        best = [f"p{row:03}" for row in np.argsort(-(now @ query))]
        assert [hit.id for hit in store.search(query[None], 30)[0]] == best


def test_what_was_added_is_there_for_whoever_opens_the_store_next(address: str) -> None:
    store, before = made(address), open_store(address)
    store.add(["new"], vectors(1), [{"row": 99}])
    assert len(store) == len(open_store(address)) == 21
    assert len(before) == 20
    assert store.search(vectors(1), 2, parse_where("row=99"))[0][0].id == "new"
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.search(vectors(1), 1)


def test_flushing_without_a_change_writes_nothing(address: str) -> None:
    store = made(address)
    files = [path for path in folder_of(address).rglob("*") if path.is_file() and "-shm" not in path.name]
    times = {path: path.stat().st_mtime_ns for path in files}
    store.delete(["nobody"])
    store.flush()
    assert {path: path.stat().st_mtime_ns for path in files} == times
    store.close()


def test_a_full_disk_while_adding_changes_nothing(address: str) -> None:
    store = made(address)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 * DIM * 4 + 6, hard))  # one number and a half
    try:
        with pytest.raises(StoreError, match=r"could not write .*vectors"):
            store.add(["a"], vectors(1), [{}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    long = 100 * vectors(1, seed=7)
    store.add(["b"], long, [{}])
    assert (store.ids()[0], len(store)) == ("b", 21)
    assert store.search(long, 1)[0][0].score == pytest.approx((long**2).sum())
    store.close()


def test_a_full_disk_while_flushing_leaves_the_content(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(address)
    store.delete([f"p{row:03}" for row in range(15)])  # the next flush compacts

    def full(*_: Any) -> None:
        raise StoreError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(local, "retire", full)
        with pytest.raises(StoreError, match="full"):
            store.flush()
        assert len(store) == len(open_store(address)) == 5
    store.add(["more"], vectors(1), [{}])  # and the store goes on from where it was
    assert len(store) == 6
    store.close()
    assert len(open_store(address)) == 6
    assert len(list(folder_of(address).glob("vectors/*.bin"))) == 1


def test_a_full_database_while_adding_changes_nothing(address: str) -> None:
    store = made(address)
    assert isinstance(store, LocalStore)
    store.add(["before"], vectors(1), [{}])
    (pages,) = store._database.query("PRAGMA page_count")[0]
    store._database.query(f"PRAGMA max_page_count = {pages}")
    many = [f"x{row:05}" for row in range(2000)]
    with pytest.raises(StoreError, match=r"full.*unchanged"):
        store.add(many, vectors(2000), [{"text": "x" * 200}] * 2000)
    store._database.query("PRAGMA max_page_count = 1000000")
    assert len(store) in (20, 21)  # SQLite may have given up all that was not committed
    store.add(["more"], 100 * vectors(1, seed=5), [{}])
    count = len(store)
    store.close()
    assert len(open_store(address)) == count
    assert open_store(address).search(vectors(1, seed=5), 1)[0][0].id == "more"


@pytest.mark.parametrize("damage", ["cut", "missing", "garbage", "future"])
def test_damage_is_told(address: str, damage: str) -> None:
    made(address).close()
    folder = folder_of(address)
    (file,) = folder.glob("vectors/*-embedding.bin")
    if damage == "cut":
        os.truncate(file, 10)
    elif damage == "missing":
        file.unlink()
    elif damage == "garbage":
        (folder / "items.sqlite").write_bytes(b"garbage" * 1000)
    else:
        with sqlite3.connect(folder / "items.sqlite") as connection:
            connection.execute("UPDATE head SET value = json_set(value, '$.version', 99) WHERE name = 'store'")
    with pytest.raises(StoreError, match=r"damaged|lacks a file|up to version"):
        open_store(address)


def test_another_kind_of_index_may_be_asked_for_later(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    made(file_address("local", tmp_path)).close()
    queries = vectors(4, seed=2)
    expected = open_store(file_address("local", tmp_path)).search(queries, 20)
    for kind in ("hnsw", "ivf", "flat"):
        store = open_store(file_address("local", tmp_path), kind=kind)
        assert store.search(queries, 20) == expected
        store.add(["p000"], vectors(1), [{"row": 0}])
        store.close()
        assert len(list(tmp_path.glob("vectors/*.faiss"))) == (kind != "flat")
        assert open_store(file_address("local", tmp_path)).search(queries, 20) == expected


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not write"):
        open_store(file_address("local", tmp_path / "file" / "store"), 3, create=True)


def test_a_long_flush_does_not_keep_readers_waiting(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(address)
    assert isinstance(store, LocalStore)
    store.add(["new"], vectors(1), [{}])
    prepare, found = local.prepare_index, []

    def slow(*arguments: Any) -> dict[str, Any]:
        reader = threading.Thread(target=lambda: found.append(len(store.search(vectors(1), 30)[0])))
        reader.start()
        reader.join(10)  # the flush goes on only when the reader has its answer
        return prepare(*arguments)

    monkeypatch.setattr(local, "prepare_index", slow)
    store.flush()
    assert found == [21]
    store.close()


def test_many_small_additions_are_as_one(address: str) -> None:
    store = open_store(address, DIM, create=True)
    for row, vector in enumerate(vectors(20)):
        store.add([f"p{row:03}"], vector[None], [{"row": row}])
    store.close()
    again = open_store(address)
    assert again.metadata(again.ids()) == [{"row": row} for row in range(20)]
