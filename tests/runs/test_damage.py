"""Every file of a run, damaged in every way: the run as it was, or an error for people. Seeded."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
from quintet.errors import QuintetError
from quintet.files import read_json, write_json
from quintet.runs.checkpoint import load_tensors
from quintet.runs.run_folder import check_run, read_checksums, verify_run
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe
from quintet.training.stages import resume_run, train_recipe

HOSTILE: list[Any] = [
    None, True, -1, 10**30, 1e308, "", "x", "\0", "\ud800", "../../etc/passwd", "/dev/zero", [], [[]], {}, {"name": 5},
    "a" * 5000, 0, 3.5, ["\u202e"],
]  # fmt: skip


class StopAtStep(Silent):
    def __init__(self, left: int) -> None:
        self.left = left

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self.left -= 1
        if not self.left:
            raise InterruptedError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path) -> Path:
    """`whole`: a finished run of two stages; `stopped`: in its second stage."""
    from tests.conftest import TINY_RECIPE

    recipe = copy.deepcopy(TINY_RECIPE)
    recipe["data"]["corpus"] = str(tiny_corpus)
    recipe["stages"][0] |= {"epochs": 1, "log_every": 1, "checkpoint_every": 2}
    recipe["stages"].append(recipe["stages"][0] | {"name": "second", "init": "previous"})
    folder = tmp_path_factory.mktemp("runs")
    train_recipe(parse_recipe(recipe), folder / "whole", device="cpu")
    with pytest.raises(InterruptedError):
        train_recipe(parse_recipe(recipe), folder / "stopped", device="cpu", display=StopAtStep(7))
    return folder


def inner_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += inner_paths(inner, (*path, key))
    return found


def with_hostile_value(path: Path, rng: random.Random) -> None:
    value = {"": read_json(path)}
    at = ("", *rng.choice(inner_paths(value[""])))
    target: Any = value
    for key in at[:-1]:
        target = target[key]
    if rng.random() < 0.25 and len(at) > 1 and isinstance(target, dict):
        del target[at[-1]]
    else:
        target[at[-1]] = rng.choice(HOSTILE)
    path.write_text(json.dumps(value[""]))


def deeply_nested(path: Path, rng: random.Random) -> None:
    path.write_text(rng.choice(['{"a":', "[", '{"name": {"a": [']) * 5000)


def huge_number(path: Path, rng: random.Random) -> None:
    path.write_text('{"format": "quintet-run", "name": ' + "9" * 5000 + "}")


def flipped(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 8))):
        at = rng.randrange(min(len(content), rng.choice((64, 2048, 10**9))))
        content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice((0, 7, len(content) // 2, len(content) - 1))])


def zeroed(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


def replaced(path: Path, rng: random.Random) -> None:
    path.unlink()
    how = rng.randrange(6)
    if how == 0:
        path.mkdir()
    elif how == 1:
        os.mkfifo(path)
    elif how == 2:
        path.symlink_to(path.name)  # a link to itself
    elif how == 3:
        path.symlink_to("/dev/zero")
    elif how == 4:
        path.symlink_to("nowhere")


JSON_ONLY = (with_hostile_value, with_hostile_value, with_hostile_value, deeply_nested, huge_number)
ANY = (flipped, flipped, cut, zeroed, replaced)


def damage(run: Path, name: str, rng: random.Random) -> None:
    is_json = name.endswith(".json")
    change: Callable[[Path, random.Random], None] = rng.choice([*ANY, *(JSON_ONLY if is_json else ())])
    change(run / name, rng)
    if is_json and rng.random() < 0.7:  # so that it reaches the readers, as in a run of an earlier version
        (run / "checksums.json").unlink(missing_ok=True)


def state_of(run: quintet.Run) -> dict[str, torch.Tensor]:
    return run.matcher.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


PARTS = ("run.json", "model.json", "images.json", "tokenizer.json", "recipe.yaml", "checksums.json")
FILES = (*PARTS, "weights.safetensors", "stages/online/selected.safetensors", "stages/online/done.json")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_a_finished_run(name: str, runs: Path, tmp_path: Path) -> None:
    rng, whole = random.Random(name), state_of(quintet.load(runs / "whole", device="cpu"))
    for number in range(14):
        run = tmp_path / str(number)
        shutil.copytree(runs / "whole", run)
        damage(run, name, rng)
        for look in (check_run, verify_run):
            with contextlib.suppress(QuintetError):
                look(run)
        try:
            opened = quintet.load(run, device="cpu")
            assert same(state_of(opened), whole), "other weights without a word"
            opened.encode_texts(["a red thing"])
            quintet.evaluate(opened, split="dev", bootstrap=0)
        except QuintetError:
            pass


SECOND = ("stages/second/checkpoint.safetensors", "stages/second/log.jsonl")
RESUMED = (*PARTS, "stages/online/selected.safetensors", "stages/online/done.json", *SECOND)


@pytest.mark.parametrize("name", RESUMED)
def test_a_damaged_file_of_a_stopped_run(name: str, runs: Path, tmp_path: Path) -> None:
    """Resuming ends with the undamaged weights, or with an error."""
    rng, whole = random.Random(name), load_tensors(runs / "whole" / "weights.safetensors")[0]
    for number in range(8):
        run = tmp_path / str(number)
        shutil.copytree(runs / "stopped", run)
        damage(run, name, rng)
        try:
            resume_run(run, device="cpu")
            if "weights.safetensors" in read_checksums(run):
                assert verify_run(run).damaged == {}
            quintet.load(run, device="cpu")
            if name.endswith((".safetensors", ".jsonl")):
                assert same(load_tensors(run / "weights.safetensors")[0], whole)
        except QuintetError:
            pass
        assert not (run / "lock").exists()


def test_hostile_checkpoints_with_a_right_checksum(runs: Path, tmp_path: Path) -> None:
    from quintet.runs.checkpoint import save_tensors

    rng = random.Random(4)
    tensors, metadata = load_tensors(runs / "stopped/stages/second/checkpoint.safetensors")
    for number in range(25):
        run = tmp_path / str(number)
        shutil.copytree(runs / "stopped", run)
        changed, told = dict(tensors), copy.deepcopy(metadata)
        if number % 2:
            key = rng.choice(sorted(told["state"]))
            told["state"][key] = rng.choice(HOSTILE)
        else:
            key = rng.choice(sorted(changed))
            changed[key] = rng.choice([torch.zeros(3), torch.zeros(2, 2, dtype=torch.int8), torch.zeros(())])
            if rng.random() < 0.5:
                del changed[key]
        save_tensors(run / "stages/second/checkpoint.safetensors", changed, told)
        with contextlib.suppress(QuintetError):
            resume_run(run, device="cpu")


@pytest.mark.parametrize("path", ["x" * 300, "a/" * 3000, "nul\0byte", b"\xff\xfe".decode("utf-8", "surrogateescape")])
def test_paths_that_no_file_has(path: str, tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    for where in (path, str(tmp_path / path)):
        for attempt in (quintet.load, check_run, verify_run, resume_run):
            with pytest.raises(QuintetError):
                attempt(where)
    with pytest.raises(QuintetError):
        quintet.train(tiny_recipe, out=tmp_path / path, device="cpu")


def test_a_run_that_is_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for attempt in (quintet.load, check_run, verify_run, resume_run):
        with pytest.raises(QuintetError):
            attempt(tmp_path / "loop")


def test_one_bit_of_any_tensor_is_noticed(runs: Path, tmp_path: Path) -> None:
    """Also in a run of an earlier version, whose weights file has a CRC alone."""
    content = (runs / "whole/weights.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    rng = random.Random(1)
    run = tmp_path / "run"
    shutil.copytree(runs / "whole", run)
    (run / "checksums.json").unlink()
    quintet.load(run, device="cpu")
    for _ in range(30):
        damaged = bytearray(content)
        damaged[rng.randrange(start, len(content))] ^= 1 << rng.randrange(8)
        (run / "weights.safetensors").write_bytes(damaged)
        with pytest.raises(QuintetError, match="damaged"):
            quintet.load(run, device="cpu")


def test_runs_of_earlier_versions_open(runs: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    run = tmp_path / "run"
    shutil.copytree(runs / "whole", run)
    (run / "checksums.json").unlink()
    weights = load_tensors(run / "weights.safetensors")[0]
    save_file(weights, run / "weights.safetensors", metadata={"quintet": "{}"})
    head = read_json(run / "run.json")
    write_json(run / "run.json", {key: head[key] for key in ("format", "name", "status", "corpus")})
    assert same(state_of(quintet.load(run, device="cpu")), weights)
