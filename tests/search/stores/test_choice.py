from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintet.search import SearchError, StoreError, StoreUnavailable
from quintet.search import indexing as build_module
from quintet.search.index_folder import Manifest
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.stores import file_address
from quintet.search.stores.choice import PASSWORD_VARIABLE, choose_store, faiss_kind, store_address
from quintet.search.stores.store import Address

QUERY = "a red dog runs"


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


def test_what_auto_means() -> None:
    assert choose_store("auto", 100_000, "me") == "exact"
    assert choose_store("auto", 10**6, "me") == "faiss"
    assert choose_store("faiss?kind=flat", 3, "me") == "faiss?kind=flat"
    with pytest.raises(SearchError, match="no store"):
        choose_store("milvus", 3, "me")
    for store in ("faiss?kind=best", "faiss?knd=hnsw", "exact?kind=hnsw"):
        with pytest.raises(StoreError, match="has no"):
            choose_store(store, 3, "me")
    assert [faiss_kind(store, 10**6) for store in ("exact", "faiss", "faiss?kind=hnsw")] == ["flat", "ivf", "hnsw"]


def test_a_store_in_a_file_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_store("milvus:all.db?collection=c", 3, "me").startswith(f"milvus:{tmp_path}/all.db?collection=c_")
    chosen = choose_store("postgresql://me@host/db?table=t&sslmode=require", 3, "me")
    assert chosen.startswith("postgresql://me@host/db?table=t_")
    assert chosen.endswith("&sslmode=require")


ENGINES = ["local:folder", "milvus:all.db", "milvus+http://host:1?collection=c", "postgresql://h/db"]


@pytest.mark.parametrize("store", ENGINES)
def test_images_and_texts_are_kept_apart_in_every_store(store: str) -> None:
    assert store_address(store, "image") != store_address(store, "text")


@pytest.mark.parametrize("store", ENGINES)
def test_every_index_has_names_of_its_own_in_an_engine(store: str) -> None:
    assert choose_store(store, 3, "one") != choose_store(store, 3, "other")
    assert choose_store(store, 3, "one") == choose_store(store, 9, "one")


@pytest.mark.parametrize(
    "store", ["postgresql://me:secret@h/db", "postgresql://h/db?password=secret", "milvus+https://me:secret@h"]
)
def test_a_password_is_not_taken_into_an_index(store: str) -> None:
    with pytest.raises(SearchError, match=PASSWORD_VARIABLE) as caught:
        choose_store(store, 3, "me")
    assert "secret" not in str(caught.value)


def test_a_password_comes_from_the_environment_and_goes_to_servers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "p@ss:w/rd")
    for store in ("postgresql://me@h/db", "postgresql://me:@h/db", "milvus+https://me@h"):
        address = store_address(choose_store(store, 3, "me"), "image")
        assert "//me:p%40ss%3Aw%2Frd@h" in address
        assert "p%40" not in str(Address.parse(address))
    for store in ("postgresql://h/db", "milvus+http://h", "milvus:a:b@c.db", "local:x@y"):
        address = store_address(choose_store(store, 3, "me"), "image")
        assert "rd@" not in address


def find(index: Path) -> list[tuple[str, float]]:
    with Searcher.open(index, device="cpu") as searcher:
        (hits,) = searcher.search_text([QUERY], k=99)
        return [(hit.item.id, hit.score) for hit in hits]


def test_two_indexes_in_one_engine_do_not_harm_each_other(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path
) -> None:
    address = file_address("local", tmp_path / "engine")
    build_index(vse, [pictures], tmp_path / "one", store=address, device="cpu")
    before = find(tmp_path / "one")
    make_images(tmp_path / "others", count=4, seed=7)
    build_index(vse, [tmp_path / "others"], tmp_path / "two", store=address, device="cpu")
    assert find(tmp_path / "one") == before
    assert len(find(tmp_path / "two")) == 4
    (tmp_path / "one").rename(tmp_path / "moved")  # its names move with it
    (pictures / "0.png").unlink()
    store = Manifest.read(tmp_path / "moved").store
    build_index(vse, [pictures], tmp_path / "moved", store=address, device="cpu")
    assert Manifest.read(tmp_path / "moved").store == store
    assert len(find(tmp_path / "moved")) == 5
    build_index(vse, [tmp_path / "others"], tmp_path / "one", store=address, device="cpu")
    assert len(find(tmp_path / "moved")) == 5


def test_other_runs_do_not_overwrite_the_vectors_that_serve(
    vse: Path, make_run: Any, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another dimension too: an engine's table has one."""
    address = file_address("local", tmp_path / "engine")
    build_index(vse, [pictures], tmp_path / "index", store=address, device="cpu")
    before = find(tmp_path / "index")
    other = make_run("vse++", seed=9, word_dim=6, embed_dim=12)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "put", stop)
        with pytest.raises(KeyboardInterrupt):
            build_index(other, [pictures], tmp_path / "index", store=address, device="cpu", overwrite=True)
    assert find(tmp_path / "index") == before
    build_index(other, [pictures], tmp_path / "index", store=address, device="cpu", overwrite=True)
    assert find(tmp_path / "index") != before


@pytest.mark.parametrize(
    ("store", "error"),
    [
        ("faiss?kind=best", StoreError),
        ("nosuch:place", StoreError),
        ("postgresql://127.0.0.1:1/db?timeout=0.2", StoreUnavailable),
    ],
)
def test_a_store_that_cannot_be_is_told_before_anything_is_encoded(
    vse: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, error: type[Exception]
) -> None:
    pytest.importorskip("psycopg" if store.startswith("postgresql") else "faiss")
    monkeypatch.setattr(build_module, "ImageEncoder", lambda *_, **__: pytest.fail("began to encode"))
    with pytest.raises(error):
        build_index(vse, [pictures], tmp_path / "index", store=store, device="cpu")
    assert not list((tmp_path / "index").glob(".*"))
