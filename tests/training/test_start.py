"""`quintet.train`: recipes and corpora as names, paths or objects; the run comes back opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import quintet
from quintet.data.corpus import Corpus
from quintet.errors import RecipeError, RunError
from quintet.files import read_json
from quintet.runs.checkpoint import load_tensors
from quintet.training.recipe import load_recipe, parse_recipe


@pytest.mark.parametrize("kind", ["mapping", "file", "recipe"])
def test_a_recipe_and_a_corpus_make_a_run(kind: str, tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    corpus = tiny_recipe["data"].pop("corpus")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tiny_recipe))
    given = {"mapping": tiny_recipe, "file": tmp_path / "mine.yaml", "recipe": parse_recipe(tiny_recipe)}[kind]
    where = Corpus.open(corpus) if kind == "file" else corpus
    run = quintet.train(given, where, out=tmp_path / "run", seed=3, overrides=["stages.online.epochs=1"], device="cpu")
    used = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert (used.seed, used.stages[0].epochs, used.data.corpus) == (3, 1, Path(corpus).resolve())
    assert run.folder == tmp_path / "run"
    assert run.default_corpus == Path(corpus).resolve()
    assert quintet.evaluate(run, bootstrap=0, split="dev").rsum == pytest.approx(
        read_json(tmp_path / "run" / "run.json")["stages"]["online"]["metrics"]["rsum"]
    )


def test_a_finished_run_is_resumed_to_itself(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    run = quintet.train(tiny_recipe, out=tmp_path / "run", device="cpu")
    again = quintet.train(resume=tmp_path / "run", device="cpu")
    assert again.weights_checksum == run.weights_checksum
    assert load_tensors(tmp_path / "run" / "weights.safetensors")[0].keys() == run.matcher.state_dict().keys()
    with pytest.raises(RunError, match="--resume"):
        quintet.train(tiny_recipe, out=tmp_path / "run", device="cpu")


def test_what_does_not_go_together_is_refused(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a folder"):
        quintet.train(tiny_recipe)
    with pytest.raises(RecipeError, match="a recipe"):
        quintet.train(out=tmp_path / "run")
    with pytest.raises(RecipeError, match=r"no recipe and no seed"):
        quintet.train(tiny_recipe, resume=tmp_path / "run", seed=1)
    with pytest.raises(RecipeError, match="vse-scenes"):
        quintet.train("vse-scene", out=tmp_path / "run")
