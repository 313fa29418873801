"""LoRA: only adapters are trained, the run has none, and a stopped run goes on with the same bits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.dual_encoders import save_dual_encoder

import quintet
from quintet.data.batches import TextBatch
from quintet.data.corpus import Corpus
from quintet.errors import RecipeError
from quintet.files import read_json
from quintet.models import create_model
from quintet.protocols import module_of
from quintet.runs.checkpoint import load_tensors
from quintet.training.logs import Silent
from quintet.training.recipe import parse_recipe
from quintet.training.recipe_models import LoraRecipe
from quintet.training.stages import resume_run, train_recipe

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus") / "scenes"
    return quintet.import_corpus("scenes", "-", folder, train=12, dev=4, test=4, size=32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_dual_encoder(folder)
    return folder


def recipe(model: Path, corpus: Corpus, **stage: Any) -> dict[str, Any]:
    one = {
        "name": "one",
        "lora": {"rank": 3, "alpha": 6},
        "loss": {"contrastive": {"temperature": "matcher"}},
        "batches": {"size": 6, "per": "images"},
        "optimizer": {"name": "adamw", "lr": 0.01},
        "epochs": 3,
        "log_every": 1,
        "checkpoint_every": 1,
    }
    return {
        "name": "tiny",
        "data": {"tokenizer": {"kind": "pretrained"}, "corpus": str(corpus.root)},
        "matcher": {"name": "clip", "source": f"hf:{model}"},
        "stages": [one | stage],
    }


def changed(model: Path, run: Path) -> set[str]:
    """The names of the tensors that training has changed."""
    before = quintet.load(f"hf:{model}", device="cpu").matcher.state_dict()
    after, _ = load_tensors(run / "weights.safetensors")
    assert after.keys() == before.keys()  # no adapter is left
    return {name for name, value in after.items() if not value.equal(before[name])}


def test_merged_weights_compute_what_the_adapters_do(model: Path) -> None:
    from quintet.training.adapters import add_adapters, merged_state

    matcher: Any = create_model("clip", source=f"hf:{model}").eval()
    plain: Any = create_model("clip", source=f"hf:{model}").eval()
    texts = TextBatch.from_ids([[70, 3, 4, 71], [70, 5, 71]])
    with torch.no_grad():
        start = plain.encode_texts(texts).embedding
        add_adapters(matcher, LoraRecipe(rank=4, alpha=2, targets=("*.q_proj", "*.fc1")))
        torch.testing.assert_close(matcher.encode_texts(texts).embedding, start)  # adapters begin as zero
        for name, parameter in matcher.named_parameters():
            if ".lora_" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
        wanted = matcher.encode_texts(texts).embedding
        assert (wanted - start).abs().max() > 0.01
        kept = {name: value.clone() for name, value in matcher.state_dict().items()}
        plain.load_state_dict(merged_state(module_of(matcher)))
        torch.testing.assert_close(plain.encode_texts(texts).embedding, wanted, atol=1e-5, rtol=1e-5)
        assert all(value.equal(kept[name]) for name, value in matcher.state_dict().items())


def test_only_adapters_and_what_is_named_are_trained(model: Path, corpus: Corpus, tmp_path: Path) -> None:
    lora = {"rank": 2, "targets": ["matcher.model.text_model.*.fc1"], "train": ["matcher.model.logit_scale"]}
    train_recipe(parse_recipe(recipe(model, corpus, lora=lora)), tmp_path / "run", device="cpu")
    assert changed(model, tmp_path / "run") == {
        "model.logit_scale",
        *(f"model.text_model.encoder.layers.{number}.mlp.fc1.weight" for number in range(2)),
    }


def test_a_run_is_that_of_its_last_validation_and_opens_without_peft(
    model: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {"epochs": 1, "precision": "bfloat16", "freeze": ["matcher.model.vision_model.*"]}
    run = quintet.train(recipe(model, corpus, **stage), out=tmp_path / "run", device="cpu")
    assert changed(model, tmp_path / "run") == {
        f"model.text_model.encoder.layers.{number}.self_attn.{name}_proj.weight" for number in (0, 1) for name in "qv"
    }
    monkeypatch.setitem(sys.modules, "peft", None)
    run = quintet.load(tmp_path / "run", device="cpu")
    measured = quintet.evaluate(run, corpus, split="dev").metrics
    validated = read_json(tmp_path / "run" / "stages" / "one" / "done.json")["metrics"]
    assert measured["rsum"] == validated["rsum"]
    with pytest.raises(RecipeError, match="`lora` extra"):
        train_recipe(parse_recipe(recipe(model, corpus)), tmp_path / "another", device="cpu")
    assert not (tmp_path / "another" / "run.json").exists()


class StopAt(Silent):
    """A display that pulls the plug at the given log line."""

    def __init__(self, line: int) -> None:
        self.left = line

    def step(self, epoch: int, done: int, losses: dict[str, float], lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


def test_a_stopped_run_resumes_bit_for_bit(model: Path, corpus: Corpus, tmp_path: Path) -> None:
    lora = {"rank": 2, "dropout": 0.2}
    settings: dict[str, Any] = {"ema": 0.5, "batches": {"size": 6, "per": "images", "chunk": 4}}
    wanted = parse_recipe(recipe(model, corpus, lora=lora, **settings))
    train_recipe(wanted, tmp_path / "whole", device="cpu")
    with pytest.raises(InterruptedError):
        train_recipe(wanted, tmp_path / "stopped", device="cpu", display=StopAt(4))
    resume_run(tmp_path / "stopped", device="cpu")
    whole, stopped = (load_tensors(tmp_path / name / "weights.safetensors")[0] for name in ("whole", "stopped"))
    assert all(value.equal(stopped[name]) for name, value in whole.items())
    assert changed(model, tmp_path / "whole")


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"targets": ["*.q_prog"]}, "no linear layer"),
        ({"targets": ["*.q_proj", "*.layer_norm1"]}, "no linear layer"),
        ({"train": ["matcher.model.logit_scala"]}, "matches no parameter"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(
    model: Path, corpus: Corpus, tmp_path: Path, lora: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        train_recipe(parse_recipe(recipe(model, corpus, lora=lora)), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "run.json").exists()


def test_the_attention_that_reads_its_weights_itself_gets_no_adapter(tmp_path: Path) -> None:
    from quintet.training.adapters import add_adapters

    save_dual_encoder(tmp_path, "siglip")  # its vision head is a MultiheadAttention
    with pytest.raises(RecipeError, match="no linear layer"):
        add_adapters(create_model("clip", source=f"hf:{tmp_path}"), LoraRecipe(targets=("*.head.attention.out_proj",)))


@pytest.mark.parametrize("kind", ["altclip", "chinese_clip", "siglip2", "metaclip_2"])
def test_both_towers_of_every_kind_get_adapters(tmp_path: Path, kind: str) -> None:
    from quintet.training.adapters import add_adapters

    save_dual_encoder(tmp_path, kind)
    matcher: Any = create_model("clip", source=f"hf:{tmp_path}")
    add_adapters(matcher, LoraRecipe())
    adapted = [name for name, parameter in matcher.named_parameters() if parameter.requires_grad]
    assert all(".lora_" in name for name in adapted)
    assert {name.split(".")[1] for name in adapted} == {"vision_model", "text_model"}
