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
        assert (folder / "weights.safetensors").stat().st_size < 5_000_000
        assert read_json(folder / "run.json")["corpus"] is None


def test_a_name_stands_for_a_run_unless_a_folder_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("quintet-small")[0] == shipped_runs()["quintet-small"]
    (tmp_path / "quintet-small").mkdir()
    assert locate("quintet-small")[0] == Path("quintet-small")


def test_it_scores_texts_and_features() -> None:
    run = load("quintet-small")
    assert run.image_input["tower"]["name"] == "efficientnet-lite2+efficientnet-lite0"
    matcher = quintet.load("quintet-small").matcher
    images = matcher.encode_images(ImageBatch(fragments=torch.rand(2, 1, 2560)))
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


def test_photographs_of_packages_are_found_by_what_they_show(tmp_path: Path) -> None:
    """Queries as people write them, of things that the training captions hardly name."""
    from benchmarks.measure.public_photos import on_white, packaged_photos

    photos = packaged_photos()
    if len(photos) < 12:
        pytest.skip("scikit-image is not installed: its photographs are what is searched")
    run = load("quintet-small", device="cpu")
    images = run.encode_images([on_white(path) for path, _ in photos])
    right: dict[str, set[str]] = {}
    for path, queries in photos:
        for query in queries:
            right.setdefault(query, set()).add(path.name)
    best = run.score(images, run.encode_texts(list(right))).argmax(0).tolist()
    found = {query for query, row in zip(right, best, strict=True) if photos[row][0].name in right[query]}
    assert {"a cat", "a motorcycle", "a rocket on its launch pad"} <= found
    assert len(found) >= 0.55 * len(right), sorted(set(right) - found)


@pytest.mark.slow
def test_its_onnx_files_take_pixels_and_tokens(tmp_path: Path) -> None:
    """From a photograph and a sentence to the score of the run, by onnxruntime and tokenizers alone."""
    import json

    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    from quintet.runs.onnx_export import export_onnx

    pytest.importorskip("onnx")
    run = load("quintet-small", device="cpu")
    export_onnx(run, tmp_path)
    photo = Image.effect_mandelbrot((300, 200), (-2, -1, 1, 1), 40).convert("RGB")
    view = json.loads((tmp_path / "towers.json").read_text())["images"]["preprocess"]
    height, width = view["size"]
    pixels = np.asarray(photo.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
    pixels = ((pixels * view["scale"] - view["mean"]) / view["std"]).transpose(2, 0, 1)[None].astype(np.float32)
    tokenizer = Tokenizer.from_str(json.dumps(json.loads((tmp_path / "tokenizer.json").read_text())["tokenizer"]))
    ids = np.array([tokenizer.encode("a black and white pattern").ids])
    run_file = lambda name, given: onnxruntime.InferenceSession(str(tmp_path / name)).run(None, given)[0]  # noqa: E731
    image = run_file("images.onnx", {"pixels": pixels})
    text = run_file("texts.onnx", {"tokens": ids, "lengths": np.array([ids.shape[1]])})
    expected = run.score(run.encode_images(photo), run.encode_texts("a black and white pattern"))
    assert abs(float((image @ text.T)[0, 0]) - float(expected)) < 1e-3
