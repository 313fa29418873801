"""Dual-Path in two stages on a tiny corpus: the classifier goes on, runs resume exactly, two processes equal one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
import yaml

from quintet.data.batches import ImageBatch
from quintet.data.feature_store import FeatureStore
from quintet.files import read_jsonl
from quintet.runs.checkpoint import load_tensors
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe
from quintet.training.stages import resume_run, train_recipe


@pytest.fixture
def recipe(tiny_recipe: dict[str, Any]) -> dict[str, Any]:
    """Eq. 9 in two stages; 12 classes, so that two processes have six each."""
    tiny_recipe["data"]["tokenizer"] = {"min_count": 1, "special_tokens": False, "unknown": "drop"}
    small = {"embed_dim": 8, "word_dim": 6, "length": 8, "text_layout": "small", "text_width": 4}
    tiny_recipe["matcher"] = {"name": "dual-path", **small}
    stage = {
        "reduction": "mean",
        "batches": {"size": 5},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
        "epochs": 2,
        "log_every": 1,
        "checkpoint_every": 2,
        "clip": 1.0,
    }
    instance, ranking = {"dropout": 0.5}, {"margin": 1.0}
    tiny_recipe["stages"] = [
        {"name": "instance", "loss": {"instance": instance}, **stage},
        {"name": "ranking", "init": "previous", "loss": {"instance": instance, "ranking": ranking}, **stage},
    ]
    return tiny_recipe


class StopAt(Silent):
    """Pulls the plug at the given log line, and keeps what was noted."""

    def __init__(self, line: int = -1) -> None:
        self.left = line
        self.notes: list[str] = []

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError

    def note(self, text: str) -> None:
        self.notes.append(text)


def rows(run: Path, stage: str) -> list[dict[str, Any]]:
    found = read_jsonl(run / "stages" / stage / "log.jsonl")
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]


def classifier(run: Path, stage: str) -> torch.Tensor:
    return load_tensors(run / "stages" / stage / "objective.safetensors")[0]["parts.instance.classifier.weight"]


def test_the_classifier_goes_on_where_the_first_stage_left_it(recipe: dict[str, Any], tmp_path: Path) -> None:
    """A second stage that hardly moves ends with the first one's classifier, one from scratch does not."""
    recipe["stages"][1]["optimizer"] = {"name": "sgd", "lr": 1e-12}
    for name, init in (("on", "previous"), ("anew", "scratch")):
        train_recipe(parse_recipe(recipe, [f"stages.ranking.init={init}"]), tmp_path / name, device="cpu")
    first = classifier(tmp_path / "on", "instance")
    assert first.shape == (12, 8)
    torch.testing.assert_close(classifier(tmp_path / "on", "ranking"), first)
    assert not torch.allclose(classifier(tmp_path / "anew", "ranking"), first, atol=1e-3)
    logged = rows(tmp_path / "on", "ranking")[0]
    names = ("instance.image", "instance.text", "instance.image_error", "instance.text_error", "ranking.image")
    assert all(name in logged for name in names)


def test_a_run_can_start_from_the_stage_of_another(recipe: dict[str, Any], tmp_path: Path) -> None:
    """As the rows of Table II share their first stage."""
    train_recipe(parse_recipe(recipe), tmp_path / "whole", device="cpu")
    for number, start in enumerate(("whole/stages/instance", "whole")):
        second = {**recipe["stages"][1], "init": str(tmp_path / start), "optimizer": {"name": "sgd", "lr": 1e-12}}
        train_recipe(parse_recipe({**recipe, "stages": [second]}), tmp_path / str(number), device="cpu")
        expected = classifier(tmp_path / "whole", ("instance", "ranking")[number])
        torch.testing.assert_close(classifier(tmp_path / str(number), "ranking"), expected)


def test_a_classifier_of_another_size_is_begun_anew_and_told(recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe["stages"][0]["loss"]["instance"] = {"categories": 4}
    display = StopAt()
    train_recipe(parse_recipe(recipe), tmp_path / "run", device="cpu", display=display)
    assert any("'instance' of stage 'ranking'" in note for note in display.notes)
    assert classifier(tmp_path / "run", "instance").shape == (4, 8)
    assert classifier(tmp_path / "run", "ranking").shape == (12, 8)


def test_pseudo_categories_go_on_with_their_classifier(recipe: dict[str, Any], tmp_path: Path) -> None:
    """Found anew with the weights of stage II they would have other numbers, which the classifier has not learned."""
    for stage in recipe["stages"]:
        stage["loss"]["instance"] = {"categories": 4}
    train_recipe(parse_recipe(recipe), tmp_path / "run", device="cpu")
    first, second = (
        load_tensors(tmp_path / "run" / "stages" / stage / "objective.safetensors")[0]["parts.instance.class_of_group"]
        for stage in ("instance", "ranking")
    )
    assert set(first.tolist()) <= {0, 1, 2, 3}
    assert torch.equal(first, second)


def test_losses_without_weights_leave_no_file(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert not list((tmp_path / "run").rglob("objective.safetensors"))


@pytest.mark.parametrize("negatives", ["random", "hardest"])
def test_a_stopped_run_resumes_bit_for_bit(recipe: dict[str, Any], tmp_path: Path, negatives: str) -> None:
    """Positions, dropout, random negatives and the pool are all functions of the place in the run."""
    recipe["stages"][1]["loss"]["ranking"] |= {"negatives": negatives, "pool": 4}
    made = parse_recipe(recipe)
    train_recipe(made, tmp_path / "whole", device="cpu")
    with pytest.raises(InterruptedError):
        train_recipe(made, tmp_path / "stopped", device="cpu", display=StopAt(9))
    resume_run(tmp_path / "stopped", device="cpu")
    for stage in ("instance", "ranking"):
        assert rows(tmp_path / "whole", stage) == rows(tmp_path / "stopped", stage)
    for name, tensor in load_tensors(tmp_path / "whole" / "weights.safetensors")[0].items():
        assert torch.equal(tensor, load_tensors(tmp_path / "stopped" / "weights.safetensors")[0][name]), name


def train_in_float64(rank: int, count: int, port: int, recipe: dict[str, Any], folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}
    torch.set_default_dtype(torch.float64)
    read = FeatureStore.batch

    def doubled(store: FeatureStore, ids: Sequence[str]) -> ImageBatch:
        batch = read(store, ids)
        assert batch.fragments is not None
        return replace(batch, fragments=batch.fragments.double())

    FeatureStore.batch = doubled  # type: ignore[method-assign]  # in this process, which ends with the run
    train_recipe(parse_recipe(recipe), folder, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"sampled": 3, "bias": True}])
def test_two_processes_differ_from_one_by_rounding_alone(
    recipe: dict[str, Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    """In float64 even ten steps leave next to nothing; in float32 the BatchNorms make much of a rounding error."""
    for stage in recipe["stages"]:
        stage["epochs"] = 1
        stage["loss"]["instance"] |= options
    for count in (1, 2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = (count, port, recipe, str(tmp_path / str(count)))
        mp.start_processes(train_in_float64, args=arguments, nprocs=count, start_method="spawn")
    for stage in ("instance", "ranking"):
        one, two = (rows(tmp_path / str(count), stage) for count in (1, 2))
        assert len(one) == 6, "five steps and a validation"
        for got, wanted in zip(two, one, strict=True):
            assert got | {"kind": 0} == pytest.approx(wanted | {"kind": 0}, rel=1e-9, abs=1e-9)
    for name in ("weights.safetensors", "stages/ranking/objective.safetensors"):
        one, two = (load_tensors(tmp_path / str(count) / name)[0] for count in (1, 2))
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_two_processes_equal_one(recipe: dict[str, Any], tmp_path: Path) -> None:
    """Positions, dropout, negatives, clipping over a classifier that is shared out: the same numbers all along.

    A few steps of larger batches: the BatchNorms of a deep text CNN double a rounding error every few steps.
    """
    for stage in recipe["stages"]:
        stage |= {"batches": {"size": 9}, "epochs": 1, "checkpoint_every": 1}
        stage["optimizer"]["lr"] = 0.02
    train_recipe(parse_recipe(recipe), tmp_path / "one", device="cpu")
    path, run = tmp_path / "recipe.yaml", tmp_path / "two"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "quintet", "train", str(path), "-o", str(run), "--device", "cpu"]
    done = subprocess.run(command, check=False, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    for stage in ("instance", "ranking"):
        torch.testing.assert_close(classifier(run, stage), classifier(tmp_path / "one", stage), rtol=1e-3, atol=1e-4)
        pairs = zip(rows(run, stage), rows(tmp_path / "one", stage), strict=True)
        for got, wanted in ((got, wanted) for got, wanted in pairs if got["kind"] == "train"):
            assert got | {"kind": 0} == pytest.approx(wanted | {"kind": 0}, rel=1e-3, abs=1e-3)
