"""Recorded steps train as steps that are computed one by one: the same weights, whatever the matcher and its losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.data.corpus import Corpus
from quintet.runs.checkpoint import load_tensors
from quintet.training import loop
from quintet.training.graphs import StepGraphs
from quintet.training.recipe import parse_recipe
from quintet.training.stages import resume_run, train_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TRIPLET = {"triplet": {"margin": 0.2, "warmup_epochs": 2}}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vse++": ({"name": "vse++", "dropout": 0.2, "text_pooling": "max"}, TRIPLET),
    "gpo": ({"name": "vse++", "pooling": "gpo", "text_pooling": "gpo", "projection": "mlp"}, TRIPLET),
    "scan": ({"name": "scan", "aggregation": "mean"}, TRIPLET),
    "bfan": ({"name": "bfan"}, TRIPLET),
    "vsrn": ({"name": "vsrn"}, TRIPLET | {"caption": {"hidden": 8, "word_dim": 6}}),
    "hrem": ({"name": "hrem"}, {"relation": {"warmup_epochs": 2, "top": 2, "heads": 2, "sampling_dim": 8}}),
    "hrem-standalone": ({"name": "hrem"}, {"relation": {"mechanism": "standalone", "top": 2, "heads": 2}}),
    "instance": ({"name": "vse++"}, {"instance": {"dropout": 0.2}}),
    "contrastive": ({"name": "vse++"}, {"contrastive": {}}),
}


@pytest.fixture(autouse=True)
def no_more_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout draws for padding, too: texts padded alike have the same words hidden."""
    monkeypatch.setattr(loop, "WORDS", 1)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was recorded, and what was found to wait."""
    found: list[str] = []
    record, watched = StepGraphs._record, StepGraphs._watched

    def recording(self: StepGraphs, *given: Any) -> Any:
        found.append("recorded")
        return record(self, *given)

    def watching(self: StepGraphs, *given: Any) -> Any:
        outcome = watched(self, *given)
        found.extend(["waits"] * (self._refused is not None))
        return outcome

    monkeypatch.setattr(StepGraphs, "_record", recording)
    monkeypatch.setattr(StepGraphs, "_watched", watching)
    return found


@pytest.fixture(autouse=True)
def texts_of_two_lengths(tiny_recipe: dict[str, Any], tmp_path: Path, make_corpus: Callable[..., Path]) -> None:
    """So that batches have several shapes: two lengths, and fewer pairs in the last."""
    corpus = make_corpus(tmp_path / "corpus")
    opened = Corpus.open(corpus)
    opened.texts[::7] = [replace(text, text=f"{text.text} and more of it") for text in opened.texts[::7]]
    opened.save(corpus)
    tiny_recipe["data"]["corpus"] = str(corpus)
    tiny_recipe["stages"][0]["batches"] = {"size": 5}


SGD = {"optimizer": {"name": "sgd", "lr": 0.02}}


def weights(recipe: dict[str, Any], run: Path, graphs: bool, changes: dict[str, Any]) -> dict[str, torch.Tensor]:
    for stage in recipe["stages"]:
        stage |= {"graphs": graphs, "epochs": 5, **SGD, **changes}
    train_recipe(parse_recipe(recipe), run, device="cuda")
    return load_tensors(run / "weights.safetensors")[0]


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=2e-3, atol=2e-4, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_weights(
    kind: str, precision: str, tiny_recipe: dict[str, Any], tmp_path: Path, recorded: list[str]
) -> None:
    if precision == "bfloat16" and kind not in ("vse++", "vsrn"):
        pytest.skip("automatic half precision is the same code for all; a GRU over regions is VSRN's alone")
    matcher, loss = KINDS[kind]
    tiny_recipe["matcher"] = {"embed_dim": 16, "word_dim": 6} | matcher
    tiny_recipe["stages"][0] |= {"loss": loss, "reduction": "mean", "precision": precision, "select_after": 3}
    expected = weights(tiny_recipe, tmp_path / "plain", False, {})
    assert not recorded
    found = weights(tiny_recipe, tmp_path / "graphs", True, {})
    assert "recorded" in recorded
    assert "waits" not in recorded
    same(found, expected)


def test_the_second_round(tiny_recipe: dict[str, Any], tmp_path: Path, recorded: list[str]) -> None:
    second = tiny_recipe["stages"][0] | {
        "name": "offline",
        "loss": {"quintuplet": {"warmup_epochs": 2}},
        "negatives": {"from": "online", "top_texts": 4, "top_images": 2},
    }
    tiny_recipe["stages"].append(second)
    tiny_recipe["matcher"] |= {"name": "scan", "embed_dim": 16}
    changes = {"select_after": 3}
    expected = weights(tiny_recipe, tmp_path / "plain", False, changes)
    found = weights(tiny_recipe, tmp_path / "graphs", True, changes)
    assert recorded.count("recorded") >= 4, "two stages, two phases each"
    assert "waits" not in recorded
    same(found, expected)


def test_a_matcher_that_waits_is_not_recorded(
    tiny_recipe: dict[str, Any], tmp_path: Path, recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from quintet.models.vse import VSE

    encode = VSE.encode_texts

    def waiting(self: VSE, texts: Any) -> Any:
        codes = encode(self, texts)
        float(codes.embedding.sum())  # type: ignore[union-attr]
        return codes

    monkeypatch.setattr(VSE, "encode_texts", waiting)
    weights(tiny_recipe, tmp_path / "run", True, {})
    assert "recorded" not in recorded
    assert "waits" in recorded


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_resumed_run_equals_one_that_was_not_stopped(
    optimizer: str, tiny_recipe: dict[str, Any], tmp_path: Path, recorded: list[str]
) -> None:
    changes = {"select_after": 4, "optimizer": {"name": optimizer, "lr": 0.01}}
    expected = weights(tiny_recipe, tmp_path / "whole", True, changes)
    save, saved = loop.StageTrainer._save, 0

    class StoppedError(Exception):
        pass

    def stopping(self: loop.StageTrainer) -> None:
        nonlocal saved
        save(self)
        saved += 1
        if saved == 12:
            raise StoppedError

    loop.StageTrainer._save = stopping  # type: ignore[method-assign]
    try:
        with pytest.raises(StoppedError):
            weights(tiny_recipe, tmp_path / "stopped", True, changes)
    finally:
        loop.StageTrainer._save = save  # type: ignore[method-assign]
    recorded.clear()
    resume_run(tmp_path / "stopped", device="cuda")
    assert "recorded" in recorded
    same(load_tensors(tmp_path / "stopped" / "weights.safetensors")[0], expected)
