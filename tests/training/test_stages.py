"""Whole trainings on a tiny corpus: learning, stages, resuming exactly, refusing nonsense, and `quintet.train`."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import quintet
from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.errors import CorpusError, RecipeError, RunError, TrainingError
from quintet.files import read_json, read_jsonl, write_json
from quintet.losses import OBJECTIVES
from quintet.losses.step import Term
from quintet.runs.checkpoint import load_tensors
from quintet.training.logs import Silent
from quintet.training.recipe import load_recipe, parse_recipe
from quintet.training.stages import resume_run, train_recipe


class StopAt(Silent):
    """A display that pulls the plug at the given log line: everything after the last checkpoint is lost."""

    def __init__(self, line: int) -> None:
        self.left = line

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


class Shown(Silent):
    """A display that keeps the names of the terms that it is given."""

    def __init__(self) -> None:
        self.terms: set[str] = set()

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self.terms |= losses.keys()


def two_stages(recipe: dict[str, Any]) -> dict[str, Any]:
    second = copy.deepcopy(recipe["stages"][0]) | {"name": "second", "init": "previous"}
    recipe["stages"].append(second)
    return recipe


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_tensors(run / "weights.safetensors")[0]


def log_rows(run: Path, stage: str) -> list[dict[str, Any]]:
    rows = list(read_jsonl(run / "stages" / stage / "log.jsonl"))
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same_run(one: Path, other: Path, stages: tuple[str, ...]) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    for stage in stages:
        assert log_rows(one, stage) == log_rows(other, stage)


def test_training_learns_and_the_run_tells_what_it_is(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"epochs": 25, "checkpoint_every": 1000}
    summary = train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    chance = 100 * sum(min(1.0, k / 6) * 2 for k in (1, 5, 10))
    assert summary["online"]["metrics"]["rsum"] > chance + 60
    head = read_json(tmp_path / "run" / "run.json")
    assert head["status"] == "complete"
    assert head["stages"]["online"] == summary["online"]
    rows = log_rows(tmp_path / "run", "online")
    assert {row["kind"] for row in rows} == {"train", "validation"}
    assert all({"triplet.text", "triplet.image", "lr"} <= row.keys() for row in rows if row["kind"] == "train")
    best = max(row["rsum"] for row in rows if row["kind"] == "validation")
    assert summary["online"]["metrics"]["rsum"] == best, "the best validation epoch is the selected one"
    assert not list((tmp_path / "run").rglob("checkpoint*")), "a finished stage needs no checkpoint"


def test_early_epochs_can_be_kept_from_selection(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"epochs": 3, "select_after": 2, "optimizer": {"name": "sgd", "lr": 1e-12}}
    assert train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")["online"]["epoch"] == 3
    with pytest.raises(RecipeError, match="3 epochs"):
        parse_recipe(tiny_recipe, ["stages.0.select_after=3"])


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_recipe(parse_recipe(tiny_recipe, [f"seed={seed}"]), tmp_path / name, device="cpu")
    assert_same_run(tmp_path / "a", tmp_path / "b", ("online",))
    a, c = weights(tmp_path / "a"), weights(tmp_path / "c")
    assert any(not torch.equal(a[name], c[name]) for name in a)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("line", [1, 3, 5])
def test_a_stopped_run_resumes_bit_for_bit(
    tiny_recipe: dict[str, Any], tmp_path: Path, line: int, accumulate: int
) -> None:
    tiny_recipe["stages"][0] |= {"accumulate": accumulate, "log_every": 1, "checkpoint_every": 2, "epochs": 3}
    if accumulate > 1:
        tiny_recipe["stages"][0] |= {"ema": 0.5}
        tiny_recipe["stages"][0]["batches"] |= {"chunk": 2}
    recipe = parse_recipe(two_stages(tiny_recipe))
    train_recipe(recipe, tmp_path / "whole", device="cpu")
    with pytest.raises(InterruptedError):
        train_recipe(recipe, tmp_path / "stopped", device="cpu", display=StopAt(line))
    with pytest.raises(InterruptedError):
        resume_run(tmp_path / "stopped", device="cpu", display=StopAt(line + 2))
    resume_run(tmp_path / "stopped", device="cpu")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped", ("online", "second"))


@pytest.mark.slow
def test_kill_minus_nine_at_random_moments(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"epochs": 30, "checkpoint_every": 3}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "whole", device="cpu")
    run = tmp_path / "killed"
    start = [sys.executable, "-m", "quintet", "train", str(tmp_path / "recipe.yaml"), "-o", str(run), "--device", "cpu"]
    again = [sys.executable, "-m", "quintet", "train", "--resume", str(run), "--device", "cpu"]
    rng = random.Random(0)
    kills = 0
    for _ in range(200):
        begun = (run / "run.json").exists()
        process = subprocess.Popen(again if begun else start, stderr=subprocess.PIPE)
        log = run / "stages" / "online" / "log.jsonl"
        before = log.stat().st_size if log.exists() else 0
        while process.poll() is None and not (log.exists() and log.stat().st_size > before):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is None and kills < 5:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        errors = process.communicate()[1].decode()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
    assert kills >= 2
    assert_same_run(tmp_path / "whole", run, ("online",))


def with_offline_round(recipe: dict[str, Any]) -> dict[str, Any]:
    """AOQ's second round: from scratch, with negatives that the first stage mined."""
    second = copy.deepcopy(recipe["stages"][0]) | {
        "name": "offline",
        "loss": {"quintuplet": {"variant": "adaptive"}},
        "negatives": {"from": "online", "top_texts": 10, "top_images": 5},
    }
    recipe["stages"].append(second)
    return recipe


def test_a_second_round_mines_with_the_first_and_trains_on_it(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = parse_recipe(with_offline_round(tiny_recipe))
    display = Shown()
    train_recipe(recipe, tmp_path / "run", device="cpu", display=display)
    lists = NegativeLists.open(tmp_path / "run" / "stages" / "offline" / "negatives")
    assert lists.texts.shape == (12, 10)
    assert lists.manifest["matcher"]["name"] == "tiny"
    rows = [row for row in log_rows(tmp_path / "run", "offline") if row["kind"] == "train"]
    assert all("quintuplet.offline_pair" in row for row in rows)
    logged = {name for name in rows[0] if "." in name}
    assert logged - display.terms == {"quintuplet.gap_online", "quintuplet.gap_positive"}  # of weight 0
    teacher = parse_recipe(tiny_recipe, [f"stages.offline.negatives.from={tmp_path / 'run'}"])
    train_recipe(teacher, tmp_path / "taught", device="cpu")
    taught = NegativeLists.open(tmp_path / "taught" / "stages" / "offline" / "negatives")
    assert taught.manifest["matcher"]["weights"] != lists.manifest["matcher"]["weights"]


@pytest.mark.parametrize("line", [5, 9, 12])
def test_a_second_round_resumes_bit_for_bit(tiny_recipe: dict[str, Any], tmp_path: Path, line: int) -> None:
    tiny_recipe["stages"][0] |= {"log_every": 1, "checkpoint_every": 3}
    recipe = parse_recipe(with_offline_round(tiny_recipe))
    train_recipe(recipe, tmp_path / "whole", device="cpu")
    with pytest.raises(InterruptedError):
        train_recipe(recipe, tmp_path / "stopped", device="cpu", display=StopAt(line))
    resume_run(tmp_path / "stopped", device="cpu")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped", ("online", "offline"))


def test_negatives_of_a_later_stage_or_without_any_are_refused(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="not run"):
        parse_recipe(with_offline_round(copy.deepcopy(tiny_recipe)), ["stages.offline.negatives.from=offline"])
    tiny_recipe["stages"][0]["loss"] = {"quintuplet": {}}
    with pytest.raises(RecipeError, match="negatives"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")


def test_stages_start_where_they_say(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = two_stages(tiny_recipe)
    recipe["stages"][1] |= {"epochs": 1, "optimizer": {"lr": 1e-12}}
    train_recipe(parse_recipe(recipe), tmp_path / "previous", device="cpu")
    first = load_tensors(tmp_path / "previous" / "stages" / "online" / "selected.safetensors")[0]
    for name, tensor in weights(tmp_path / "previous").items():
        torch.testing.assert_close(tensor, first[name])
    recipe["stages"][1] |= {"init": str(tmp_path / "previous")}
    train_recipe(parse_recipe(recipe, ["seed=5"]), tmp_path / "other", device="cpu")
    for name, tensor in weights(tmp_path / "other").items():
        torch.testing.assert_close(tensor, first[name])
    recipe["stages"][1] |= {"init": "scratch"}
    train_recipe(parse_recipe(recipe), tmp_path / "scratch", device="cpu")
    assert any(not torch.allclose(tensor, first[name]) for name, tensor in weights(tmp_path / "scratch").items())


def test_frozen_parameters_do_not_move(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = two_stages(tiny_recipe)
    recipe["stages"][1] |= {"freeze": ["matcher.text_encoder.*"]}
    train_recipe(parse_recipe(recipe), tmp_path / "run", device="cpu")
    first = load_tensors(tmp_path / "run" / "stages" / "online" / "selected.safetensors")[0]
    last = weights(tmp_path / "run")
    for name in first:
        assert torch.equal(first[name], last[name]) == name.startswith("text_encoder."), name


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "bfloat16"},
        {"precision": "tf32"},
        {"reduction": "mean", "clip": None},
        {"batches": {"size": 5, "per": "images", "drop_last": True}},
        {"optimizer": {"name": "sgd", "lr": 0.1, "nesterov": True}, "schedule": {"kind": "cosine", "warmup_steps": 3}},
    ],
)
def test_every_setting_trains(tiny_recipe: dict[str, Any], tmp_path: Path, change: dict[str, Any]) -> None:
    tiny_recipe["stages"][0] |= change
    summary = train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert summary["online"]["epoch"] in (1, 2)


@pytest.mark.slow
def test_compiled_encoders_train(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"compile": True}
    assert train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")["online"]["steps"] > 0


def test_loading_workers_change_nothing(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "none", device="cpu")
    train_recipe(parse_recipe(tiny_recipe, ["data.workers=2"]), tmp_path / "two", device="cpu")
    assert_same_run(tmp_path / "none", tmp_path / "two", ("online",))


def test_features_in_memory_change_nothing(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    train_recipe(parse_recipe(tiny_recipe, ["data.keep=disk"]), tmp_path / "disk", device="cpu")
    train_recipe(parse_recipe(tiny_recipe, ["data.keep=device"]), tmp_path / "memory", device="cpu")
    assert_same_run(tmp_path / "disk", tmp_path / "memory", ("online",))
    with pytest.raises(RecipeError, match=r"data\.workers"):
        train_recipe(parse_recipe(tiny_recipe, ["data.keep=device", "data.workers=1"]), tmp_path / "both", device="cpu")


def test_validation_now_and_then(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"epochs": 5, "validate_every": 2}
    summary = train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    looks = [row for row in read_jsonl(tmp_path / "run/stages/online/log.jsonl") if row["kind"] == "validation"]
    assert [row["epoch"] for row in looks] == [2, 4, 5]
    assert summary["online"]["epoch"] in (2, 4, 5)


def test_nan_stops_training_before_it_reaches_a_checkpoint(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"optimizer": {"name": "sgd", "lr": 1e38}, "clip": None, "epochs": 5}
    with pytest.raises(TrainingError, match="lower learning rate"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    checkpoint = tmp_path / "run" / "stages" / "online" / "checkpoint.safetensors"
    saved = load_tensors(checkpoint)[0] if checkpoint.exists() else {}
    assert all(torch.isfinite(tensor).all() for name, tensor in saved.items() if name.startswith("module/"))


def wrong_second_stage(recipe: dict[str, Any], **change: Any) -> dict[str, Any]:
    recipe = two_stages(copy.deepcopy(recipe))
    recipe["stages"][1] |= change
    return recipe


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"select": "r_sum"}, "'rsum'"),
        ({"init": "previos"}, "'previous'"),
        ({"negatives": {"from": "onlin"}}, "'online'"),
        ({"loss": {"tripet": {}}}, "'triplet'"),
        ({"loss": {"triplet": {"margn": 0.1}}}, "'margin'"),
        ({"freeze": ["matcher.txt.*"]}, "matches no parameter"),
        ({"optimizer": {"groups": [{"match": "matcher.txt.*"}]}}, "matches no trainable parameter"),
    ],
)
def test_a_slip_in_a_later_stage_is_told_before_anything_is_made(
    tiny_recipe: dict[str, Any], tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(RecipeError, match=told):
        train_recipe(parse_recipe(wrong_second_stage(tiny_recipe, **change)), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists(), "a corrected recipe can use the folder"


def test_a_first_stage_has_no_previous_one_and_a_matcher_takes_what_it_takes(
    tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    for override, told in (("stages.online.init=previous", "scratch"), ("matcher.embed_dimm=3", "'embed_dim'")):
        with pytest.raises(RecipeError, match=told):
            train_recipe(parse_recipe(tiny_recipe, [override]), tmp_path / "run", device="cpu")
        assert not (tmp_path / "run").exists()


def test_ranks_are_selected_when_they_are_low(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"select": "t2i_meanr", "epochs": 6}
    summary = train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")["online"]
    ranks = [row["t2i_meanr"] for row in log_rows(tmp_path / "run", "online") if row["kind"] == "validation"]
    assert summary["metrics"]["t2i_meanr"] == min(ranks) < max(ranks)


def test_a_last_optimizer_step_of_fewer_batches_is_their_mean(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    """With room for more batches than there are, a mean over what came is the same step."""
    stage = {"reduction": "mean", "epochs": 1, "clip": None, "optimizer": {"name": "sgd", "lr": 0.1}}
    tiny_recipe["stages"][0] |= stage
    for accumulate in (4, 40):  # the epoch has 4 batches
        train_recipe(parse_recipe(tiny_recipe, [f"stages.online.accumulate={accumulate}"]), tmp_path / str(accumulate))
    four, forty = weights(tmp_path / "4"), weights(tmp_path / "40")
    for name in four:
        assert torch.equal(four[name], forty[name]), name


def test_a_kill_after_the_last_file_of_a_stage_leaves_no_checkpoint(
    tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    recipe = parse_recipe(two_stages(tiny_recipe))
    with pytest.raises(InterruptedError):
        train_recipe(recipe, tmp_path / "run", device="cpu", display=StopAt(5))  # in the second stage
    (tmp_path / "run" / "stages" / "online" / "checkpoint.safetensors").write_bytes(b"not yet removed")
    resume_run(tmp_path / "run", device="cpu")
    assert not list((tmp_path / "run").rglob("checkpoint*"))


def test_training_on_what_is_measured_is_refused(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="disjoint"):
        train_recipe(parse_recipe(tiny_recipe, ["data.train=test"]), tmp_path / "run", device="cpu")
    with pytest.raises(CorpusError, match="the test split"):
        train_recipe(parse_recipe(tiny_recipe, ["data.validation=test"]), tmp_path / "run", device="cpu")


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_images_without_features_are_left_out_of_training_and_told(
    tiny_recipe: dict[str, Any], make_corpus: Callable[[Path], Path], tmp_path: Path
) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    store = corpus / "features" / "toy"
    ids, rows = read_json(store / "ids.json"), np.load(store / "rows.npy")
    write_json(store / "manifest.json", read_json(store / "manifest.json") | {"checksums": {}})
    write_json(store / "ids.json", ids[:-2])  # the last two are training images
    np.save(store / "rows.npy", rows[:-2])
    display = Notes()
    tiny_recipe["data"]["corpus"] = str(corpus)
    assert (
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu", display=display)["online"]["steps"] == 8
    )
    assert display.notes == [f"2 of 12 training images have no features and are left out, first {min(ids[-2:])!r}"]
    write_json(store / "ids.json", ids[1:])  # the first one is a validation image
    np.save(store / "rows.npy", rows[1:])
    with pytest.raises(CorpusError, match="1 of"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "again", device="cpu")


def test_folders_that_hold_a_run_are_not_overwritten(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_recipe)
    train_recipe(recipe, tmp_path / "run", device="cpu")
    with pytest.raises(RunError, match="--resume"):
        train_recipe(recipe, tmp_path / "run", device="cpu")
    assert resume_run(tmp_path / "run", device="cpu").keys() == {"online"}, "resuming a finished run does nothing"


def test_runs_that_cannot_be_resumed_say_why(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run"):
        resume_run(tmp_path)
    write_json(tmp_path / "run.json", {"format": "quintet-run", "version": 1, "status": "training", "name": "x"})
    with pytest.raises(RunError, match="before its first step"):
        resume_run(tmp_path)


def test_a_corpus_that_changed_cannot_be_resumed_on(
    tiny_recipe: dict[str, Any], make_corpus: Callable[[Path], Path], tmp_path: Path
) -> None:
    tiny_recipe["data"]["corpus"] = str(make_corpus(tmp_path / "corpus"))
    tiny_recipe["stages"][0] |= {"log_every": 1}
    with pytest.raises(InterruptedError):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu", display=StopAt(3))
    head = read_json(tmp_path / "corpus" / "corpus.json")
    write_json(tmp_path / "corpus" / "corpus.json", head | {"checksums": {}})  # as the message says for a wanted change
    splits = read_json(tmp_path / "corpus" / "splits.json")
    write_json(tmp_path / "corpus" / "splits.json", splits | {"train": splits["train"][1:]})
    with pytest.raises(RunError, match="has changed"):
        resume_run(tmp_path / "run", device="cpu")
    write_json(tmp_path / "corpus" / "splits.json", splits)
    resume_run(tmp_path / "run", device="cpu")


def test_a_run_is_resumed_from_any_folder(
    tiny_recipe: dict[str, Any], make_corpus: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    recipe = parse_recipe(tiny_recipe, ["data.corpus=corpus", "stages.0.log_every=1"])
    with pytest.raises(InterruptedError):
        train_recipe(recipe, "run", device="cpu", display=StopAt(3))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume_run("../run", device="cpu")["online"]["steps"] > 0


class Explodes(nn.Module):
    """A loss whose value is finite and whose gradient is not."""

    def forward(self, step: Any) -> dict[str, Term]:
        return {"root": Term((step.scores.diagonal() * 0).abs().sqrt() + 1)}


def test_an_infinite_gradient_stops_training_before_it_reaches_a_checkpoint(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("exploding_loss")
    module.Explodes = Explodes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "exploding_loss", module)
    monkeypatch.setitem(OBJECTIVES.entries, "explodes", "exploding_loss:Explodes")
    tiny_recipe["stages"][0]["loss"] = {"explodes": {}}
    with pytest.raises(TrainingError, match="'gradient' became nan"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert not list(tmp_path.rglob("checkpoint*"))


def test_missing_corpus_and_features_are_told_before_training(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["data"]["corpus"] = None
    with pytest.raises(RecipeError, match="--corpus"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["mapping", "file", "recipe"])
def test_a_recipe_and_a_corpus_make_a_run(kind: str, tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    corpus = tiny_recipe["data"].pop("corpus")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tiny_recipe))
    given = {"mapping": tiny_recipe, "file": tmp_path / "mine.yaml", "recipe": parse_recipe(tiny_recipe)}[kind]
    where = Corpus.open(corpus) if kind == "file" else corpus
    run = quintet.train(given, where, out=tmp_path / "run", seed=3, overrides=["stages.online.epochs=1"], device="cpu")
    used = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert (used.seed, used.stages[0].epochs, used.data.corpus) == (3, 1, Path(corpus).resolve())
    assert run.folder == tmp_path / "run"
    assert run.default_corpus == Path(corpus).resolve()
    assert quintet.evaluate(run, bootstrap=0, split="dev").rsum == pytest.approx(
        read_json(tmp_path / "run" / "run.json")["stages"]["online"]["metrics"]["rsum"]
    )


def test_a_finished_run_is_resumed_to_itself(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    run = quintet.train(tiny_recipe, out=tmp_path / "run", device="cpu")
    again = quintet.train(resume=tmp_path / "run", device="cpu")
    assert again.weights_checksum == run.weights_checksum
    assert load_tensors(tmp_path / "run" / "weights.safetensors")[0].keys() == run.matcher.state_dict().keys()
    with pytest.raises(RunError, match="--resume"):
        quintet.train(tiny_recipe, out=tmp_path / "run", device="cpu")


def test_what_does_not_go_together_is_refused(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a folder"):
        quintet.train(tiny_recipe)
    with pytest.raises(RecipeError, match="a recipe"):
        quintet.train(out=tmp_path / "run")
    with pytest.raises(RecipeError, match="recipe and no seed"):
        quintet.train(tiny_recipe, resume=tmp_path / "run", seed=1)
    with pytest.raises(RecipeError, match="vse-scenes"):
        quintet.train("vse-scene", out=tmp_path / "run")
