"""Language-based person search: a corpus like CUHK-PEDES is imported, trained on and measured by identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from quintet.cli.main import app
from quintet.data.corpus import Corpus
from quintet.data.formats import import_corpus
from quintet.evaluation.metrics import retrieval_metrics
from quintet.training.recipe import load_recipe, parse_recipe
from quintet.training.stages import train_recipe

COLOURS = {
    "red": (200, 30, 30),
    "green": (30, 160, 30),
    "blue": (30, 30, 200),
    "black": (10, 10, 10),
    "white": (240,) * 3,
}
CLOTHES = [(coat, legs) for coat in COLOURS for legs in COLOURS if coat != legs]


def make_people(folder: Path) -> Path:
    """20 people of two or three tall images with two captions each: a coat and trousers of one colour each."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    (folder / "imgs" / "cam").mkdir(parents=True)
    for person, (coat, legs) in enumerate(CLOTHES):
        split = "train" if person < 12 else "val" if person < 16 else "test"
        for number in range(2 + person % 2):
            pixels = np.zeros((48, 16, 3), dtype=np.uint8) + np.uint8(rng.integers(90, 140))
            pixels[4:24, 3:13], pixels[24:46, 4:12] = COLOURS[coat], COLOURS[legs]
            name = f"cam/{person}_{number}.png"
            Image.fromarray(pixels).save(folder / "imgs" / name)
            captions = [f"A person in a {coat} coat and {legs} trousers.", f"{legs} trousers with a {coat} coat"]
            rows.append({"split": split, "file_path": name, "captions": captions, "id": person})
    (folder / "reid_raw.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return import_corpus("cuhk", make_people(tmp_path / "source"), tmp_path / "people")


def recipe(corpus: Corpus) -> dict[str, Any]:
    """The shipped recipe, made small."""
    made = load_recipe("dual-path-cuhk").model_dump(mode="json", by_alias=True)
    made["data"] |= {"corpus": str(corpus.root), "workers": 0}
    made["matcher"] |= {"tower": "small-cnn", "embed_dim": 16, "word_dim": 8, "text_layout": "small", "text_width": 2}
    for stage in made["stages"]:
        stage |= {"freeze": [], "epochs": 2, "batches": {"size": 8, "per": "images"}}
    return made


def test_people_are_classes_and_any_of_their_images_counts(corpus: Corpus, tmp_path: Path) -> None:
    assert len(corpus.split("train").groups) == 12
    assert len(corpus.split("train").images) == 30
    summary = train_recipe(parse_recipe(recipe(corpus)), tmp_path / "run", device="cpu")
    assert set(summary) == {"instance", "ranking"}
    arguments = ["evaluate", str(tmp_path / "run"), "--protocol", "identity", "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["protocol"] == "identity"
    assert found["counts"]["groups"] == 4
    assert found["counts"]["images"] == 10
    assert found["counts"]["t2i_queries"] == 20
    assert all(0 <= found["metrics"][f"t2i_r{cut}"] <= 100 for cut in (1, 5, 10))


def test_an_identity_has_several_right_images(corpus: Corpus) -> None:
    """A text query is answered when the best-ranked image of the person is, whichever of them it is."""
    split = corpus.split("test")
    scores = np.zeros((len(split.images), len(split.texts)))
    for text, group in enumerate(split.text_groups):
        pictures = np.flatnonzero(split.image_groups == group)
        scores[pictures[-1], text] = 1.0  # only the last one is found; the others tie with everybody else
    metrics = retrieval_metrics(scores, split.image_groups, split.text_groups)
    assert metrics["t2i_r1"] == 100
    assert metrics["t2i_medr"] == 1
