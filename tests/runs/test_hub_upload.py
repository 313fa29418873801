from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.models.dual_encoders import save_dual_encoder
from tests.runs.hub_server import Hub, serving

import quintet
from quintet.errors import QuintetError
from quintet.training.recipe import load_recipe

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub of this test alone, with a cache of its own."""
    with serving() as server:
        settings = {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
        }
        for name, value in settings.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield server


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    corpus = quintet.import_corpus("scenes", "-", tmp_path / "scenes", train=12, dev=4, test=4, size=32)
    small = ["stages.online.epochs=1", "stages.online.batches.size=6"]
    quintet.train("vse-scenes", corpus, out=tmp_path / "run", overrides=small, device="cpu")
    return tmp_path / "run"


def test_a_run_comes_back_from_the_hub_as_it_was(hub: Hub, trained: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    quintet.evaluate(trained, tmp_path / "scenes", bootstrap=50, device="cpu").save(result)
    page = quintet.push(trained, "me/mine", licence="cc-by-4.0", result=result, limits="Only coloured shapes.")
    assert page == f"{hub.url}/me/mine"
    files = hub.models["me/mine"]
    assert set(files) == {
        *("README.md", "run.json", "model.json", "images.json", "tokenizer.json", "recipe.yaml", "checksums.json"),
        "weights.safetensors",
    }
    text = b"".join(data for name, data in files.items() if name != "weights.safetensors").decode()
    assert str(tmp_path) not in text
    there, here = quintet.load("hub:me/mine", device="cpu"), quintet.load(trained, device="cpu")
    assert there.weights_checksum == here.weights_checksum
    assert torch.equal(there.encode_texts("a red circle").embedding, here.encode_texts("a red circle").embedding)
    (tmp_path / "again.yaml").write_bytes(files["recipe.yaml"])
    assert load_recipe(tmp_path / "again.yaml").stages == load_recipe(trained / "recipe.yaml").stages

    card = files["README.md"].decode()
    measured = json.loads(result.read_text())
    assert card.startswith("---\nlicense: cc-by-4.0\n")
    for said in ("`scenes`", "Only coloured shapes.", f"{measured['metrics']['rsum']:.1f}", "cc-by-4.0."):
        assert said in card
    low, high = measured["intervals"]["i2t_r1"]
    assert f"{low:.1f} to {high:.1f}" in card


def test_nothing_but_the_files_of_a_run_is_fetched(hub: Hub, trained: Path) -> None:
    quintet.push(trained, "me/mine", licence="mit")
    hub.models["me/mine"] |= {"harm.pkl": b"harm", "model.py": b"harm", "pytorch_model.bin": b"harm"}
    hub.asked.clear()
    folder = quintet.load("hub:me/mine", device="cpu").folder
    assert not [path for path in hub.asked if path.endswith((".pkl", ".py", ".bin"))]
    assert {path.name for path in folder.iterdir()} == set(hub.models["me/mine"]) - {
        *("harm.pkl", "model.py", "pytorch_model.bin", "README.md")
    }


def test_a_changed_or_half_sent_file_is_refused(hub: Hub, trained: Path) -> None:
    quintet.push(trained, "me/mine", licence="mit")
    hub.cut_short.add("weights.safetensors")
    with pytest.raises(QuintetError, match="could not be downloaded"):
        quintet.load("hub:me/mine", device="cpu")
    hub.cut_short.clear()
    quintet.load("hub:me/mine", device="cpu")
    changed = bytearray(hub.models["me/mine"]["weights.safetensors"])
    changed[-1] ^= 1
    hub.models["me/mine"]["weights.safetensors"] = bytes(changed)
    with pytest.raises(QuintetError, match="damaged or was changed"):
        quintet.load("hub:me/mine", device="cpu")


def test_a_dual_encoder_is_fetched_without_what_it_does_not_need(hub: Hub, tmp_path: Path) -> None:
    save_dual_encoder(tmp_path / "model")
    hub.models["they/clip"] = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    hub.models["they/clip"] |= {"pytorch_model.bin": b"harm", "modeling.py": b"harm", "flax_model.msgpack": b"harm"}
    found = quintet.load("hf:they/clip", device="cpu")
    wanted = quintet.load(f"hf:{tmp_path / 'model'}", device="cpu")
    assert torch.equal(found.encode_texts("a dog").embedding, wanted.encode_texts("a dog").embedding)
    assert not [path for path in hub.asked if path.endswith((".bin", ".py", ".msgpack"))]
    with pytest.raises(QuintetError, match="hf:they/clip"):
        quintet.load("hub:they/clip")


def test_errors_of_the_hub_say_what_to_do(
    hub: Hub, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QuintetError, match="the hub has no"):
        quintet.load("hub:no/body")
    with pytest.raises(QuintetError, match="OWNER/NAME"):
        quintet.load("hub:nobody")
    with pytest.raises(QuintetError, match="OWNER/NAME"):
        quintet.push(trained, "mine", licence="mit")
    with pytest.raises(QuintetError, match="not a licence"):
        quintet.push(trained, "me/mine", licence="My own!")
    other = tmp_path / "result.json"
    quintet.evaluate(trained, tmp_path / "scenes", device="cpu").save(other)
    other.write_text(other.read_text().replace(quintet.load(trained, device="cpu").weights_checksum, "0" * 64))
    with pytest.raises(QuintetError, match="other weights"):
        quintet.push(trained, "me/mine", licence="mit", result=other)
    assert not hub.models
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(QuintetError, match="hf auth login"):
        quintet.push(trained, "me/mine", licence="mit")
