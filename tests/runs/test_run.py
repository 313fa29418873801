from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
from quintet.data.corpus import Corpus
from quintet.errors import RunError
from quintet.files import read_json, write_json
from quintet.models import create_model
from quintet.runs.checkpoint import write_run
from quintet.runs.run import load
from quintet.runs.run_folder import locate
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe

MODEL = {"name": "vse++", "arguments": {"image_dim": 8, "vocabulary_size": 10, "embed_dim": 4, "word_dim": 4}}


@pytest.fixture
def foreign_run(tmp_path: Path) -> Path:
    matcher = create_model(MODEL["name"], **MODEL["arguments"])
    image_input = {"kind": "features", "name": "toy", "tower": None}
    write_run(
        tmp_path / "run",
        name="foreign",
        model=MODEL,
        state_dict=matcher.state_dict(),
        tokenizer=None,
        image_input=image_input,
    )
    return tmp_path / "run"


def test_a_trained_run_opens_and_feeds_its_matcher(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    run = load(tmp_path / "run")
    assert run.default_corpus is not None
    corpus = Corpus.open(run.default_corpus)
    split = corpus.split("test")
    images = next(run.image_batches(corpus, split.images, 4))
    texts = next(run.text_batches(split.texts, 3))
    scores = run.matcher.score(run.matcher.encode_images(images), run.matcher.encode_texts(texts))
    assert scores.shape == (4, 3)
    assert not run.matcher.training
    assert quintet.load(tmp_path / "run", stage="online").matcher.embed_dim == 8


def test_paths_of_stages_and_weights_files_name_a_run(foreign_run: Path) -> None:
    assert locate(foreign_run, "online") == (foreign_run, "online")
    assert locate(foreign_run / "stages" / "online", "online") == (foreign_run, "online")
    assert load(foreign_run / "weights.safetensors").folder == foreign_run
    with pytest.raises(RunError, match="name one of them"):
        locate(foreign_run / "stages" / "online", "offline")
    other = foreign_run / "model_best.pth.tar"
    other.write_bytes(b"x")
    with pytest.raises(RunError, match="quintet convert"):
        load(other)


def test_a_run_may_lie_in_a_folder_called_stages(foreign_run: Path, tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    moved = foreign_run.rename(tmp_path / "stages" / "first")
    assert load(moved).folder == moved


def test_runs_made_from_elsewhere(foreign_run: Path) -> None:
    matcher = quintet.load(foreign_run).matcher
    texts = quintet.TextBatch(tokens=torch.tensor([[1, 5, 2]]), lengths=torch.tensor([3]))
    assert matcher.encode_texts(texts).embedding.shape == (1, 4)
    with pytest.raises(RunError, match="--vocab"):
        load(foreign_run).text_batches([])
    with pytest.raises(RunError, match="already"):
        write_run(foreign_run, name="x", model=MODEL, state_dict={}, tokenizer=None, image_input={"kind": "pixels"})


def test_features_of_another_tower_are_refused(foreign_run: Path, tiny_corpus: Path) -> None:
    (foreign_run / "checksums.json").unlink()
    write_json(foreign_run / "images.json", {"kind": "features", "name": "toy", "tower": {"name": "other"}})
    with pytest.raises(RunError, match="another tower"):
        load(foreign_run).image_source(Corpus.open(tiny_corpus))
    write_json(foreign_run / "images.json", {"kind": "features", "name": "none", "tower": None})
    with pytest.raises(RunError, match="quintet features"):
        load(foreign_run).image_source(Corpus.open(tiny_corpus))


def test_half_finished_newer_and_damaged_runs(foreign_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run"):
        load(tmp_path / "nowhere")
    head = read_json(foreign_run / "run.json")
    write_json(foreign_run / "run.json", head | {"status": "training"})
    with pytest.raises(RunError, match="--resume"):
        load(foreign_run)
    with pytest.raises(RunError, match="no such stage"):
        load(foreign_run, stage="online")
    write_json(foreign_run / "run.json", head | {"version": 99, "quintet": "9.0"})
    with pytest.raises(RunError, match="update Quintet"):
        load(foreign_run)
    write_json(foreign_run / "run.json", head | {"format": "other"})
    with pytest.raises(RunError, match="not a Quintet run"):
        load(foreign_run)
    write_json(foreign_run / "run.json", head)
    (foreign_run / "checksums.json").unlink()
    write_json(foreign_run / "model.json", MODEL | {"name": "vse+++"})
    with pytest.raises(RunError, match=r"did you mean 'vse\+\+'"):
        load(foreign_run)
    write_json(foreign_run / "model.json", {"name": "vse++", "arguments": MODEL["arguments"] | {"embed_dim": 5}})
    with pytest.raises(RunError, match="do not fit"):
        load(foreign_run)
    write_json(foreign_run / "model.json", MODEL)
    (foreign_run / "weights.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match="damaged"):
        load(foreign_run)
