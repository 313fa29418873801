"""Files from the hub and from packages are the ones that were published, or refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from quintet.backbones import create
from quintet.data import hub
from quintet.errors import QuintetError
from quintet.runs.run_folder import shipped_runs
from quintet.training.recipe import list_recipes, load_recipe

CONTENT = b'{"model_type": "bert"}'


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """A hub that gives CONTENT for every file, and what it was asked for."""
    seen: list[tuple[str, str, str]] = []

    def give(name: str, file: str, revision: str) -> str:
        seen.append((name, file, revision))
        (tmp_path / file).write_bytes(CONTENT)
        return str(tmp_path / file)

    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "hf_hub_download", give)
    return seen


def test_a_pinned_model_is_asked_for_by_revision_and_verified(
    asked: list[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setitem(hub.PINNED, "some/model", hub.Pinned("a1b2", {"model.safetensors": checksum}))
    assert hub.hub_source("some/model") == str(tmp_path)
    assert asked == [("some/model", "config.json", "a1b2"), ("some/model", "model.safetensors", "a1b2")]
    monkeypatch.setitem(hub.PINNED, "some/model", hub.Pinned("a1b2", {"model.safetensors": "0" * 64}))
    with pytest.raises(QuintetError, match="published as some/model"):
        hub.hub_source("some/model")
    assert hub.hub_source("some/model", ["config.json"]) == str(tmp_path)  # what is not asked for is not verified


def test_folders_and_other_names_are_as_they_were(asked: list[Any], tmp_path: Path) -> None:
    assert hub.hub_source(str(tmp_path)) == str(tmp_path)
    assert hub.hub_source("other/model") == "other/model"
    assert hub.hub_file("other/model", "tokenizer.json") == tmp_path / "tokenizer.json"
    assert asked == [("other/model", "tokenizer.json", "main")]


def test_every_model_that_a_recipe_downloads_is_pinned() -> None:
    named = set()
    for name in list_recipes():
        recipe = load_recipe(name)
        source = getattr(recipe.data.tokenizer, "source", None)
        named |= {str(source)} if source and source not in shipped_runs() else set()
        text = str(recipe.matcher.model_dump().get("text", ""))
        named |= {text.removeprefix("hf:")} if text.startswith("hf:") else set()
    assert named == set(hub.PINNED)


def test_weights_of_a_package_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = create.TOWERS["efficientnet-lite0"]
    assert all(len(tower.checksum) == 64 for tower in create.TOWERS.values() if tower.package)
    changed = type(entry)(entry.build, entry.heads, entry.package, "0" * 64)
    monkeypatch.setitem(create.TOWERS, "efficientnet-lite0", changed)
    with pytest.raises(QuintetError, match="install efficientnet-lite0"):
        create.create_tower("efficientnet-lite0")
