"""Stages that train on candidate lists from elsewhere: same bits as with the miner itself, resumed, shared, refused."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import quintet
from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.errors import CorpusError, RecipeError
from quintet.files import write_jsonl
from quintet.runs.checkpoint import load_tensors
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe, recipe_yaml
from quintet.training.recipe_models import Recipe
from quintet.training.stages import resume_run, train_recipe


class Told(Silent):
    """Keeps the notes, and pulls the plug at a log line."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.notes: list[str] = []
        self.left = stop_at

    def note(self, message: str) -> None:
        self.notes.append(message)

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise InterruptedError


def taught(recipe: dict[str, Any], source: Path, **negatives: Any) -> Recipe:
    """One stage of AOQ's second round."""
    content = copy.deepcopy(recipe)
    content["stages"][0] |= {
        "name": "offline",
        "loss": {"quintuplet": {"variant": "adaptive"}},
        "negatives": {"from": str(source), "top_texts": 10, "top_images": 5, "distribution": "normal"} | negatives,
        "log_every": 1,
        "checkpoint_every": 3,
    }
    return parse_recipe(content)


@pytest.fixture
def teacher(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "teacher", device="cpu")
    return tmp_path / "teacher"


def lists_of(teacher: Path, folder: Path, **options: Any) -> Path:
    quintet.mine(teacher, out=folder, **{"top_texts": 14, "top_images": 9, "device": "cpu"} | options)
    return folder


def table_of(lists: Path, corpus: Path, file: Path) -> Path:
    """The same lists as ids."""
    split, found = Corpus.open(corpus).split("train"), NegativeLists.open(lists)
    images, texts = [image.id for image in split.images], [text.id for text in split.texts]
    rows = [
        {"image": images[i], "text": texts[t], "direction": "i2t"} for i, row in enumerate(found.texts) for t in row
    ]
    rows += [
        {"image": images[i], "text": texts[t], "direction": "t2i"} for t, row in enumerate(found.images) for i in row
    ]
    write_jsonl(file, rows)
    return file


def assert_same_weights(one: Path, other: Path, exactly: bool = True) -> None:
    first, second = (load_tensors(run / "weights.safetensors")[0] for run in (one, other))
    for name, values in first.items():
        assert torch.equal(values, second[name]) if exactly else torch.allclose(values, second[name], atol=1e-5), name


def test_lists_train_what_their_miner_trains(
    teacher: Path, tiny_recipe: dict[str, Any], tiny_corpus: Path, tmp_path: Path
) -> None:
    train_recipe(taught(tiny_recipe, teacher), tmp_path / "mined", device="cpu")
    lists = lists_of(teacher, tmp_path / "lists")
    for name, source in (("lists", lists), ("table", table_of(lists, tiny_corpus, tmp_path / "lists.jsonl"))):
        told = Told()
        train_recipe(taught(tiny_recipe, source), tmp_path / "runs" / name, device="cpu", display=told)
        assert told.notes == []
        assert_same_weights(tmp_path / "mined", tmp_path / "runs" / name)
        copied = NegativeLists.open(tmp_path / "runs" / name / "stages" / "offline" / "negatives")
        assert (copied.texts.shape, copied.images.shape) == ((12, 10), (24, 5))
        assert copied.manifest["imported"]["from"] == str(source)


@pytest.mark.parametrize("line", [2, 6])
def test_a_stopped_run_goes_on_with_its_copy(
    line: int, teacher: Path, tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    lists = lists_of(teacher, tmp_path / "lists")
    recipe = taught(tiny_recipe, lists)
    train_recipe(recipe, tmp_path / "whole", device="cpu")
    with pytest.raises(InterruptedError):
        train_recipe(recipe, tmp_path / "stopped", device="cpu", display=Told(line))
    shutil.rmtree(lists)
    resume_run(tmp_path / "stopped", device="cpu")
    assert_same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_lists_are_named_on_the_command_line(teacher: Path, tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from quintet.cli.main import app

    lists = lists_of(teacher, tmp_path / "lists")
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe_yaml(taught(tiny_recipe, teacher)), encoding="utf-8")
    setting = f"stages.offline.negatives.from={lists}"
    done = CliRunner().invoke(app, ["train", str(file), setting, "-o", str(tmp_path / "run"), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    manifest = NegativeLists.open(tmp_path / "run" / "stages" / "offline" / "negatives").manifest
    assert manifest["imported"]["from"] == str(lists)
    wrong = CliRunner().invoke(app, ["train", str(file), f"{setting}s", "-o", str(tmp_path / "no"), "--device", "cpu"])
    assert wrong.exit_code == 1
    assert "candidate lists" in str(wrong.exception)


def test_what_does_not_fit_is_told_before_anything_is_made(
    teacher: Path, tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    dev = lists_of(teacher, tmp_path / "dev", split="dev")
    with pytest.raises(CorpusError, match="split 'dev'"):
        train_recipe(taught(tiny_recipe, dev), tmp_path / "run", device="cpu")
    short = lists_of(teacher, tmp_path / "short", top_texts=4)
    with pytest.raises(CorpusError, match="4 candidates"):
        train_recipe(taught(tiny_recipe, short), tmp_path / "run", device="cpu")
    limited = taught(tiny_recipe, lists_of(teacher, tmp_path / "lists"))
    limited = parse_recipe(limited.model_dump(mode="json", by_alias=True), ["data.limit=6"])
    with pytest.raises(CorpusError, match="6 and 12"):
        train_recipe(limited, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_settings_of_mining_must_be_those_of_the_lists(
    teacher: Path, tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    plain = lists_of(teacher, tmp_path / "plain")
    with pytest.raises(RecipeError, match="exclude_duplicates"):
        train_recipe(taught(tiny_recipe, plain, exclude_duplicates=True), tmp_path / "run", device="cpu")
    with pytest.raises(RecipeError, match="false_negative_margin"):
        train_recipe(taught(tiny_recipe, plain, false_negative_margin=0.0), tmp_path / "run", device="cpu")
    fitting = lists_of(teacher, tmp_path / "fitting", exclude_duplicates=True)
    train_recipe(taught(tiny_recipe, fitting, exclude_duplicates=True), tmp_path / "run", device="cpu")


def work(rank: int, folder: Path, recipe: Recipe) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    train_recipe(recipe, folder / "together", device="cpu")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_on_lists_what_one_does(teacher: Path, tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["matcher"]["dropout"] = 0.0
    recipe = taught(tiny_recipe, lists_of(teacher, tmp_path / "lists"))
    train_recipe(recipe, tmp_path / "alone", device="cpu")
    mp.spawn(work, args=(tmp_path, recipe), nprocs=2, join=True)
    assert_same_weights(tmp_path / "alone", tmp_path / "together", exactly=False)
