"""A whole index on real servers: built, brought up to date, filtered, and left whole by a build that died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintet.search.index_folder import Manifest
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.stores import parse_where

QUERY = "a red dog runs"


def found(index: Path, where: str | None = None) -> list[tuple[str, float]]:
    with Searcher.open(index, device="cpu") as searcher:
        (hits,) = searcher.search_text([QUERY], k=9, where=None if where is None else parse_where(where))
        return [(hit.item.id, pytest.approx(hit.score, abs=1e-5)) for hit in hits]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgres-exact", "milvus-lite", "milvus-server"])
def test_an_index_on_a_server_answers_as_one_of_its_own(
    vse: Path,
    pictures: Path,
    make_images: Any,
    new_address: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    address = new_address(engine)
    texts = tmp_path / "texts.txt"
    texts.write_text("a red dog\na blue house\n")

    def build(index: str, store: str) -> None:
        build_index(vse, [pictures], tmp_path / index, texts=texts, store=store, device="cpu")

    build("own", "exact")
    build("server", address)
    assert len(found(tmp_path / "own")) == 6
    assert found(tmp_path / "server") == found(tmp_path / "own")
    assert found(tmp_path / "server", 'path~"3*"') == found(tmp_path / "own", 'path~"3*"')
    with Searcher.open(tmp_path / "server", device="cpu") as searcher:
        (hits,) = searcher.search_text(["a blue house"], kind="text", k=1)
        assert hits[0].item.text == "a blue house"

    make_images(pictures / "more", count=2, seed=1)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "put", stop)
        with pytest.raises(KeyboardInterrupt):
            build("server", address)
    assert found(tmp_path / "server") == found(tmp_path / "own"), "what the dead build added is passed over"

    (pictures / "0.png").unlink()
    build("own", "exact")
    build("server", address)
    assert len(found(tmp_path / "own")) == 7
    assert found(tmp_path / "server") == found(tmp_path / "own")
