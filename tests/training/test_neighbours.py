"""Training HREM through the ordinary trainer, with size augmentation and neighbour batches, and resuming it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

from quintet.cli.evaluate import evaluate_command
from quintet.errors import QuintetError, RecipeError, RunError
from quintet.files import read_jsonl
from quintet.runs.checkpoint import load_tensors
from quintet.training.clusters import cluster_count
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe
from quintet.training.recipe_models import BatchRecipe
from quintet.training.stages import resume_run, train_recipe

NEIGHBOURS = {"kind": "neighbours", "size": 6, "per_cluster": 3, "from_epoch": 1, "refresh": 2, "clusters": 3}


def hrem_recipe(recipe: dict[str, Any], mechanism: str = "fusion", **stage: Any) -> dict[str, Any]:
    recipe["matcher"] = {"name": "hrem", "embed_dim": 8, "word_dim": 6, "heads": 2}
    recipe["data"]["augment"] = {"regions": 0.3, "words": 0.3}
    loss = {"mechanism": mechanism, "matching": "cosine", "top": 4, "warmup_epochs": 1, "farthest": None}
    recipe["stages"][0] |= {"loss": {"relation": loss}, "batches": NEIGHBOURS, "epochs": 4} | stage
    return recipe


class StopAt(Silent):
    def __init__(self, line: int) -> None:
        self.left = line

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


@pytest.mark.parametrize("mechanism", ["fusion", "standalone"])
def test_hrem_trains_and_its_graph_stays_behind(tiny_recipe: dict[str, Any], tmp_path: Path, mechanism: str) -> None:
    summary = train_recipe(parse_recipe(hrem_recipe(tiny_recipe, mechanism)), tmp_path / "run", device="cpu")
    assert summary["online"]["steps"] == 16
    rows = [row for row in read_jsonl(tmp_path / "run" / "stages" / "online" / "log.jsonl") if row["kind"] == "train"]
    assert "relation.enhanced" not in rows[0], "the first epoch is the warm-up"
    wanted = {"initial", "enhanced", "enhanced_images", "enhanced_texts", "regularisation", "without_candidates"}
    assert {f"relation.{name}" for name in wanted} <= rows[-1].keys()
    names = load_tensors(tmp_path / "run" / "weights.safetensors")[0]
    assert not any("graph" in name or "interaction" in name for name in names)


def test_the_two_mechanisms_make_an_ensemble(tiny_recipe: dict[str, Any], tiny_corpus: Path, tmp_path: Path) -> None:
    for mechanism in ("fusion", "standalone"):
        recipe = parse_recipe(hrem_recipe(tiny_recipe, mechanism, epochs=2))
        train_recipe(recipe, tmp_path / mechanism, device="cpu")
    app = typer.Typer()
    app.command()(evaluate_command)
    result = CliRunner().invoke(app, [str(tmp_path / "fusion"), str(tmp_path / "standalone"), "--json"])
    assert result.exit_code == 0, result.output
    assert 0 < json.loads(result.stdout)["metrics"]["rsum"] <= 600


@pytest.mark.parametrize("line", [3, 7, 9])
def test_a_stopped_run_resumes_bit_for_bit(tiny_recipe: dict[str, Any], tmp_path: Path, line: int) -> None:
    """Stopped before the clusters, in the middle of an epoch with new ones and of one with old ones."""
    recipe = parse_recipe(hrem_recipe(tiny_recipe, log_every=1, checkpoint_every=2))
    train_recipe(recipe, tmp_path / "whole", device="cpu")
    with pytest.raises(InterruptedError):
        train_recipe(recipe, tmp_path / "stopped", device="cpu", display=StopAt(line))
    with pytest.raises(InterruptedError):
        resume_run(tmp_path / "stopped", device="cpu", display=StopAt(4))
    resume_run(tmp_path / "stopped", device="cpu")
    whole, stopped = (load_tensors(tmp_path / run / "weights.safetensors")[0] for run in ("whole", "stopped"))
    for name in whole:
        assert torch.equal(whole[name], stopped[name]), name


def test_refreshing_removes_no_file_of_someone_else(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = parse_recipe(hrem_recipe(tiny_recipe, log_every=1, checkpoint_every=2))
    with pytest.raises(InterruptedError):
        train_recipe(recipe, tmp_path / "run", device="cpu", display=StopAt(7))
    folder = tmp_path / "run" / "stages" / "online"
    (folder / "clusters-mine.npy").write_bytes(b"mine")
    resume_run(tmp_path / "run", device="cpu")
    assert sorted(path.name for path in folder.glob("clusters-*")) == ["clusters-3.npy", "clusters-mine.npy"]


def test_clusters_are_refreshed_on_schedule_and_kept(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    train_recipe(parse_recipe(hrem_recipe(tiny_recipe)), tmp_path / "run", device="cpu")
    kept = sorted((tmp_path / "run" / "stages" / "online").glob("clusters-*.npy"))
    assert [path.name for path in kept] == ["clusters-3.npy"], "made for epochs 1 and 3, the last one kept"
    labels = np.load(kept[0])
    assert labels.shape == (12,)
    assert labels.max() < 3


def test_a_lost_cluster_file_is_told(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = parse_recipe(hrem_recipe(tiny_recipe, log_every=1, checkpoint_every=1))
    with pytest.raises(InterruptedError):
        train_recipe(recipe, tmp_path / "run", device="cpu", display=StopAt(7))
    (tmp_path / "run" / "stages" / "online" / "clusters-1.npy").unlink()
    with pytest.raises(RunError, match="cannot be resumed exactly"):
        resume_run(tmp_path / "run", device="cpu")


def test_settings_that_make_no_sense_are_refused(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecipeError, match=r"6 .*made of 4"):
        parse_recipe(hrem_recipe(tiny_recipe, batches=NEIGHBOURS | {"per_cluster": 4}))
    recipe = hrem_recipe(tiny_recipe, loss={"triplet": {}})
    recipe["matcher"] = {"name": "scan", "embed_dim": 8, "word_dim": 6}
    with pytest.raises(RecipeError, match="one vector an image"):
        train_recipe(parse_recipe(recipe), tmp_path / "run", device="cpu")
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(QuintetError, match="scikit-learn"):
        train_recipe(parse_recipe(hrem_recipe(tiny_recipe)), tmp_path / "other", device="cpu")
    assert not (tmp_path / "other").exists(), "told before anything is written"
    assert cluster_count(BatchRecipe(kind="neighbours", size=8, per_cluster=4), 100) == 6
    assert cluster_count(BatchRecipe(kind="neighbours", size=8, per_cluster=4), 10) == 1
    assert cluster_count(BatchRecipe(kind="neighbours", size=8, per_cluster=4, clusters=50), 10) == 10


@pytest.mark.slow
def test_two_processes_equal_one(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    """Warm-up, relations and neighbour batches; momentum and decay must leave unused parameters alone in both."""
    recipe = hrem_recipe(tiny_recipe, optimizer={"name": "sgd", "lr": 0.05, "weight_decay": 0.01}, epochs=3)
    recipe["matcher"] |= {"dropout": 0.0}
    recipe["stages"][0]["loss"]["relation"] |= {"dropout": 0.0}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    train_recipe(parse_recipe(recipe), tmp_path / "one", device="cpu")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    command += ["-m", "quintet", "train", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "two"), "--device", "cpu"]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    one, two = (load_tensors(tmp_path / run / "weights.safetensors")[0] for run in ("one", "two"))
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    labels = [np.load(tmp_path / run / "stages" / "online" / "clusters-1.npy") for run in ("one", "two")]
    assert np.array_equal(*labels)
