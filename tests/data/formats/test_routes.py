"""The same data gives the same corpus, by whichever way it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.data.formats.sources import as_coco, as_parquet, as_shards

from quintet.data.corpus import Corpus
from quintet.data.formats import import_corpus


def content(corpus: Corpus) -> dict[str, Any]:
    """Everything but where the images lie, and what the source says beside."""
    return {
        "images": [(image.id, image.group, corpus.image_path(image).read_bytes()) for image in corpus.images],
        "texts": [(text.id, text.group, text.text) for text in corpus.texts],
        "splits": corpus.splits,
    }


def test_parquet_shards_and_coco_give_the_same_corpus(tmp_path: Path) -> None:
    parquet = import_corpus("parquet", as_parquet(tmp_path / "p"), tmp_path / "1")
    shards = import_corpus("webdataset", as_shards(tmp_path / "s"), tmp_path / "2")
    coco = import_corpus("coco", as_coco(tmp_path / "c"), tmp_path / "3")
    assert content(parquet) == content(shards) == content(coco)
    assert parquet.splits == {"train": ["10", "11", "12", "13"], "dev": ["14", "15"]}
    assert [text.extra for text in parquet.texts] == [text.extra for text in coco.texts]
    assert parquet.texts[1].extra == {"caption_id": 1}
    for out in "123":
        assert content(Corpus.open(tmp_path / out)) == content(coco)


def test_the_hub_gives_the_corpus_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = as_parquet(tmp_path / "p")
    hub = import_corpus("hf", str(source), tmp_path / "1")
    assert content(hub) == content(import_corpus("parquet", source, tmp_path / "2"))


def test_group_size_and_order_of_the_files_change_nothing(tmp_path: Path) -> None:
    whole = import_corpus("parquet", as_parquet(tmp_path / "a"), tmp_path / "1")
    parts = sorted(as_parquet(tmp_path / "b", group=1).iterdir(), reverse=True)
    split = import_corpus("parquet", parts, tmp_path / "2")
    assert sorted(content(whole)["images"]) == sorted(content(split)["images"])
    assert {name: set(groups) for name, groups in whole.splits.items()} == {
        name: set(groups) for name, groups in split.splits.items()
    }
