from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from quintet.search import StoreError
from quintet.search.stores import file_address, open_store
from quintet.search.stores.store import Address


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("loca:folder", "there is no store 'loca'; did you mean 'local'"),
        ("postgressql://host/db", "did you mean 'postgresql'"),
        ("milvus+htp://host", r"did you mean 'milvus\+http'"),
        ("redis://host", "choose one of: local, milvus"),
        ("folder", "is no address of a store; write for example local:FOLDER"),
        ("", "is no address"),
        (":folder", "is no address"),
        ("local:", "names no folder"),
        ("local:folder?knd=flat", "did you mean 'kind'"),
        ("local:folder?kind=hnws", "did you mean 'hnsw'"),
        ("milvus:folder/file", "is named FILE.db"),
        ("milvus:folder/file.db?index=ivf", "has no index 'ivf'; choose one of: flat, hnsw"),
        ("postgresql://host/db?index=ivf", "has no index 'ivf'; choose one of: exact, hnsw"),
        ("postgresql://host/db?timeout=soon", "timeout is a number of seconds above 0"),
        ("milvus+http://host?timeout=-1", "timeout is a number of seconds above 0"),
    ],
)
def test_an_address_that_cannot_be_is_told_with_what_can(address: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        open_store(address, 3, create=True)


def test_options_by_name_come_before_those_of_the_address(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    store = open_store(file_address("local", tmp_path) + "?kind=flat", 2, create=True, kind="hnsw")
    store.add(["a"], np.eye(2)[:1], [{}])
    store.close()
    assert list(tmp_path.glob("vectors/*.faiss"))
    with pytest.raises(StoreError, match=r"'tabel'.*'table'"):
        open_store("postgresql://host/db", tabel="t")


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "what? 100%25 #1 ü"
    open_store(file_address("local", folder), 2, create=True).close()
    assert (folder / "items.sqlite").is_file()


def test_passwords_are_not_shown() -> None:
    shown = str(Address.parse("postgresql://me:se:cr@et@host:5432/db?password=hidden&table=t"))
    assert "cr@et" not in shown
    assert "hidden" not in shown
    assert "host:5432/db" in shown


@pytest.mark.parametrize(
    ("address", "package", "extra"),
    [
        ("local:{}/a?kind=hnsw", "faiss", "index"),
        ("milvus:{}/a.db", "pymilvus", "milvus"),
        ("postgresql://{}", "psycopg", "pgvector"),
    ],
)
def test_a_missing_package_is_told_with_its_extra(
    address: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreError, match=rf"pip install 'quintet-retrieval\[{extra}\]'"):
        open_store(address.format(tmp_path), 2, create=True)
