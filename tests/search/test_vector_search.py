"""What the FAISS store adds to the contract: kinds by size, extension, recall, exactness where an index falls short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.search import StoreError
from quintet.search.stores import Store, StoreHit, Where, file_address, open_store, parse_where
from quintet.search.stores.local import KIND, LocalStore
from quintet.search.vector_search import VectorSearch

pytest.importorskip("faiss", reason="no FAISS: pip install 'quintet-retrieval[index]'")
DIM = 16


def clustered(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(40, DIM))
    vectors = centres[rng.integers(40, size=n)] + 0.6 * rng.normal(size=(n, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def made(folder: Path, kind: str, n: int = 4000) -> Store:
    store = open_store(file_address("local", folder), DIM, create=True, kind=kind)
    add(store, 0, n)
    store.flush()
    return store


def add(store: Store, start: int, end: int) -> None:
    vectors = clustered(end)[start:] if start == 0 else clustered(end, seed=start)[: end - start]
    metadata = [{"n": number, "even": number % 2 == 0} for number in range(start, end)]
    store.add([f"{number:06}" for number in range(start, end)], vectors, metadata)


class Exact:
    """Every vector compared, whatever index there is: the plain twin."""

    def __init__(self, folder: Path) -> None:
        store = open_store(file_address("local", folder))
        assert isinstance(store, LocalStore)
        self.store, now = store, store._now()
        self.search_all = VectorSearch(now.database, KIND, now.search.vectors)

    def search(self, queries: np.ndarray, k: int, where: Where | None = None) -> list[list[StoreHit]]:
        found = self.search_all.search(queries, k, where)
        return [[StoreHit(entry.item.id, score) for entry, score in hits] for hits in found]


def exact(folder: Path) -> Exact:
    return Exact(folder)


def notes(folder: Path) -> dict[str, Any]:
    store = open_store(file_address("local", folder))
    assert isinstance(store, LocalStore)
    return dict(store._now().database.head("faiss") or {})


def recall(found: Store, truth: Exact, where: str | None = None) -> float:
    queries, filter_ = clustered(50, seed=7), parse_where(where) if where else None
    pairs = zip(found.search(queries, 10, filter_), truth.search(queries, 10, filter_), strict=True)
    return float(np.mean([len({hit.id for hit in a} & {hit.id for hit in b}) / len(b) for a, b in pairs]))


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_index_finds_nearly_all_and_filters_too(tmp_path: Path, kind: str) -> None:
    made(tmp_path, kind).close()
    store, truth = open_store(file_address("local", tmp_path)), exact(tmp_path)
    assert notes(tmp_path)["kind"] == kind
    assert recall(store, truth) > 0.97
    for where, least in (("even=true", 0.97), ("n<400", 0.95), ("n<20", 1.0)):
        assert recall(store, truth, where) >= least, where


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_never_fewer_than_k_when_k_match(tmp_path: Path, kind: str) -> None:
    """What matches lies far from the query, where an index does not look."""
    store = open_store(file_address("local", tmp_path), 2, create=True, kind=kind)
    angles = np.linspace(0, np.pi, 3000)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    store.add([f"{n:04}" for n in range(3000)], vectors, [{"n": n} for n in range(3000)])
    store.flush()
    found = store.search(np.array([[1.0, 0.0]]), 60, parse_where("n>=2900"))[0]
    assert [hit.id for hit in found] == [f"{n:04}" for n in range(2900, 2960)]
    assert len(store.search(np.array([[1.0, 0.0]]), 2500)[0]) == 2500
    store.close()


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_rows_behind_the_index_are_found_and_then_taken_in(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintet.search.vector_search.TAIL", 100)
    store = made(tmp_path, kind, 1000)
    add(store, 1000, 1050)
    store.flush()
    assert notes(tmp_path)["rows"] == 1000
    assert recall(store, exact(tmp_path)) > 0.97
    add(store, 1050, 1200)
    store.flush()
    now = notes(tmp_path)
    assert (now["rows"], now["learnt_from"]) == (1200, 1000)
    assert recall(store, exact(tmp_path)) > 0.97
    add(store, 1200, 4000)
    store.flush()
    assert notes(tmp_path)["learnt_from"] == 4000
    assert recall(store, exact(tmp_path)) > 0.97
    assert len(list(tmp_path.glob("vectors/*.faiss"))) == 1
    store.close()


def test_the_number_of_vectors_decides_where_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.search.vector_search.HNSW_FROM", 300)
    monkeypatch.setattr("quintet.search.vector_search.IVF_FROM", 600)
    store = open_store(file_address("local", tmp_path), DIM, create=True)
    kinds = []
    for start in (0, 250, 500, 750):
        add(store, start, start + 250)
        store.flush()
        kinds.append(notes(tmp_path).get("kind"))
        assert recall(store, exact(tmp_path)) > 0.97
    assert kinds == [None, "hnsw", "ivf", "ivf"]
    store.close()


def test_the_kind_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    made(tmp_path, "hnsw", 100).close()
    store = open_store(file_address("local", tmp_path))
    store.delete(store.ids()[:80])  # compacted: the index is made anew
    store.close()
    assert notes(tmp_path)["kind"] == "hnsw"


def test_scores_are_the_same_whatever_else_is_asked_with_them(tmp_path: Path) -> None:
    """FAISS adds up in another order for many queries than for one; the store's scores do not show it."""
    store, queries = made(tmp_path, "flat", 500), clustered(100, seed=3)
    together = store.search(queries, 20)
    assert together == [store.search(query[None], 20)[0] for query in queries]
    assert together == exact(tmp_path).search(queries, 20)
    store.close()


def test_equal_vectors_beyond_the_spare_are_all_seen(tmp_path: Path) -> None:
    store = open_store(file_address("local", tmp_path), DIM, create=True, kind="flat")
    ids = [f"{number:03}" for number in np.random.default_rng(0).permutation(300)]
    store.add(ids, np.repeat(clustered(1), 300, axis=0), [{}] * 300)
    assert [hit.id for hit in store.search(clustered(1), 5)[0]] == [f"{number:03}" for number in range(5)]
    store.close()


def test_vectors_are_loaded_only_where_all_of_them_are_compared(tmp_path: Path) -> None:
    for kind in ("hnsw", "flat"):
        made(tmp_path / kind, kind, 500).close()
        store = open_store(file_address("local", tmp_path / kind))
        assert isinstance(store, LocalStore)
        store.search(clustered(40), 5)
        store.search(clustered(40), 5, parse_where("n<5"))
        assert (store._now().search.vectors._whole is None) == (kind == "hnsw")


def test_vectors_in_memory_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "flat", 500).close()
    store = open_store(file_address("local", tmp_path))
    expected = store.search(clustered(40), 5)
    monkeypatch.setattr("quintet.search.vectors.Rows.read", lambda *_: pytest.fail("read"))
    assert store.search(clustered(40), 5) == expected


def test_too_many_vectors_for_memory_are_compared_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(tmp_path, "flat", 500)
    expected = store.search(clustered(40), 5)
    monkeypatch.setattr("quintet.search.vectors.LOADED_BYTES", 1000)
    store = open_store(file_address("local", tmp_path))
    assert isinstance(store, LocalStore)
    assert store.search(clustered(40), 5) == expected
    assert store._now().search.vectors._whole is None


def test_a_damaged_index_is_told(tmp_path: Path) -> None:
    made(tmp_path, "hnsw", 100).close()
    (file,) = tmp_path.glob("vectors/*.faiss")
    file.write_bytes(b"garbage")
    with pytest.raises(StoreError, match="is damaged"):
        open_store(file_address("local", tmp_path))


def test_a_search_of_lists_takes_all_threads_unless_another_is_under_way(tmp_path: Path) -> None:
    import faiss

    store = made(tmp_path / "store", "ivf")
    assert isinstance(store, LocalStore)
    search = store._now().search
    assert search._index.parallel_mode == 1
    most = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        with search._threads(1, by_lists=True):
            assert faiss.omp_get_max_threads() == 3
            with search._threads(2, by_lists=True):
                assert faiss.omp_get_max_threads() == 2
        with search._threads(1):
            assert faiss.omp_get_max_threads() == 1
        assert faiss.omp_get_max_threads() == 3
        with search._threads(1, by_lists=True):  # the others have ended
            assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(most)
