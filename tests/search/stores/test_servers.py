"""Servers that are down, slow, silent or lost for a moment; and names and filters that mean harm."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from tests.search.stores.proxy import Proxy

from quintet.search import StoreError, StoreUnavailable
from quintet.search.stores import Clause, Where, open_store

TIMEOUT = 2  # the least that PostgreSQL's driver counts
GRACE = 8  # for a busy machine


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connections are made and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def postgres_line(postgres: str) -> Iterator[Proxy]:
    folder = parse_qs(urlsplit(postgres).query)["host"][0]
    (place,) = (path for path in Path(folder).glob(".s.PGSQL.*") if path.suffix != ".lock")
    proxy = Proxy(str(place))
    yield proxy
    proxy.close()


@pytest.fixture
def milvus_line(milvus_port: int) -> Iterator[Proxy]:
    proxy = Proxy(milvus_port)
    yield proxy
    proxy.close()


POSTGRES = "postgresql://postgres:secret@127.0.0.1:{}/postgres?timeout={}&table=t_line"
MILVUS = "milvus+http://name:secret@127.0.0.1:{}?timeout={}&collection=t_line"


def unavailable(action: Callable[[], object], port: int) -> str:
    """The message; without a limit of its own, a silent server would be waited for much longer."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{port}.* not answer") as caught:
        action()
    assert time.monotonic() - began < TIMEOUT + GRACE
    assert "secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("address", "package"), [(POSTGRES, "psycopg"), (MILVUS, "pymilvus")])
def test_a_server_that_is_down_is_tried_again_and_told(address: str, package: str, closed_port: int) -> None:
    pytest.importorskip(package)
    message = unavailable(lambda: open_store(address.format(closed_port, 60)), closed_port)  # attempts run out first
    assert "(5 attempts" in message


@pytest.mark.parametrize(("address", "package"), [(POSTGRES, "psycopg"), (MILVUS, "pymilvus")])
def test_a_server_that_says_nothing_is_given_up_in_time(address: str, package: str, silent_port: int) -> None:
    pytest.importorskip(package)
    unavailable(lambda: open_store(address.format(silent_port, TIMEOUT)), silent_port)


def check_a_lost_line(line: Proxy, address: str) -> None:
    store = open_store(address.format(line.port, TIMEOUT), 2, create=True)
    store.add(["a", "b"], np.eye(2), [{}, {}])
    expected = store.search(np.eye(2), 1)
    line.cut()
    assert store.search(np.eye(2), 1) == expected  # tried again
    line.silence()
    unavailable(lambda: store.search(np.eye(2), 1), line.port)
    line.close()
    unavailable(lambda: store.add(["c"], np.ones((1, 2)), [{}]), line.port)
    store.close()


def test_postgres_is_asked_again_over_a_new_line_and_given_up_when_it_falls_silent(postgres_line: Proxy) -> None:
    check_a_lost_line(postgres_line, POSTGRES)


@pytest.mark.slow
def test_milvus_is_asked_again_over_a_new_line_and_given_up_when_it_falls_silent(milvus_line: Proxy) -> None:
    check_a_lost_line(milvus_line, MILVUS)


def test_a_slow_statement_is_given_up(postgres: str) -> None:
    store = open_store(f"{postgres}&table=t_slow&timeout={TIMEOUT}", 2, create=True)
    store.add(["a"], np.eye(2)[:1], [{}])
    pool = store._pool  # type: ignore[attr-defined]
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not answer"):
        pool.run(lambda connection: connection.execute("SELECT pg_sleep(30)"))
    assert time.monotonic() - began < TIMEOUT + GRACE
    assert len(store) == 1
    store.close()


@pytest.mark.parametrize(
    "name", ["", "a b", 't"; DROP TABLE other; --', "t;", "a.b.c", "1t", "ü", "x" * 49, "pg_catalog.pg_class; --", "t'"]
)
def test_names_that_are_no_names_never_reach_a_server(closed_port: int, name: str) -> None:
    with pytest.raises(StoreError, match="a table is named"):
        open_store(f"postgresql://127.0.0.1:{closed_port}/x", 2, table=name)
    if name not in ("x" * 49,):
        with pytest.raises(StoreError, match="a collection is named"):
            open_store(f"milvus+http://127.0.0.1:{closed_port}", 2, collection=name)


def test_a_table_may_have_any_word_for_a_name_and_stand_in_a_schema(postgres: str) -> None:
    store = open_store(f"{postgres}&table=public.select", 2, create=True)
    store.add(["a"], np.eye(2)[:1], [{}])
    store.flush()
    assert open_store(f"{postgres}&table=select").ids() == ["a"]
    store.close()


def test_values_that_look_like_sql_are_values(postgres: str) -> None:
    store = open_store(f"{postgres}&table=victim", 2, create=True)
    evil = "x'; DROP TABLE victim; --"
    store.add([evil, "b"], np.eye(2), [{"a": evil}, {"a": "b"}])
    for operator in ("=", "!=", "<", "~"):
        where = Where((Clause("a", operator, evil, quoted=True),))
        found = store.search(np.ones((1, 2)), 2, where)[0]
        assert {hit.id for hit in found} == {
            id_ for id_, text in ((evil, evil), ("b", "b")) if where.matches({"a": text})
        }
    assert store.delete([evil]) == 1
    assert len(store) == 1
    store.close()


def test_somebody_elses_table_is_not_touched(postgres: str) -> None:
    store = open_store(f"{postgres}&table=ours", 2, create=True)
    store._pool.run(lambda connection: connection.execute("CREATE TABLE theirs (id int)"))  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="not one of Quintet's"):
        open_store(f"{postgres}&table=theirs", 2, create=True)
    store.close()


def test_what_a_server_refuses_is_told_at_once(postgres: str) -> None:
    with pytest.raises(StoreError, match=r"schema .*nowhere.* not exist"):
        open_store(f"{postgres}&table=nowhere.t", 2, create=True)


def test_the_graph_of_postgres_can_serve_the_search(postgres: str) -> None:
    """With the order by id as well; a statement that no index can serve would be slow for ever."""
    store = open_store(f"{postgres}&table=graph&index=hnsw", 4, create=True)
    store.add([str(n) for n in range(200)], np.random.default_rng(0).normal(size=(200, 4)), [{}] * 200)
    store.flush()

    def plan(connection: object) -> str:
        with connection.transaction():  # type: ignore[attr-defined]
            connection.execute("SET LOCAL enable_seqscan = off")  # type: ignore[attr-defined]
            say = "EXPLAIN SELECT id FROM graph ORDER BY embedding <#> '[1,2,3,4]', id LIMIT 5"
            return "\n".join(row for (row,) in connection.execute(say).fetchall())  # type: ignore[attr-defined]

    assert "Index Scan using graph_hnsw" in store._pool.run(plan)  # type: ignore[attr-defined]
    store.close()


def test_pgvector_indexes_at_most_2000_dimensions(postgres: str) -> None:
    with pytest.raises(StoreError, match="at most 2000"):
        open_store(f"{postgres}&table=wide&index=hnsw", 2001, create=True)
    store = open_store(f"{postgres}&table=wide", 2001, create=True)
    store.add(["a"], np.ones((1, 2001)), [{}])
    assert store.search(np.ones((1, 2001)), 1)[0][0].score == 2001
    store.close()
