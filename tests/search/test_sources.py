"""Corpora as sources of an index: with features, without, with features only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.data.corpus import Corpus, Image, Text
from quintet.features.extract import extract_features
from quintet.runs.run import load
from quintet.search import SearchError
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.stores import parse_where


@pytest.fixture
def corpus(pictures: Path, tmp_path: Path) -> Corpus:
    """Six images, three of them outside the corpus' own folder."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    images, texts = [], []
    for number in range(6):
        place = pictures / f"{number}.png"
        if number < 3:
            place = place.rename(folder / place.name)
        path = place.name if number < 3 else str(place)
        images.append(Image(f"i{number}", f"g{number}", path, {"stars": number, "objects": [1]}))
        texts.append(Text(f"t{number}", f"g{number}", f"a red thing number {number}"))
    splits = {"train": [f"g{number}" for number in range(4)], "test": ["g4", "g5"]}
    Corpus("small", images, texts, splits, root=folder).save(folder)
    return Corpus.open(folder)


def test_a_corpus_brings_its_fields_and_its_texts(pixel_vse: Path, corpus: Corpus, tmp_path: Path) -> None:
    report = build_index(pixel_vse, [corpus.root], tmp_path / "index", texts=corpus.root, device="cpu")
    assert report.added == 12
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        (hits,) = searcher.search_text(["a red thing"], where=parse_where("stars>=4"))
        assert {hit.item.metadata["image"] for hit in hits} == {"i4", "i5"}
        assert all(searcher.image_path(hit.item.id).is_file() for hit in searcher.search_text(["a red thing"])[0])
        (hits,) = searcher.search_text(["a red thing"], kind="text", where=parse_where("group=g2"))
        assert hits[0].item.metadata["caption"] == "t2"


def test_a_split_can_be_indexed_alone(pixel_vse: Path, corpus: Corpus, tmp_path: Path) -> None:
    options: dict[str, Any] = {"texts": corpus.root, "split": "test", "device": "cpu"}
    assert build_index(pixel_vse, [corpus.root], tmp_path / "index", **options).added == 4


def test_features_of_a_corpus_are_read_and_not_made_again(
    vse: Path, tower: dict[str, Any], corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the index holds is what the matcher makes of the stored features; the tower is not run."""
    extract_features(
        corpus, "small-cnn", name="small", weights=tower["weights"], grid=(2, 3), dtype="float32", device="cpu"
    )
    from quintet.backbones.extractor import FeatureExtractor

    monkeypatch.setattr(FeatureExtractor, "batch", lambda *_: pytest.fail("the tower was run"))
    build_index(vse, [corpus.root], tmp_path / "index", device="cpu")
    run = load(vse)
    expected = torch.cat(
        [run.matcher.encode_images(batch).embedding for batch in run.image_batches(corpus, corpus.images)]
    )
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        entries = list(searcher._opened.items.all("image"))
        rows = [int(str(entry.item.metadata["image"])[1:]) for entry in entries]
        stored = searcher._opened.codes["image"].codes(0, [entry.row for entry in entries]).embedding
        assert entries[0].item.metadata["width"] == 50
    torch.testing.assert_close(stored, expected[rows])


def test_a_corpus_of_features_only_is_searched_without_images(
    tiny_corpus: Path, tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    from quintet.training.recipe_models import Recipe
    from quintet.training.stages import train_recipe

    train_recipe(Recipe.model_validate(tiny_recipe), tmp_path / "run", device="cpu")
    report = build_index(tmp_path / "run", [tiny_corpus], tmp_path / "index", texts=tiny_corpus, device="cpu")
    assert report.unreadable == []
    assert report.added == 24 + 48
    again = build_index(tmp_path / "run", [tiny_corpus], tmp_path / "index", texts=tiny_corpus, device="cpu")
    assert (again.added, again.kept, again.encoded) == (0, 72, 0)
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        (hits,) = searcher.search_text(["a red thing"], k=3)
        assert len(hits) == 3
        assert searcher.similar(hits[0].item.id, kind="text", k=2)
        assert not searcher.describe()["can_search_by_image"]
        with pytest.raises(SearchError, match=r"cannot .*new images"):
            searcher.search_image([])


def test_a_run_of_unknown_features_cannot_look_at_new_images(
    tiny_recipe: dict[str, Any], pictures: Path, tmp_path: Path
) -> None:
    from quintet.training.recipe_models import Recipe
    from quintet.training.stages import train_recipe

    train_recipe(Recipe.model_validate(tiny_recipe), tmp_path / "run", device="cpu")
    with pytest.raises(SearchError, match=r"cannot .*new images"):
        build_index(tmp_path / "run", [pictures], tmp_path / "index", device="cpu")
