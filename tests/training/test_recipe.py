from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from quintet.errors import RecipeError
from quintet.losses import OBJECTIVES
from quintet.models import MODELS
from quintet.training.recipe import (
    expand_recipe,
    list_recipes,
    load_recipe,
    parse_recipe,
    recipe_text,
    recipe_yaml,
    show_recipe,
)


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_is_valid_and_names_things_that_exist(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    known = MODELS.parameters(recipe.matcher.name)
    assert set(recipe.matcher.arguments) <= set(known)
    for stage in recipe.stages:
        for loss, arguments in stage.loss.items():
            assert set(arguments) <= set(OBJECTIVES.parameters(loss))


@pytest.mark.parametrize("name", list_recipes())
def test_the_header_is_the_command_that_trains_it(name: str) -> None:
    (command,) = (line for line in list_recipes()[name].splitlines() if line.startswith(f"quintet train {name} "))
    words = shlex.split(command)
    corpus, out = (words[words.index(option) + 1] for option in ("--corpus", "-o"))
    assert (out, corpus.partition("/")[0]) == (f"runs/{name}", "corpora")
    overrides = [word for word in words if "=" in word]
    assert len(words) == 7 + len(overrides)
    recipe = load_recipe(name, overrides)
    assert set(recipe.matcher.arguments) <= set(MODELS.parameters(recipe.matcher.name))
    for stage in recipe.stages:  # a teacher is trained before, by the command above, or a published model
        source = "" if stage.negatives is None else stage.negatives.source
        if "/" in source and not source.startswith("hf:"):
            teacher = source.removeprefix("runs/")
            assert f"quintet train {teacher} --corpus {corpus} -o runs/{teacher}\n" in list_recipes()[name]


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("-coco")])
def test_a_recipe_of_coco_is_tested_on_5000_images_by_the_commands_of_its_header(name: str) -> None:
    recipe = load_recipe(name)
    precomp = recipe.data.features == "regions"  # there `test` is the first 1,000 images of `testall`; else it is all
    assert recipe.data.test == ("testall" if precomp else "test")
    split = " --split testall" if precomp else ""
    for protocol in ("5fold", "5k"):
        assert f"quintet evaluate runs/{name}{split} --protocol {protocol}" in list_recipes()[name].splitlines()
    for command in re.findall("`(quintet evaluate [^`]*)`", list_recipes()[name]):  # ensembles
        assert command.endswith(" --split testall --protocol 5fold")


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


def test_earlier_names_of_keys_are_read(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["data"]["tokenizer"] = {"marks": False, "longest": 9}
    read = parse_recipe(tiny_recipe).data.tokenizer
    assert (read.special_tokens, read.max_length) == (False, 9)
    assert parse_recipe(tiny_recipe, ["data.tokenizer.longest=7"]).data.tokenizer.max_length == 7
    assert parse_recipe(tiny_recipe, ["data.tokenizer={longest: 6}"]).data.tokenizer.max_length == 6
    (tmp_path / "earlier.yaml").write_text("extends: mmca-scenes\ndata: {tokenizer: {longest: 5}}\n")
    assert load_recipe(tmp_path / "earlier.yaml").data.tokenizer.max_length == 5
    assert tiny_recipe["data"]["tokenizer"] == {"marks": False, "longest": 9}  # the caller's mapping
    captions = load_recipe("vsrn-f30k", ["stages.*.loss.caption.longest=8"]).stages[0].loss["caption"]
    assert (captions["max_length"], "longest" in captions) == (8, False)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.online.epoch=3", "did you mean 'epochs'"),
        ("stages.onlin.epochs=3", "did you mean 'online'"),
        ("matchr.name=x", "did you mean 'matcher'"),
        ("stages.0.optimizer.lrr=3", "did you mean 'lr'"),
        ("data.corpora=1", "did you mean 'corpus'"),
        ("stages.0.epochs=zero", "stages.online.epochs.*valid integer"),
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


def test_recipe_text_is_the_file() -> None:
    assert yaml.safe_load(recipe_text("vse-scenes"))["name"] == "vse-scenes"


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def parent(tiny_recipe: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A recipe of two stages in `parent.yaml`."""
    second = copy.deepcopy(tiny_recipe["stages"][0]) | {"name": "second", "loss": {"triplet": {}, "caption": {}}}
    tiny_recipe["stages"].append(second)
    tiny_recipe["stages"][0]["schedule"] = {"kind": "step", "every": 7}
    write(tmp_path, "parent", tiny_recipe)
    return tiny_recipe


def test_a_recipe_changes_what_it_extends(parent: dict[str, Any], tmp_path: Path) -> None:
    first, second = copy.deepcopy(parent["stages"])
    changes = {
        "extends": "parent.yaml",
        "matcher": {"embed_dim": 4},
        "stages": {
            first["name"]: {"epochs": 9, "loss": {"triplet": {"margin": 0.5}}, "optimizer": {"lr": 0.5}},
            "third": {"loss": {"triplet": {}}, "epochs": 3},
        },
    }
    recipe = load_recipe(write(tmp_path, "child", changes), ["stages.third.epochs=4"])
    first["epochs"] = 9
    first["loss"]["triplet"]["margin"] = first["optimizer"]["lr"] = 0.5
    matcher = parent["matcher"] | {"embed_dim": 4}
    third = {"name": "third", "loss": {"triplet": {}}, "epochs": 4}
    whole = parent | {"name": "child", "matcher": matcher, "stages": [first, second, third]}
    assert recipe == parse_recipe(whole), "the name is the file's, all else the parent's"


def test_recipes_are_extended_over_several_files(parent: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    write(tmp_path, "middle", {"extends": "parent.yaml", "seed": 3, "data": {"limit": 5}})
    recipe = load_recipe(write(tmp_path / "deeper", "last", {"extends": "../middle.yaml", "data": {"limit": 4}}))
    assert (recipe.name, recipe.seed, recipe.data.limit) == ("last", 3, 4)
    assert recipe.data.features == parent["data"]["features"]
    shipped = load_recipe(
        write(tmp_path, "shipped", {"extends": "aoq-vse-scenes", "stages": {"online": {"epochs": 30}}})
    )
    assert [stage.epochs for stage in shipped.stages] == [30, 20]


def test_another_kind_brings_its_own_arguments(parent: dict[str, Any], tmp_path: Path) -> None:
    name = parent["stages"][0]["name"]
    changes = {
        "extends": "parent.yaml",
        "matcher": {"name": "vsrn", "embed_dim": 6},
        "stages": {name: {"schedule": {"kind": "cosine"}}},
    }
    content = expand_recipe(write(tmp_path, "child", changes))
    assert content["matcher"] == {"name": "vsrn", "embed_dim": 6}
    assert content["stages"][0]["schedule"] == {"kind": "cosine"}, "`every` was of the steps"


def test_null_leaves_a_stage_or_a_loss_out_and_is_a_value_elsewhere(parent: dict[str, Any], tmp_path: Path) -> None:
    stages: dict[str, Any] = {parent["stages"][0]["name"]: None, "second": {"loss": {"caption": None}, "clip": None}}
    (stage,) = load_recipe(write(tmp_path, "child", {"extends": "parent.yaml", "stages": stages})).stages
    assert (stage.name, list(stage.loss), stage.clip) == ("second", ["triplet"], None)


def test_a_list_of_stages_replaces_them_all(parent: dict[str, Any], tmp_path: Path) -> None:
    stages = [{"name": "only", "loss": {"triplet": {}}}]
    recipe = load_recipe(write(tmp_path, "child", {"extends": "parent.yaml", "stages": stages}))
    assert recipe.stages == parse_recipe(parent | {"stages": stages}).stages


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"extends": "aoq-vse-scene"}, "did you mean 'aoq-vse-scenes'"),
        ({"extends": "missing.yaml"}, "missing.yaml does not exist"),
        ({"extends": "child.yaml"}, "in a circle"),
        ({"extends": "round.yaml"}, "in a circle.*round.yaml"),
        ({"extends": ["parent.yaml"]}, "extends takes one recipe"),
        ({"extends": "parent.yaml", "stages": {"secnd": {"epochs": 2}}}, "no stage 'secnd'.*did you mean 'second'"),
        ({"extends": "parent.yaml", "stages": {"secnd": None}}, "no stage 'secnd'"),
        ({"extends": "parent.yaml", "stages": {"second": 3}}, "stages.second takes a mapping"),
        ({"extends": "parent.yaml", "stages": {"second": {"epoch": 3}}}, "did you mean 'epochs'"),
        ({"extends": "parent.yaml", "matcher": None}, "'matcher'"),
        ({"extends": "broken.yaml"}, "broken.yaml.*'stages' is missing"),
    ],
)
def test_mistakes_in_what_extends_are_named(
    parent: dict[str, Any], tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    write(tmp_path, "round", {"extends": "child.yaml"})
    write(tmp_path, "broken", {key: value for key, value in parent.items() if key != "stages"})
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path, "child", content))


@pytest.mark.parametrize("name", list_recipes())
def test_a_shown_recipe_is_a_recipe(name: str, tmp_path: Path) -> None:
    text = show_recipe(name, ["seed=4"])
    assert "extends" not in yaml.safe_load(text)
    assert text.startswith("".join(f"# {line}\n" for line in list_recipes()[name].splitlines()))
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert load_recipe(tmp_path / "mine.yaml") == load_recipe(name, ["seed=4"])


def test_the_examples_of_the_documentation_are_recipes(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    first, second = (block.partition("```")[0] for block in page.split("```yaml\n")[1:])
    (tmp_path / "whole.yaml").write_text(first, encoding="utf-8")
    (tmp_path / "child.yaml").write_text(second, encoding="utf-8")
    assert load_recipe(tmp_path / "whole.yaml").name == "mine"
    child = load_recipe(tmp_path / "child.yaml")
    assert (child.name, [stage.name for stage in child.stages]) == ("child", ["online", "second"])
    assert (child.matcher.arguments, child.data.tokenizer.min_count) == ({"embed_dim": 256}, 4)
