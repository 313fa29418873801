from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from quintet.cli.study import StudyCommand, joined, recipe_of, study_command
from quintet.data.corpus import Corpus, Image, Text
from quintet.errors import QuintetError, RecipeError


def study(*arguments: object) -> Result:
    app = typer.Typer()
    app.command("study", cls=StudyCommand)(study_command)
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "120", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def recipe(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    del tiny_recipe["data"]["corpus"]
    second = copy.deepcopy(tiny_recipe["stages"][0]) | {
        "name": "offline",
        "loss": {"quintuplet": {}},
        "negatives": {"from": "online", "top_texts": 10, "top_images": 5},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe | {"stages": [*tiny_recipe["stages"], second]}), encoding="utf-8")
    return path


def test_a_study_from_the_command_line(recipe: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--corpus", tiny_corpus, "--recipe", recipe, "-o", out, "--device", "cpu", "--bootstrap", 0]
    result = study("aoq", *options, "--seeds", 3, 5, "--top", 4, "stages.*.epochs=1")
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["seeds"] == [3, 5]
    assert list(summary["variants"]) == ["online", "off-tri", "off-quin", "adap-off-quin", "top4"]
    assert (out / "tables.md").read_text(encoding="utf-8") in result.stdout
    assert "| VSE++ + AdapOffQuin " in result.stdout
    assert "±" in result.stdout
    assert (out / "runs" / "top4-seed5" / "weights.safetensors").is_file()

    again = study("aoq", *options, "--seeds", "3,5", "--top", "4", "stages.*.epochs=1", "--json")
    assert json.loads(again.stdout)["variants"] == summary["variants"]

    one = study("aoq", *options, "--seed", 5, "stages.*.epochs=1", "--json")
    assert json.loads(one.stdout)["seeds"] == [5]

    with pytest.raises(QuintetError, match="other settings"):
        study("aoq", *options, "--seeds", 3, 5, "stages.*.epochs=2")


def test_one_number_is_how_many_seeds(recipe: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    options = ["--corpus", tiny_corpus, "--recipe", recipe, "-o", tmp_path / "out", "--device", "cpu", "--json"]
    summary = json.loads(study("aoq", *options, "stages.*.epochs=1", "--seeds", 2, "--bootstrap", 0).stdout)
    assert summary["seeds"] == [0, 1]


def test_a_study_of_which_nothing_finishes_is_an_error(recipe: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    options = ["--corpus", tiny_corpus, "--recipe", recipe, "-o", tmp_path / "out", "--device", "cpu", "--seed", 0]
    with pytest.raises(QuintetError, match=r"no run of the study finished.*became"):
        study("aoq", *options, "stages.online.loss.triplet.margin=1.0e+39")
    assert "became" in (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")


def test_studies_are_listed() -> None:
    assert "AdapOffQuin" in json.loads(study("--list", "--json").stdout)["aoq"]
    assert "aoq" in study("--list").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aoq"], "name a study and a folder"),
        (["aqo", "-o", "x"], "did you mean 'aoq'"),
        (["aoq", "-o", "x"], "--recipe, or choose it with --matcher"),
        (["aoq", "-o", "x", "--recipe", "vse-scenes", "--matcher", "vse++"], "one of the two"),
        (["aoq", "-o", "x", "--matcher", "vsrn"], "add --corpus"),
        (["aoq", "-o", "x", "--recipe", "vse-scenes", "--alpha", "big"], "--alpha takes numbers"),
        (["aoq", "-o", "x", "--recipe", "vse-scenes", "--top", "2.5"], "--top takes whole numbers"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        study(*arguments)


def corpus_named(folder: Path, name: str) -> Path:
    Corpus(name, [Image("i", "g")], [Text("t", "g", "words")], {"train": ["g"]}).save(folder)
    return folder


def test_the_matcher_and_the_corpus_choose_the_recipe(tmp_path: Path) -> None:
    scenes = corpus_named(tmp_path / "anything", "scenes")
    assert recipe_of("aoq", "vsrn", scenes) == "aoq-vsrn-scenes"
    assert recipe_of("aoq", "SCAN", scenes) == "aoq-scan-scenes"
    assert recipe_of("aoq", "vse++", scenes).endswith("vse-scenes")
    assert recipe_of("aoq", "bfan", corpus_named(tmp_path / "f30k", "flickr thirty")) == "aoq-bfan-f30k", (
        "by its folder"
    )
    odd = corpus_named(tmp_path / "odd", "odd")
    with pytest.raises(RecipeError, match=r"no shipped recipe of vsrn for corpus 'odd'.*aoq-vsrn-scenes"):
        recipe_of("aoq", "vsrn", odd)
    with pytest.raises(RecipeError, match="did you mean 'scan'"):
        recipe_of("aoq", "scna", odd)


def test_values_with_spaces_between_them_are_one_argument() -> None:
    assert joined(["aoq", "--top", "200", "300", "--seeds", "0", "1", "a=1"]) == [
        *("aoq", "--top", "200,300", "--seeds", "0,1", "a=1")
    ]
    assert joined(["--protocol", "5fold", "5k", "-o", "5"]) == ["--protocol", "5fold,5k", "-o", "5"]
    assert joined(["-o", "7", "8"]) == ["-o", "7", "8"], "other options take one value"
