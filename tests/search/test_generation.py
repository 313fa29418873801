from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from quintet.search import generation as module
from quintet.search.build import build_index
from quintet.search.manifest import Manifest
from quintet.search.searcher import Searcher
from quintet.search.stores import file_address

QUERY = "a red dog runs"


def found(index: Path, k: int = 99) -> list[tuple[str, float]]:
    with Searcher.open(index, device="cpu") as searcher:
        (hits,) = searcher.search_text([QUERY], k=k)
        return [(hit.item.id, pytest.approx(hit.score, abs=1e-5)) for hit in hits]


@pytest.mark.parametrize("store", ["faiss?kind=flat", "outside"])
def test_every_store_gives_the_same_answers(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path, store: str
) -> None:
    if store.startswith("faiss"):
        pytest.importorskip("faiss")
    address = file_address("exact", tmp_path / "engine") if store == "outside" else store
    build_index(vse, [pictures], tmp_path / "one", device="cpu")
    build_index(vse, [pictures], tmp_path / "two", store=address, device="cpu")
    assert found(tmp_path / "two") == found(tmp_path / "one")
    (pictures / "0.png").unlink()
    make_images(pictures / "more", count=3, seed=1)
    for index, where in (("one", "auto"), ("two", address)):
        build_index(vse, [pictures], tmp_path / index, store=where, device="cpu")
    assert found(tmp_path / "two") == found(tmp_path / "one")
    assert len(found(tmp_path / "two")) == 8


def test_a_small_change_is_made_in_a_copy_of_the_store(
    vse: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(vse, [pictures], tmp_path / "index", device="cpu")
    (pictures / "0.png").unlink()
    added: list[int] = []
    original = module._vectors

    def watched(entries: Any, *more: Any) -> Any:
        added.append(len(entries))
        return original(entries, *more)

    monkeypatch.setattr(module, "_vectors", watched)
    build_index(vse, [pictures], tmp_path / "index", device="cpu")
    assert added == [0]
    assert len(found(tmp_path / "index")) == 5
    for number in range(1, 4):
        (pictures / f"{number}.png").unlink()
    build_index(vse, [pictures], tmp_path / "index", device="cpu")
    assert added[1:] == [2]  # more is gone than stays: a new store


def test_an_engine_that_knows_more_than_the_index_still_gives_k(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that died after it had filled a shared engine: what the old generation does not know is passed over."""
    address = file_address("exact", tmp_path / "engine")
    build_index(vse, [pictures], tmp_path / "index", store=address, device="cpu")
    before = found(tmp_path / "index", k=4)
    make_images(pictures / "more", count=30, seed=1)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            build_index(vse, [pictures], tmp_path / "index", store=address, device="cpu")
    assert found(tmp_path / "index", k=4) == before
    shutil.rmtree(pictures / "more")
    assert build_index(vse, [pictures], tmp_path / "index", store=address, device="cpu").dropped == 0
    assert found(tmp_path / "index", k=4) == before
