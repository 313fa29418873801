"""Training says what its dictionary keeps and how far word vectors cover it, and the run remembers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from quintet.errors import RecipeError
from quintet.runs.run_folder import read_head
from quintet.training.logs import Silent
from quintet.training.recipe import load_recipe, parse_recipe
from quintet.training.stages import train_recipe

WORDS = ["a", "thing", "red", "green", "blue", "small", "large", "round", "square", "striped", "plain", "old"]


class Said(Silent):
    def __init__(self) -> None:
        self.infos: list[str] = []
        self.notes: list[str] = []

    def info(self, message: str) -> None:
        self.infos.append(message)

    def note(self, message: str) -> None:
        self.notes.append(message)


def recipe(corpus: Path, **tokenizer: Any) -> dict[str, Any]:
    stage = {"name": "one", "batches": {"size": 6}, "loss": {"instance": {}}, "epochs": 1}
    return {
        "name": "toy",
        "data": {
            "corpus": str(corpus),
            "features": "toy",
            "tokenizer": {"min_count": 1, "special_tokens": False, "unknown": "drop"} | tokenizer,
        },
        "matcher": {
            "name": "dual-path",
            "embed_dim": 8,
            "word_dim": 6,
            "text_layout": "small",
            "text_width": 2,
            "length": 8,
        },
        "stages": [stage],
    }


def write_vectors(path: Path, words: list[str]) -> Path:
    path.write_text("".join(f"{word} 1 0 0 1 0 0\n" for word in words), encoding="utf-8")
    return path


def test_coverage_and_size_are_said_and_kept_in_the_run(tiny_corpus: Path, tmp_path: Path) -> None:
    said = Said()
    path = write_vectors(tmp_path / "vectors.txt", WORDS)
    content = recipe(tiny_corpus, word_vectors=str(path), vectors_only=True)
    train_recipe(parse_recipe(content), tmp_path / "run", device="cpu", display=said)
    kept = read_head(tmp_path / "run")["dictionary"]
    assert kept["words"] == kept["vectors"]["found"] <= len(WORDS)
    assert any(message.startswith(f"{kept['words']:,} words in the dictionary") for message in said.infos)
    assert any(f"for {kept['vectors']['found']:,} of" in message for message in said.infos)
    assert not any("vector" in note for note in said.notes)


def test_vectors_that_are_mostly_missing_are_warned_of(tiny_corpus: Path, tmp_path: Path) -> None:
    said = Said()
    path = write_vectors(tmp_path / "vectors.txt", [word.capitalize() for word in WORDS[2:]] + ["a"])
    content = recipe(tiny_corpus, word_vectors=str(path))
    train_recipe(parse_recipe(content), tmp_path / "run", device="cpu", display=said)
    assert any("only 1 of" in note for note in said.notes)
    assert any("data.tokenizer.case=true" in note for note in said.notes)


def test_without_vectors_there_is_a_warning(tiny_corpus: Path, tmp_path: Path) -> None:
    said = Said()
    train_recipe(parse_recipe(recipe(tiny_corpus)), tmp_path / "run", device="cpu", display=said)
    assert any(note.startswith("no word vectors") for note in said.notes)


def test_the_file_that_recipes_name_may_be_absent_and_a_path_may_not(tiny_corpus: Path, tmp_path: Path) -> None:
    said = Said()
    content = recipe(tiny_corpus, word_vectors="GoogleNews-vectors-negative300.bin", vectors_only=True)
    train_recipe(parse_recipe(content), tmp_path / "run", device="cpu", display=said)
    assert any("GoogleNews-vectors-negative300.bin are not in" in note for note in said.notes)
    assert any(note.startswith("no word vectors") for note in said.notes)
    written = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8"))
    assert not written["data"]["tokenizer"].get("word_vectors"), "the run says what it was trained with"
    content["data"]["tokenizer"]["word_vectors"] = str(tmp_path / "missing.bin")
    with pytest.raises(RecipeError, match=r"missing.bin does not exist"):
        train_recipe(parse_recipe(content), tmp_path / "other", device="cpu")


@pytest.mark.parametrize("name", ["dual-path-f30k", "dual-path-coco", "dual-path-cuhk", "dual-path-released-f30k"])
def test_shipped_recipes_name_word2vec(name: str) -> None:
    tokenizer = load_recipe(name).data.tokenizer
    assert tokenizer.word_vectors == Path("GoogleNews-vectors-negative300.bin")
    assert tokenizer.vectors_only
    assert tokenizer.case
