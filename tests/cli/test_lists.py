from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from quintet.cli.main import app
from quintet.errors import RecipeError
from quintet.models import MODELS
from quintet.training.recipe import list_recipes, load_recipe


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_recipes_are_listed_with_their_commands() -> None:
    shown = call("recipes").stdout
    assert "quintet train aoq-vse-scenes --corpus corpora/scenes" in shown
    assert json.loads(call("recipes", "--json").stdout) == list_recipes()


@pytest.mark.parametrize("name", MODELS.names())
def test_the_arguments_of_a_matcher_are_shown_as_a_recipe_writes_them(name: str) -> None:
    shown = json.loads(call("models", name, "--json").stdout)
    for key, parameter in MODELS.parameters(name).items():
        if parameter.default is inspect.Parameter.empty:
            assert shown[key] == "needed"
        else:
            assert yaml.safe_load(shown[key]) == json.loads(json.dumps(parameter.default))  # a tuple is a list there


@pytest.mark.parametrize("words", [["show", "aoq-vse-scenes"], ["aoq-vse-scenes"]])
def test_a_recipe_is_shown_with_what_it_extends(words: list[str], tmp_path: Path) -> None:
    shown = call("recipes", *words, "--set", "stages.*.epochs=25", "--set", "seed=1").stdout
    assert shown.startswith("# quintet data import scenes")
    assert "Changed here: seed=1" in shown
    (tmp_path / "mine.yaml").write_text(shown, encoding="utf-8")
    expected = load_recipe("aoq-vse-scenes", ["stages.*.epochs=25", "seed=1"])
    assert load_recipe(tmp_path / "mine.yaml") == expected
    whole = json.loads(call("recipes", *words, "--set", "seed=1", "--set", "stages.*.epochs=25", "--json").stdout)
    assert whole == expected.model_dump(mode="json", by_alias=True)


def test_a_file_is_shown_too(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# My trial.\nextends: vse-scenes\nseed: 3\n", encoding="utf-8")
    shown = call("recipes", "show", tmp_path / "mine.yaml").stdout
    assert shown.startswith("# My trial.\n")
    assert yaml.safe_load(shown)["name"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "name one recipe"),
        (["show", "vse-scenes", "vse-f30k"], "name one recipe"),
        (["show", "vse-scene"], "did you mean 'vse-scenes'"),
        (["--set", "seed=1"], "--set changes one recipe"),
        (["show", "vse-scenes", "--set", "sed=1"], "did you mean 'seed'"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        call("recipes", *arguments)
