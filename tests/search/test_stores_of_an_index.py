from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from quintet.search.index_folder import Manifest
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.stores import file_address

QUERY = "a red dog runs"


def found(index: Path, k: int = 99) -> list[tuple[str, float]]:
    with Searcher.open(index, device="cpu") as searcher:
        (hits,) = searcher.search_text([QUERY], k=k)
        return [(hit.item.id, pytest.approx(hit.score, abs=1e-5)) for hit in hits]


@pytest.mark.parametrize("store", ["faiss?kind=flat", "faiss?kind=hnsw", "outside"])
def test_every_store_gives_the_same_answers(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path, store: str
) -> None:
    if store.startswith("faiss"):
        pytest.importorskip("faiss")
    address = file_address("local", tmp_path / "engine") if store == "outside" else store
    build_index(vse, [pictures], tmp_path / "one", device="cpu")
    build_index(vse, [pictures], tmp_path / "two", store=address, device="cpu")
    assert found(tmp_path / "two") == found(tmp_path / "one")
    (pictures / "0.png").unlink()
    make_images(pictures / "more", count=3, seed=1)
    for index, where in (("one", "auto"), ("two", address)):
        build_index(vse, [pictures], tmp_path / index, store=where, device="cpu")
    assert found(tmp_path / "two") == found(tmp_path / "one")
    assert len(found(tmp_path / "two")) == 8


def stored(index: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (index / "vectors").iterdir()}


def test_a_small_change_appends_and_a_large_one_copies(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path
) -> None:
    index, row = tmp_path / "index", 8 * 4
    build_index(vse, [pictures], index, device="cpu")
    assert stored(index) == {"image-1-run0-embedding.bin": 6 * row}
    (pictures / "0.png").unlink()
    make_images(pictures / "more", count=1, seed=1)
    build_index(vse, [pictures], index, device="cpu")
    assert stored(index) == {"image-1-run0-embedding.bin": 7 * row}
    for number in range(1, 5):
        (pictures / f"{number}.png").unlink()
    build_index(vse, [pictures], index, device="cpu")  # most are gone
    assert stored(index) == {"image-2-run0-embedding.bin": 2 * row}
    assert len(found(index)) == 2


def test_a_vector_is_on_disk_once(vse: Path, scan: Path, pictures: Path, tmp_path: Path) -> None:
    """Embeddings in float32, fragments and their boxes; nothing anywhere else has the size of a vector."""
    texts = tmp_path / "texts.txt"
    texts.write_text("a red dog\na house\n")
    index = tmp_path / "index"
    build_index(vse, [pictures], index, texts=texts, rerank_with=[scan], precision="bfloat16", device="cpu")
    sizes = stored(index)
    regions = 6  # of the small tower
    assert {name: size for name, size in sizes.items() if name.startswith("image")} == {
        "image-1-run0-embedding.bin": 6 * 8 * 4,
        "image-1-run1-fragments.bin": 6 * regions * 8 * 2,
        "image-1-run1-boxes.bin": 6 * regions * 4 * 4,
        "image-1-run1-lengths.bin": 6 * 4,
    }
    assert sizes["text-1-run0-embedding.bin"] == 2 * 8 * 4
    assert sorted(path.name for path in index.iterdir()) == [
        "index.json", "items.sqlite", "runs", "towers", "vectors",
    ]  # fmt: skip
    with sqlite3.connect(index / "items.sqlite") as connection:
        types = connection.execute("SELECT DISTINCT typeof(metadata), typeof(row) FROM items").fetchall()
        assert types == [("text", "integer")]


def test_an_engine_that_knows_more_than_the_index_still_gives_k(
    vse: Path, pictures: Path, make_images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that died after it had filled a shared engine: what the old generation does not know is passed over."""
    address = file_address("local", tmp_path / "engine")
    build_index(vse, [pictures], tmp_path / "index", store=address, device="cpu")
    before = found(tmp_path / "index", k=4)
    make_images(pictures / "more", count=30, seed=1)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "put", stop)
        with pytest.raises(KeyboardInterrupt):
            build_index(vse, [pictures], tmp_path / "index", store=address, device="cpu")
    assert found(tmp_path / "index", k=4) == before
    shutil.rmtree(pictures / "more")
    assert build_index(vse, [pictures], tmp_path / "index", store=address, device="cpu").dropped == 0
    assert found(tmp_path / "index", k=4) == before
