"""The runs that come with Quintet open by name and know what they look at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import quintet
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Text
from quintet.files import read_json
from quintet.runs.run import load
from quintet.runs.run_folder import locate, shipped_runs
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher

pytest.importorskip("onnxruntime")


def test_each_has_a_card_and_is_small() -> None:
    runs = shipped_runs()
    assert "quintet-small" in runs
    for folder in runs.values():
        assert (folder / "MODEL_CARD.md").is_file()
        assert (folder / "weights.safetensors").stat().st_size < 15_000_000
        assert read_json(folder / "run.json")["corpus"] is None


def test_a_name_stands_for_a_run_unless_a_folder_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("quintet-small")[0] == shipped_runs()["quintet-small"]
    (tmp_path / "quintet-small").mkdir()
    assert locate("quintet-small")[0] == Path("quintet-small")


def test_it_scores_texts_and_features() -> None:
    run = load("quintet-small")
    assert run.image_input["tower"]["name"] == "efficientnet-lite0"
    matcher = quintet.load("quintet-small").matcher
    images = matcher.encode_images(ImageBatch(fragments=torch.rand(2, 36, 1280)))
    texts = matcher.encode_texts(
        next(run.text_batches([Text("t", "g", text) for text in ("a dog runs", "two", "snow")]))
    )
    assert matcher.score(images, texts).shape == (2, 3)


def test_it_searches_images_from_the_start(tmp_path: Path) -> None:
    """Flat colours are no photographs, but a sky is bluer than a meadow."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name, colour in {"sky": (110, 170, 240), "meadow": (70, 140, 40)}.items():
        Image.new("RGB", (64, 64), colour).save(pictures / f"{name}.png")
    build_index("quintet-small", [pictures], tmp_path / "index", device="cpu")
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        (hits,) = searcher.search_text(["green grass"], k=2)
    assert hits[0].item.path == "meadow.png"
