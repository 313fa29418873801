"""Two processes with half a batch each equal one process with the whole batch."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from quintet.training.checkpoint import load_tensors
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def train_with_processes(recipe: Path, run: Path, count: int) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(count),
        "--master-port",
        str(free_port()),
    ]
    command += ["-m", "quintet", "train", str(recipe), "-o", str(run), "--device", "cpu"]
    subprocess.run(command, check=True, capture_output=True, timeout=240)


@pytest.mark.parametrize("projection", ["linear", pytest.param("mlp", marks=pytest.mark.slow)])
def test_two_processes_equal_one(tiny_recipe: dict[str, Any], tmp_path: Path, projection: str) -> None:
    """Batches of 7 split unevenly; the mlp projection has a BatchNorm, whose statistics span both processes."""
    tiny_recipe["matcher"] |= {"dropout": 0.0, "projection": projection, "pooling": "max"}
    # Not Adam: the bias in front of a BatchNorm has no gradient, and Adam makes full steps of its rounding errors.
    tiny_recipe["stages"][0] |= {"batches": {"size": 7}, "epochs": 3, "optimizer": {"name": "sgd", "lr": 0.05}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    one = train(parse_recipe(tiny_recipe), tmp_path / "one", device="cpu")
    train_with_processes(tmp_path / "recipe.yaml", tmp_path / "two", 2)
    first = load_tensors(tmp_path / "one" / "weights.safetensors")[0]
    second = load_tensors(tmp_path / "two" / "weights.safetensors")[0]
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert one["online"]["steps"] == 12
