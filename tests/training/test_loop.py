"""Two processes with half a batch each equal one process with the whole batch; what is frozen stays as it was."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from quintet.backbones.resnet import ResNet
from quintet.data import loading
from quintet.data import resident as image_memory
from quintet.data.corpus import Corpus
from quintet.data.scenes.generate import make_scenes
from quintet.errors import RecipeError
from quintet.models.vse import VSE
from quintet.runs.checkpoint import load_tensors
from quintet.runs.devices import tensor_core_products
from quintet.training import loop
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


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


MATCHERS: dict[str, dict[str, Any]] = {
    "linear": {"dropout": 0.0, "pooling": "max"},
    "chunks": {"dropout": 0.0, "pooling": "max"},
    "mlp": {"dropout": 0.0, "pooling": "max", "projection": "mlp"},  # BatchNorm: statistics span both processes
    "heads": {"name": "heads", "hidden": 8, "dropout": 0.0, "text_dropout": 0.0},  # BatchNorm with affine=False
}


@pytest.mark.parametrize(
    "kind", ["chunks", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("linear", "mlp")), "heads"]
)
def test_two_processes_equal_one(tiny_recipe: dict[str, Any], tmp_path: Path, kind: str) -> None:
    """Batches of 7 split unevenly."""
    if kind == "heads":
        tiny_recipe["matcher"] = {"embed_dim": 8}
        tiny_recipe["stages"][0]["loss"] = {"contrastive": {}}
    tiny_recipe["matcher"] |= MATCHERS[kind]
    # Not Adam: the bias in front of a BatchNorm has no gradient, and Adam makes full steps of its rounding errors.
    tiny_recipe["stages"][0] |= {"batches": {"size": 7}, "epochs": 3, "optimizer": {"name": "sgd", "lr": 0.05}}
    one = train_recipe(parse_recipe(tiny_recipe), tmp_path / "one", device="cpu")
    if kind == "chunks":  # of each process's three or four pairs
        tiny_recipe["stages"][0]["batches"]["chunk"] = 2
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    train_with_processes(tmp_path / "recipe.yaml", tmp_path / "two", 2)
    first = load_tensors(tmp_path / "one" / "weights.safetensors")[0]
    second = load_tensors(tmp_path / "two" / "weights.safetensors")[0]
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert one["online"]["steps"] == 12


def test_chunks_are_refused_where_a_batchnorm_needs_the_batch(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["matcher"] |= {"projection": "mlp"}
    tiny_recipe["stages"][0]["batches"] = {"size": 6, "chunk": 2}
    with pytest.raises(RecipeError, match="normalises over"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    tiny_recipe["stages"][0] |= {"freeze": ["matcher.*projection*"], "epochs": 1}
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")


def test_the_average_of_the_weights_is_what_is_kept(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against averaging the weights of every step by hand."""
    decay, steps = 0.6, []
    tiny_recipe["stages"][0] |= {"batches": {"size": 7}, "epochs": 2, "ema": decay, "select_after": 1}
    update = loop.StageTrainer._update

    def noting(trainer: loop.StageTrainer) -> None:
        update(trainer)
        state = trainer.matcher.state_dict()
        steps.append({name: tensor.detach().clone() for name, tensor in state.items()})

    monkeypatch.setattr(loop.StageTrainer, "_update", noting)
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    kept = load_tensors(tmp_path / "run" / "weights.safetensors")[0]
    assert kept.keys() == steps[0].keys()
    for name, tensor in kept.items():
        expected = steps[0][name].clone()
        for state in steps[1:]:
            expected = decay * expected + (1 - decay) * state[name]
        torch.testing.assert_close(tensor, expected)
    assert any(not torch.equal(kept[name], steps[-1][name]) for name in kept)


@pytest.fixture
def on_images(tiny_recipe: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Dual-Path from pixels, its image tower frozen: a ResNet, which has BatchNorms, from random weights."""
    corpus = make_scenes(tmp_path / "scenes", train=6, dev=4, test=4, seed=0, size=32)
    tiny_recipe["data"] = {
        "corpus": str(corpus.root),
        "tokenizer": {"min_count": 1, "special_tokens": False, "unknown": "drop"},
    }
    small = {"embed_dim": 8, "word_dim": 6, "length": 8, "text_layout": "small", "text_width": 2}
    tower = {"tower": "resnet18", "tower_pretrained": False}
    tiny_recipe["matcher"] = {"name": "dual-path", **tower, **small}
    tiny_recipe["stages"][0] |= {
        "loss": {"instance": {}},
        "freeze": ["matcher.image_encoder.tower.*"],
        "batches": {"size": 6, "per": "images"},
        "epochs": 1,
    }
    return tiny_recipe


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_frozen_towers_keep_their_weights_and_statistics(
    on_images: dict[str, Any], tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation mode by default; in training mode they see batch statistics, as in the released Dual-Path."""
    modes: set[bool] = set()
    forward = ResNet.forward

    def watched(self: ResNet, pixels: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():  # not while measuring
            modes.add(self.bn1.training)
        return forward(self, pixels)

    monkeypatch.setattr(ResNet, "forward", watched)
    train_recipe(parse_recipe(on_images, [f"stages.0.frozen={mode}"]), tmp_path / "run", device="cpu")
    assert modes == {mode == "train"}
    names = load_tensors(tmp_path / "run" / "weights.safetensors")[0]
    tower = {name: tensor for name, tensor in names.items() if ".tower." in name and "running" in name}
    assert tower
    for name, tensor in tower.items():
        assert torch.equal(tensor, torch.full_like(tensor, float(name.endswith("var")))), name


def test_images_may_be_decoded_once(on_images: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`data.keep: device` opens each image of training and validation once, whatever the number of epochs."""
    opened: list[str] = []
    real = image_memory.open_image
    monkeypatch.setattr(image_memory, "open_image", lambda path: opened.append(path.name) or real(path))
    views = ["data.augment={crop: shift, flip: 0.5}", "stages.0.epochs=3"]
    kept = train_recipe(parse_recipe(on_images, [*views, "data.keep=device"]), tmp_path / "kept", device="cpu")
    assert kept["online"]["steps"] == 3
    from_disk: list[str] = []
    read = loading.open_image
    monkeypatch.setattr(loading, "open_image", lambda path: from_disk.append(path.name) or read(path))
    train_recipe(parse_recipe(on_images, [*views, "data.keep=disk"]), tmp_path / "disk", device="cpu")
    corpus = Corpus.open(tmp_path / "scenes")
    training, validation = (len(corpus.split(name).images) for name in ("train", "dev"))
    assert len(opened) == len(set(opened)) == training + validation
    assert len(from_disk) == 3 * training + validation, "views of an epoch are new, those of validation are kept"


def test_tf32_is_for_training_steps_alone(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU would have it: the setting is watched where the matcher scores."""
    monkeypatch.setattr(loop, "tensor_core_products", lambda device, on: tensor_core_products(torch.device("cuda"), on))
    seen: set[tuple[bool, str]] = set()
    score = VSE.score

    def watched(self: VSE, *codes: Any) -> torch.Tensor:
        seen.add((torch.is_grad_enabled(), torch.get_float32_matmul_precision()))
        return score(self, *codes)

    monkeypatch.setattr(VSE, "score", watched)
    train_recipe(parse_recipe(tiny_recipe, ["stages.0.precision=tf32"]), tmp_path / "tf32", device="cpu")
    assert seen == {(True, "high"), (False, "highest")}
    seen.clear()
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "float32", device="cpu")
    assert seen == {(True, "highest"), (False, "highest")}
