"""One contract, every engine."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quintet.search import SearchError, StoreError, UnknownItem
from quintet.search.stores import Scalar, Store, StoreHit, Where, open_store, parse_where

DIM = 8


def lattice(n: int, seed: int = 0) -> np.ndarray:
    """Vectors of small quarters: every product is exact in float32, in whatever order it is added up."""
    return np.random.default_rng(seed).integers(-4, 5, size=(n, DIM)).astype(np.float32) / 4


def fill(store: Store, vectors: np.ndarray, metadata: Sequence[Mapping[str, Scalar]] | None = None) -> list[str]:
    ids = [f"p{number:04}" for number in range(len(vectors))]
    store.add(ids, vectors, metadata or [{} for _ in ids])
    return ids


def brute(
    ids: Sequence[str],
    vectors: np.ndarray,
    query: np.ndarray,
    k: int,
    metadata: Sequence[Mapping[str, Scalar]] | None = None,
    where: Where | None = None,
) -> list[StoreHit]:
    """The plain twin: every product, one total order."""
    hits = [
        StoreHit(id_, float(sum(float(a) * float(b) for a, b in zip(vector, query, strict=True))))
        for row, (id_, vector) in enumerate(zip(ids, vectors, strict=True))
        if where is None or where.matches((metadata or [])[row])
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:k]


def test_search_returns_the_best_in_order_as_brute_force_does(store: Store) -> None:
    rng = np.random.default_rng(1)
    vectors, queries = rng.normal(size=(150, DIM)).astype(np.float32), rng.normal(size=(70, DIM)).astype(np.float32)
    ids = fill(store, vectors)
    store.flush()
    for k in (1, 10):
        found = store.search(queries, k)
        assert len(found) == len(queries)
        for query, hits in zip(queries, found, strict=True):
            expected = brute(ids, vectors, query, k)
            assert [hit.id for hit in hits] == [hit.id for hit in expected]
            assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)


def test_equal_scores_are_ordered_and_cut_by_id(store: Store) -> None:
    vectors = np.repeat(lattice(6), 10, axis=0)  # each ten times
    ids = [f"p{number:02}" for number in np.random.default_rng(0).permutation(60)]
    store.add(ids, vectors, [{} for _ in ids])
    for query in lattice(5, seed=2):
        for k in (1, 3, 7, 40):
            assert store.search(query[None], k) == [brute(ids, vectors, query, k)], k


def test_what_is_added_replaces_what_had_its_id(store: Store) -> None:
    vectors = lattice(30)
    fill(store, vectors, [{"turn": 1}] * 30)
    store.flush()
    changed = lattice(30, seed=9)[:5]
    store.add([f"p{number:04}" for number in range(5)], changed, [{"turn": 2}] * 5)
    assert len(store) == 30
    assert store.metadata(["p0004", "p0005"]) == [{"turn": 2}, {"turn": 1}]
    now = np.concatenate([changed, vectors[5:]])
    for query in lattice(4, seed=3):
        assert store.search(query[None], 30) == [brute(store.ids(), now, query, 30)]


def test_of_an_id_given_twice_the_last_one_stays(store: Store) -> None:
    store.add(["a", "b", "a"], lattice(3), [{"n": 1}, {"n": 2}, {"n": 3}])
    assert store.ids() == ["a", "b"]
    assert store.metadata(["a"]) == [{"n": 3}]
    assert store.search(lattice(3)[2:], 2)[0] == brute(["b", "a"], lattice(3)[1:], lattice(3)[2], 2)


def test_deleted_items_are_gone_and_may_come_back(store: Store) -> None:
    vectors = lattice(40)
    ids = fill(store, vectors)
    store.flush()
    assert store.delete([*ids[:10], "never there", ids[0]]) == 10
    assert store.delete(ids[:10]) == 0
    assert store.ids() == ids[10:]
    assert store.search(vectors[:1], 40) == [brute(ids[10:], vectors[10:], vectors[0], 40)]
    store.add(ids[:1], vectors[:1], [{}])
    assert len(store) == 31
    store.flush()
    assert store.delete(ids) == 31
    assert store.search(vectors[:1], 5) == [[]]


METADATA: list[dict[str, Scalar]] = [
    {
        "kind": "image" if number % 3 else "text",
        "year": 2020 + number % 5,
        "ratio": number / 8,
        "path": f"{'holiday' if number % 2 else 'work'}/{number % 7}/p{number}.jpg",
        "date": f"20{20 + number % 5}-0{1 + number % 9}-15",
        "sharp": number % 4 == 0,
        **({"rare": number} if number in (17, 31, 44) else {}),
    }
    for number in range(60)
]
FILTERS = [
    "kind=image",
    "kind!=image",
    "year=2023",
    "year!=2023",
    "year<2022",
    "year<=2022",
    "year>2022",
    "year>=2022",
    "ratio>=3.5",
    "ratio=1.25",
    "date>=2023",
    "date<2022-05-01",
    "date=2021-02-15",
    "path~holiday/*",
    "path~*.jpg",
    'path~"work/?/p*4.jpg"',
    "path~holiday",
    "path!=holiday/1/p1.jpg",
    "sharp=true",
    "sharp!=true",
    "rare>=0",
    "rare!=17",
    "absent=1",
    "kind=image and year>=2021 and year<2024 and path~*/3/*",
]


@pytest.fixture
def filtered(store: Store) -> Store:
    fill(store, lattice(60), METADATA)
    return store


def test_filters_leave_what_matches_best_first(filtered: Store) -> None:
    ids, vectors = filtered.ids(), lattice(60)
    for text in FILTERS:
        where = parse_where(text)
        for query in lattice(2, seed=5):
            for k in (2, 60):
                expected = brute(ids, vectors, query, k, METADATA, where)
                assert filtered.search(query[None], k, where) == [expected], f"{text}, k={k}"


def test_a_filter_on_the_worst_items_still_gives_k(store: Store) -> None:
    """The matches are the last that a search without the filter would come to."""
    n = 400
    vectors = np.zeros((n, DIM), dtype=np.float32)
    vectors[:, 0] = np.arange(n) / 8
    metadata: list[dict[str, Scalar]] = [{"name": f"x{'a' if number < 12 else 'b'}{number}z"} for number in range(n)]
    ids = fill(store, vectors, metadata)
    store.flush()
    query = np.eye(1, DIM, dtype=np.float32)[0]
    for text in ("name<xb", "name~xa*", "name~*a*z"):
        expected = brute(ids, vectors, query, 10, metadata, parse_where(text))
        assert len(expected) == 10
        assert store.search(query[None], 10, parse_where(text)) == [expected], text


def test_everything_is_there_after_closing_and_opening_again(address: str) -> None:
    vectors = lattice(60)
    store = open_store(address, DIM, create=True)
    ids = fill(store, vectors, METADATA)
    store.delete(ids[50:])
    store.close()
    for again in (open_store(address), open_store(address, DIM, create=True)):
        assert again.dim == DIM
        assert again.ids() == ids[:50]
        assert again.metadata(ids[:50]) == METADATA[:50]
        query = lattice(1, seed=8)[0]
        assert again.search(query[None], 50) == [brute(ids[:50], vectors[:50], query, 50)]
        where = parse_where("kind=image")
        assert again.search(query[None], 9, where) == [brute(ids[:50], vectors[:50], query, 9, METADATA, where)]
        again.close()


def test_many_threads_read_at_once(filtered: Store) -> None:
    ids, vectors, queries = filtered.ids(), lattice(60), lattice(40, seed=6)
    where = parse_where("kind=image and path~*.jpg")

    def ask(query: np.ndarray) -> tuple[list[list[StoreHit]], int]:
        return filtered.search(query[None], 5, where), len(filtered)

    with ThreadPoolExecutor(8) as pool:
        for query, (hits, count) in zip(queries, pool.map(ask, queries), strict=True):
            assert hits == [brute(ids, vectors, query, 5, METADATA, where)]
            assert count == 60


def test_an_empty_store_finds_nothing(store: Store) -> None:
    store.add([], np.zeros((0, DIM)), [])
    assert (len(store), store.ids(), store.metadata([]), store.delete(["a"]), store.delete([])) == (0, [], [], 0, 0)
    assert store.search(lattice(2), 3) == [[], []]
    assert store.search(lattice(2), 3, parse_where("kind=image")) == [[], []]
    assert store.search(np.zeros((0, DIM)), 3) == []
    store.flush()


def test_asking_for_more_than_there_is_gives_all(store: Store) -> None:
    vectors = lattice(5)
    ids = fill(store, vectors)
    assert store.search(vectors[:1], 1000) == [brute(ids, vectors, vectors[0], 5)]


def test_wrong_vectors_are_refused_and_change_nothing(store: Store) -> None:
    fill(store, lattice(3))
    for bad in (np.zeros((1, DIM + 1)), np.zeros(DIM), np.zeros((1, 1, DIM))):
        with pytest.raises(StoreError, match="of 8 numbers"):
            store.add(["a"], bad, [{}])
        with pytest.raises(StoreError, match="of 8 numbers"):
            store.search(bad, 1)
    for value in (np.nan, np.inf, 1e300):
        bad = np.zeros((2, DIM))
        bad[1, 3] = value
        with pytest.raises(StoreError, match="item 'b' holds NaN"):
            store.add(["a", "b"], bad, [{}, {}])
        with pytest.raises(StoreError, match="query 1 holds NaN"):
            store.search(bad, 1)
    with pytest.raises(StoreError, match="do not belong together"):
        store.add(["a"], lattice(2), [{}])
    with pytest.raises(SearchError, match="k must be 1"):
        store.search(lattice(1), 0)
    assert store.ids() == ["p0000", "p0001", "p0002"]


def test_wrong_ids_and_metadata_are_refused(store: Store) -> None:
    for id_ in ("", "a\0b", "\ud800", "x" * 1025, 7):
        with pytest.raises(StoreError, match="an id is"):
            store.add([id_], lattice(1), [{}])  # type: ignore[list-item]
    for value in (None, [1], float("nan"), 2**53 + 1, "x\0", "\udfff", "x" * 61_000):
        with pytest.raises(StoreError, match="metadata"):
            store.add(["a"], lattice(1), [{"field": value}])  # type: ignore[dict-item]
    for name in ("a b", "?", "", "ü"):
        with pytest.raises(StoreError, match="letters, digits and underscores"):
            store.add(["a"], lattice(1), [{name: 1}])
    assert len(store) == 0


def test_ids_and_metadata_come_back_as_they_were(store: Store) -> None:
    ids = ["a", "B", "ü/ö.jpg", 'quo"te', "back\\slash", "new\nline", "x" * 1024, "😀", "%_*?"]
    item: dict[str, Scalar] = {
        "text": "a \"quoted\" 'word' \\ %_*? ü😀\n\x01",
        "ids": "",
        "rows": -7,
        "largest": 2**53,
        "float": 1.0,
        "tiny": -1.5e-7,
        "huge": 1e300,
        "big": 1e16,
        "yes": True,
        "no": False,
        "zero": 0,
        "long": "x" * 50_000,
    }
    store.add(ids, lattice(len(ids)), [item] * len(ids))
    assert store.ids() == sorted(ids)
    for found in store.metadata(ids):
        assert found == item
        assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in item.items()}
    assert store.delete(ids[2:]) == len(ids) - 2
    with pytest.raises(UnknownItem, match="no item 'quo\"te'"):
        store.metadata(["a", 'quo"te'])


def test_a_store_that_is_not_there_is_only_made_when_asked(address: str) -> None:
    with pytest.raises(StoreError, match=r"there is no|has no"):
        open_store(address)
    with pytest.raises(StoreError, match="say how many numbers"):
        open_store(address, create=True)
    open_store(address, 4, create=True).close()
    with pytest.raises(StoreError, match=r"4 numbers, .*5"):
        open_store(address, 5, create=True)


KILLED = """
import os, signal, sys
import numpy as np
from quintet.search.stores import open_store

store = open_store(sys.argv[1], 8, create=True)
store.add(["a", "b"], np.eye(2, 8), [{"n": 1}, {"n": 2}])
store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "local-hnsw", "milvus-lite", "postgres-exact"])
def test_what_was_flushed_outlives_a_kill(new_address: Callable[[str], str], engine: str) -> None:
    address = new_address(engine)
    ended = subprocess.run([sys.executable, "-c", KILLED, address], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    store = open_store(address)
    assert store.ids() == ["a", "b"]
    assert store.metadata(["b"]) == [{"n": 2}]
    assert store.search(np.eye(1, 8), 1) == [[StoreHit("a", 1.0)]]
    store.close()
