"""What only stores in folders promise: files complete or absent, one writer, readers that keep their state."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.search.stores.conftest import FOLDER_ENGINES

from quintet.errors import QuintetError
from quintet.files import read_json, write_json
from quintet.search.errors import StoreError
from quintet.search.stores import Store, file_address, open_store, parse_where
from quintet.search.stores.folder import FolderStore

DIM = 4


@pytest.fixture(params=FOLDER_ENGINES)
def address(request: pytest.FixtureRequest, new_address: Callable[[str], str]) -> str:
    return new_address(request.param)


def folder_of(address: str) -> Path:
    store = open_store(address)
    assert isinstance(store, FolderStore)
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
from pathlib import Path
from typing import Any
import numpy as np
from quintet.search.stores import open_store

store, renames = open_store(sys.argv[1]), 0
store.add(["p003", "new"], np.ones((2, 4)), [{"row": -1}, {}])
store.delete(["p000"])
replace = Path.replace

def replace_or_die(self, target):
    global renames
    if renames == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    renames += 1
    return replace(self, target)

Path.replace = replace_or_die
store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("renames", "is_new"), [(0, False), (1, False), (2, True)])
def test_a_kill_during_flush_leaves_the_old_content_or_the_new(
    new_address: Callable[[str], str], renames: int, is_new: bool
) -> None:
    address = new_address("exact")  # the table, then the manifest
    made(address).close()
    ended = subprocess.run([sys.executable, "-c", KILLED, address, str(renames)], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    store = open_store(address)
    assert ("new" in store.ids(), "p000" in store.ids()) == (is_new, not is_new)
    assert store.metadata(["p003"]) == [{"row": -1 if is_new else 3}]
    store.add(["after"], np.ones((1, DIM)), [{}])  # the lock went with its holder, the unfinished rows are cut off
    store.close()
    now = {f"p{row:03}": vector for row, vector in enumerate(vectors(20))} | {"after": np.ones(DIM)}
    if is_new:
        now = now | {"p003": np.ones(DIM), "new": np.ones(DIM)}
        del now["p000"]
    query = vectors(1, seed=6)[0]
    best = sorted(now, key=lambda id_: (-np.float32(now[id_] @ query.astype(np.float64)), id_))
    assert [hit.id for hit in open_store(address).search(query[None], 30)[0]] == best
    assert not list(folder_of(address).glob(".*partial"))


@pytest.mark.slow
def test_a_kill_while_an_index_is_written_leaves_the_index_before(new_address: Callable[[str], str]) -> None:
    address = new_address("faiss-hnsw")
    made(address).close()
    before = open_store(address).search(vectors(3, seed=1), 5)
    folder = folder_of(address)
    manifest = read_json(folder / "store.json")
    manifest["engine"] = {"asked": "ivf", "kind": "none"}  # so that the next flush makes an index
    write_json(folder / "store.json", manifest)
    ended = subprocess.run([sys.executable, "-c", KILLED, address, "1"], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert open_store(address).search(vectors(3, seed=1), 5) == before


def test_two_writers_are_one_too_many(address: str) -> None:
    one, other = made(address), open_store(address)
    assert len(other) == 20  # reading is free
    for change in (lambda: other.add(["x"], vectors(1), [{}]), lambda: other.delete(["p001"])):
        with pytest.raises(StoreError, match=rf"being written by another process \(number {os.getpid()}\)"):
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
    (file,) = folder.glob("vectors-*.f32")
    assert file.stat().st_size <= 2 * 30 * DIM * 4
    assert len(list(folder.glob("items-*"))) == 1
    now = np.concatenate([vectors(10, seed=5), vectors(30)[10:]])
    store = open_store(address)
    for query in vectors(5, seed=9):
        best = [f"p{row:03}" for row in np.argsort(-(now @ query))]
        assert [hit.id for hit in store.search(query[None], 30)[0]] == best


def test_what_was_not_flushed_is_seen_here_and_not_by_others(address: str) -> None:
    store = made(address)
    store.add(["new"], vectors(1), [{"row": 99}])
    assert len(store) == 21
    assert store.search(vectors(1), 2, parse_where("row=99"))[0][0].id == "new"
    assert len(open_store(address)) == 20
    store.close()
    assert len(open_store(address)) == 21
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.search(vectors(1), 1)


def test_flushing_without_a_change_writes_nothing(address: str) -> None:
    store = made(address)
    times = {path: path.stat().st_mtime_ns for path in folder_of(address).iterdir()}
    store.delete(["nobody"])
    store.flush()
    store.close()
    assert {path: path.stat().st_mtime_ns for path in folder_of(address).iterdir()} == times


def test_a_full_disk_while_adding_changes_nothing(address: str) -> None:
    store = made(address)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 * DIM * 4 + 6, hard))  # one number and a half
    try:
        with pytest.raises(
            StoreError, match=r"could not write .*vectors-0\.f32: .*; what was flushed before is unchanged"
        ):
            store.add(["a"], vectors(1), [{}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    long = 100 * vectors(1, seed=7)
    store.add(["b"], long, [{}])
    assert (store.ids()[0], len(store)) == ("b", 21)
    assert store.search(long, 1)[0][0].score == pytest.approx((long**2).sum())
    store.close()


def test_a_full_disk_while_flushing_leaves_the_old_content(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(address)
    store.delete([f"p{row:03}" for row in range(15)])  # the next flush compacts

    def full(path: Path, value: object) -> None:
        raise QuintetError(f"could not write {path}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("quintet.search.stores.folder.write_json", full)
        with pytest.raises(QuintetError, match="No space left"):
            store.flush()
        assert len(open_store(address)) == 20
    store.add(["more"], vectors(1), [{}])  # and the store goes on from where it was
    assert len(store) == 6
    store.close()
    assert len(open_store(address)) == 6


@pytest.mark.parametrize("damage", ["cut", "missing", "garbage", "mixed", "future"])
def test_damage_is_told(address: str, damage: str) -> None:
    made(address).close()
    folder = folder_of(address)
    manifest = read_json(folder / "store.json")
    if damage == "cut":
        os.truncate(folder / manifest["vectors"], 10)
    elif damage == "missing":
        (folder / manifest["items"]).unlink()
    elif damage == "garbage":
        (folder / manifest["items"]).write_bytes(b"garbage")
    elif damage == "mixed":
        write_json(folder / "store.json", manifest | {"rows": 3, "engine": {}})
    else:
        write_json(folder / "store.json", manifest | {"version": 99})
    with pytest.raises(StoreError, match=r"damaged|lacks a file|up to version"):
        open_store(address)


def test_the_exact_and_the_faiss_store_read_each_others_folders(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    made(file_address("exact", tmp_path)).close()
    queries = vectors(4, seed=2)
    expected = open_store(file_address("exact", tmp_path)).search(queries, 20)
    store = open_store(file_address("faiss", tmp_path) + "?kind=hnsw")
    assert store.search(queries, 20) == expected
    store.add(["p000"], vectors(1), [{"row": 0}])
    store.close()
    assert list(tmp_path.glob("index-*.faiss"))
    assert open_store(file_address("exact", tmp_path)).search(queries, 20) == expected


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the folder"):
        open_store(file_address("exact", tmp_path / "file" / "store"), 3, create=True)


def test_a_long_flush_does_not_keep_readers_waiting(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(address)
    assert isinstance(store, FolderStore)
    store.add(["new"], vectors(1), [{}])
    prepare, found = store._maker.prepare, []

    def slow(*arguments: Any, **more: Any) -> dict[str, Any]:
        reader = threading.Thread(target=lambda: found.append(len(store.search(vectors(1), 30)[0])))
        reader.start()
        reader.join(10)  # the flush goes on only when the reader has its answer
        return prepare(*arguments, **more)

    monkeypatch.setattr(store._maker, "prepare", slow)
    store.flush()
    assert found == [21]
    store.close()


def test_many_small_additions_are_as_one(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.search.stores.folder.PENDING", 7)
    store = open_store(address, DIM, create=True)
    for row, vector in enumerate(vectors(20)):
        store.add([f"p{row:03}"], vector[None], [{"row": row}])
    store.close()
    again = open_store(address)
    assert again.metadata(again.ids()) == [{"row": row} for row in range(20)]
