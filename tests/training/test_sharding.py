"""Layers shared out over two real processes (FSDP, gloo): the run is that of processes that each have all of them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from tests.models.dual_encoders import save_dual_encoder

import quintet
from quintet import distributed
from quintet.errors import RecipeError
from quintet.runs.checkpoint import load_tensors
from quintet.training import loop
from quintet.training.recipe import parse_recipe
from quintet.training.stages import resume_run, train_recipe
from quintet.training.without_effect import settings_without_effect

STAGE: dict[str, Any] = {
    "name": "one",
    "loss": {"contrastive": {"temperature": "matcher"}},
    "batches": {"size": 6, "per": "images"},
    "optimizer": {"name": "adamw", "lr": 0.01, "layer_decay": 0.8},
    "clip": 0.5,
    "epochs": 2,
    "log_every": 1,
    "checkpoint_every": 1,
}
# name -> what differs from STAGE
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "average": {"ema": 0.5, "accumulate": 2, "freeze": ["matcher.model.text_model.encoder.layers.0.*"]},
    "chunk": {"batches": {"size": 6, "per": "images", "chunk": 2}},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, of whose validation split one process has a batch more than the other, and a model."""
    folder = tmp_path_factory.mktemp("files")
    quintet.import_corpus("scenes", "-", folder / "scenes", train=24, dev=7, test=4, size=32)
    save_dual_encoder(folder / "model")
    return folder


def recipe(files: Path, **stage: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "data": {"tokenizer": {"kind": "pretrained"}, "corpus": str(files / "scenes")},
        "matcher": {"name": "clip", "source": f"hf:{files / 'model'}"},
        "stages": [STAGE | stage],
    }


def work(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    loop.VALIDATION_BATCH = 3
    device, files = torch.device("cpu"), Path(folder)
    with distributed.process_group(device):
        for name, stage in SETTINGS.items():
            for shard in (False, True):
                content = recipe(files, **stage, shard=shard)
                train_recipe(parse_recipe(content), files / f"{name}-{shard}", device=device)
        save, saved = loop.StageTrainer._save, 0

        def stopping(trainer: loop.StageTrainer) -> None:
            nonlocal saved
            save(trainer)
            saved += 1
            if saved == 3:  # in the middle of the second epoch
                raise InterruptedError

        cut = parse_recipe(recipe(files, **SETTINGS["average"], shard=True))
        loop.StageTrainer._save = stopping  # type: ignore[method-assign]
        with pytest.raises(InterruptedError):
            train_recipe(cut, files / "stopped", device=device)
        loop.StageTrainer._save = save  # type: ignore[method-assign]
        resume_run(files / "stopped", device=device)


@pytest.fixture(scope="module")
def runs(files: Path) -> Path:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    mp.start_processes(work, args=(port, str(files)), nprocs=2, start_method="spawn")
    return files


def log(run: Path) -> list[dict[str, Any]]:
    lines = (run / "stages/one/log.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_sharded_layers_train_as_whole_ones_do(runs: Path, name: str) -> None:
    whole, sharded = log(runs / f"{name}-False"), log(runs / f"{name}-True")
    assert len(whole) == len(sharded) > 4
    for one, other in zip(whole, sharded, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert other[key] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), key
    wanted, _ = load_tensors(runs / f"{name}-False" / "weights.safetensors")
    found, _ = load_tensors(runs / f"{name}-True" / "weights.safetensors")
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        if key.endswith("k_proj.bias"):  # no score depends on it; Adam makes steps of what rounding leaves
            continue
        torch.testing.assert_close(found[key], tensor, atol=1e-5, rtol=1e-4)
    assert quintet.load(runs / f"{name}-True", device="cpu").encode_texts("a red circle").embedding is not None


@pytest.mark.slow
def test_a_stopped_sharded_run_resumes_bit_for_bit(runs: Path) -> None:
    wanted, _ = load_tensors(runs / "average-True" / "weights.safetensors")
    found, _ = load_tensors(runs / "stopped" / "weights.safetensors")
    assert all(found[key].equal(tensor) for key, tensor in wanted.items())
    assert log(runs / "stopped") == log(runs / "average-True")


def test_what_does_not_go_with_sharding_is_refused(files: Path, tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    for other in ({"lora": {"rank": 2}}, {"compile": True}):
        with pytest.raises(RecipeError, match=f"shard and {next(iter(other))}"):
            parse_recipe(recipe(files, shard=True, **other))
    tiny_recipe["stages"][0]["shard"] = True
    with pytest.raises(RecipeError, match="for transformers"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")


def test_one_process_is_told_that_nothing_is_sharded(files: Path) -> None:
    stage = parse_recipe(recipe(files, shard=True)).stages[0]
    assert any("one process" in message for message in settings_without_effect(stage, 10))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_all_processes_make_equally_many_batches(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: processes)
    for total in range(processes, 40):
        size = distributed.even_batch_size(total, 8)
        shares = [range(total)[distributed.share(total, process)] for process in range(processes)]
        assert len({len(range(0, len(rows), size)) for rows in shares}) == 1
