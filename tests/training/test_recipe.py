from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from quintet.errors import RecipeError
from quintet.losses import OBJECTIVES
from quintet.models import MODELS
from quintet.training.recipe import list_recipes, load_recipe, parse_recipe, recipe_text, recipe_yaml


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_is_valid_and_names_things_that_exist(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert f"quintet train {name}" in list_recipes()[name], "the header comment is the command that runs it"
    known = MODELS.parameters(recipe.matcher.name)
    assert set(recipe.matcher.arguments) <= set(known)
    for stage in recipe.stages:
        for loss, arguments in stage.loss.items():
            assert set(arguments) <= set(OBJECTIVES.parameters(loss))


def test_yaml_round_trip(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_recipe)
    (tmp_path / "again.yaml").write_text(recipe_yaml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "again.yaml") == recipe


def test_overrides_reach_every_level(tiny_recipe: dict[str, Any]) -> None:
    overrides = [
        "seed=7",
        "stages.online.epochs=5",
        "stages.0.optimizer.lr=1e-3",
        "stages.*.clip=null",
        "matcher.embed_dim=4",
    ]
    recipe = parse_recipe(tiny_recipe, overrides)
    stage = recipe.stages[0]
    assert (recipe.seed, stage.epochs, stage.optimizer.lr, stage.clip) == (7, 5, 1e-3, None)
    assert recipe.matcher.arguments["embed_dim"] == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.online.epoch=3", "did you mean 'epochs'"),
        ("stages.onlin.epochs=3", "did you mean 'online'"),
        ("matchr.name=x", "did you mean 'matcher'"),
        ("stages.0.optimizer.lrr=3", "did you mean 'lr'"),
        ("data.corpora=1", "did you mean 'corpus'"),
        ("stages.0.epochs=zero", "valid integer"),
        ("stages.0.epochs=0", "greater than or equal to 1"),
        ("epochs", "not of the form key=value"),
        ("seed=[", "not valid YAML"),
        ("stages.0.loss={}", "at least one loss"),
        ("stages=[]", "at least one stage"),
        ("seed=-1", "greater than or equal to 0"),
        ("data.augment.flip=0.5", "augment changes pixels"),
        ("data={augment: {regions: 0.2}}", "reads pixels"),
        ("data={text_cache: float16, augment: {words: 0.2}}", "text_cache keeps features of unchanged"),
        ("data.tokenizer.source=vocab.txt", "goes with kind: wordpiece"),
        ("data.tokenizer={kind: wordpiece, vocabulary: v.json}", "goes with kind: words"),
        ("data.tokenizer.vectors_only=true", "name it with `word_vectors`"),
    ],
)
def test_mistakes_are_named(tiny_recipe: dict[str, Any], override: str, message: str) -> None:
    before = copy.deepcopy(tiny_recipe)
    with pytest.raises(RecipeError, match=message):
        parse_recipe(tiny_recipe, [override])
    assert tiny_recipe == before, "overrides do not leak into the caller's recipe"


def test_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'vse-scenes'"):
        load_recipe("vse-scene")


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(RecipeError, match="not valid YAML"):
        load_recipe(tmp_path / "broken.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: café".encode("latin-1"))
    with pytest.raises(RecipeError, match="UTF-8"):
        load_recipe(tmp_path / "latin.yaml")
    (tmp_path / "list.yaml").write_text("- 1", encoding="utf-8")
    with pytest.raises(RecipeError, match="a mapping"):
        load_recipe(tmp_path / "list.yaml")


def test_numbers_are_numbers_also_where_no_type_says_so(tiny_recipe: dict[str, Any]) -> None:
    recipe = parse_recipe(
        tiny_recipe, ["stages.0.loss.triplet.margin=1e-1", "matcher.name=1e-1x", "stages.0.name=3e4b"]
    )
    assert recipe.stages[0].loss["triplet"]["margin"] == 0.1
    assert recipe.matcher.name == "1e-1x"


def test_two_stages_of_one_name_are_refused(tiny_recipe: dict[str, Any]) -> None:
    tiny_recipe["stages"] *= 2
    with pytest.raises(RecipeError, match="different names"):
        parse_recipe(tiny_recipe)


def test_recipe_text_is_the_file(tmp_path: Path) -> None:
    assert yaml.safe_load(recipe_text("vse-scenes"))["name"] == "vse-scenes"
