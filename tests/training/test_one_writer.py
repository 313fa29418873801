"""One writer of a run at a time; a signal stops it with a checkpoint; what a kill left is cleaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.training.test_stages import StopAt, assert_same_run, two_stages

from quintet.errors import QuintetError, RunError
from quintet.files import read_json, write_json
from quintet.locks import folder_lock
from quintet.runs.checkpoint import load_tensors
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe
from quintet.training.stages import resume_run, train_recipe
from quintet.training.stopping import Stopped


class At(Silent):
    """Does something at the given log line."""

    def __init__(self, line: int, action: Callable[[], None]) -> None:
        self.left, self.action = line, action

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            self.action()


def test_a_second_training_into_the_folder_is_refused(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    """The first one goes on, and ends as if nobody else had come."""
    tiny_recipe["stages"][0] |= {"log_every": 1}
    recipe, other = parse_recipe(tiny_recipe), parse_recipe(tiny_recipe, ["seed=7"])
    told: list[str] = []

    def others() -> None:
        for attempt in (lambda: train_recipe(other, run, device="cpu"), lambda: resume_run(run, device="cpu")):
            with pytest.raises(RunError) as refused:
                attempt()
            told.append(str(refused.value))

    def in_a_thread() -> None:
        thread = threading.Thread(target=others)
        thread.start()
        thread.join(60)

    run = tmp_path / "run"
    train_recipe(recipe, run, device="cpu", display=At(3, in_a_thread))
    assert len(told) == 2
    assert all(f"process {os.getpid()}" in message and "training tiny" in message for message in told)
    train_recipe(recipe, tmp_path / "alone", device="cpu")
    assert_same_run(run, tmp_path / "alone", ("online",))
    assert not (run / "lock").exists()


def test_the_lock_of_another_process_is_told_before_anything_is_read(
    tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    tiny_recipe["data"]["corpus"] = str(tmp_path / "no such corpus")
    with folder_lock(tmp_path / "run", "converting best.pth"), pytest.raises(QuintetError, match="converting best"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_left_overs_of_kills_are_cleaned(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"log_every": 1}
    run = tmp_path / "run"
    with pytest.raises(InterruptedError):
        train_recipe(parse_recipe(tiny_recipe), run, device="cpu", display=StopAt(3))
    left = [run / "stages/online/.checkpoint.safetensors.abcdefgh.partial", run / ".run.json.12345678.partial"]
    mine = [run / "stages/online/.notes.abcdefgh.partial", run / "stages/online/checkpoint.old"]
    for path in (*left, *mine):
        path.write_text("half")
    dead = {"format": "quintet-lock", "doing": "training", "process": 1, "host": "here", "since": "yesterday"}
    write_json(run / "lock", dead)
    resume_run(run, device="cpu")
    assert not any(path.exists() for path in (*left, run / "lock"))
    assert all(path.exists() for path in mine), "what Quintet did not write stays"


def test_a_start_that_was_killed_is_taken_over(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    head = {"format": "quintet-run", "version": 1, "name": "tiny", "status": "starting"}
    write_json(run / "run.json", head)
    write_json(run / "model.json", {"half": "written"})
    with pytest.raises(RunError, match="train again"):
        resume_run(run, device="cpu")
    write_json(run / "run.json", head)
    write_json(run / "model.json", {"half": "written"})
    train_recipe(parse_recipe(tiny_recipe), run, device="cpu")
    assert read_json(run / "run.json")["status"] == "complete"


def test_a_persons_files_are_not_replaced(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    for name in ("model.json", "recipe.yaml", "run.json", "weights.safetensors", "stages/online/log.jsonl", "lock"):
        run = tmp_path / name.replace("/", " ")
        (run / name).parent.mkdir(parents=True)
        (run / name).write_text("mine")
        with pytest.raises(QuintetError, match=name):
            train_recipe(parse_recipe(tiny_recipe), run, device="cpu")
        assert [path.read_text() for path in run.rglob("*") if path.is_file()] == ["mine"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("line", [2, 4, 6])
def test_a_signal_ends_with_a_checkpoint_of_that_step(
    tiny_recipe: dict[str, Any], tmp_path: Path, number: int, line: int
) -> None:
    """In the middle of an epoch (2 and 6), and at its end (4)."""
    tiny_recipe["stages"][0] |= {"log_every": 1, "checkpoint_every": 1000, "epochs": 2}
    recipe = parse_recipe(two_stages(tiny_recipe))
    run, before = tmp_path / "run", signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        train_recipe(recipe, run, device="cpu", display=At(line, lambda: os.kill(os.getpid(), number)))
    assert stopped.value.status == 128 + number
    assert signal.getsignal(number) is before
    _, metadata = load_tensors(run / "stages/online/checkpoint.safetensors")
    assert metadata["state"]["step"] == line
    resume_run(run, device="cpu")
    train_recipe(recipe, tmp_path / "whole", device="cpu")
    assert_same_run(run, tmp_path / "whole", ("online", "second"))


def test_a_second_signal_stops_at_once(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"log_every": 1, "checkpoint_every": 1000}

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu", display=At(2, twice))
    assert not (tmp_path / "run/stages/online/checkpoint.safetensors").exists()


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "quintet", "train", *map(str, arguments), "--device", "cpu"]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not (path.exists() and path.stat().st_size):
        time.sleep(0.02)


def test_the_command_says_how_to_go_on(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"epochs": 10_000, "checkpoint_every": 100_000}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    run = tmp_path / "run"
    process = subprocess.Popen(command(tmp_path / "tiny.yaml", "-o", run), stderr=subprocess.PIPE)
    wait_for(run / "stages/online/log.jsonl", process)
    beside = subprocess.run(command("--resume", run), capture_output=True, text=True)
    assert beside.returncode == 1
    assert f"process {process.pid}" in beside.stderr
    process.send_signal(signal.SIGTERM)
    errors = process.communicate()[1].decode()
    assert process.returncode == 143, errors
    assert f"quintet train --resume {run}" in errors
    assert "Traceback" not in errors
    assert load_tensors(run / "stages/online/checkpoint.safetensors")[1]["state"]["step"] > 0
    assert not (run / "lock").exists()


HEADS = {"name": "heads", "text": "minilm-int8", "embed_dim": 8, "hidden": 16}


@pytest.mark.slow
def test_two_processes_train_heads_and_all_are_told_of_the_lock(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    tiny_recipe["matcher"] = HEADS
    tiny_recipe["stages"][0]["loss"] = {"contrastive": {}}
    (tmp_path / "heads.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29541"]
    run = tmp_path / "run"
    started = [*torchrun, *command(tmp_path / "heads.yaml", "-o", run)[1:]]
    with folder_lock(run, "writing something else"):
        refused = subprocess.run(started, capture_output=True, text=True, timeout=300)
    assert refused.returncode != 0
    assert refused.stderr.count("writing something else") >= 1
    done = subprocess.run(started, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert read_json(run / "run.json")["status"] == "complete"
    assert not (run / "lock").exists()
