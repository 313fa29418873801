from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from quintet.errors import RecipeError
from quintet.studies.expand import build_study
from quintet.studies.study_file import list_studies, load_study
from quintet.studies.variants import Row, Study
from quintet.training.recipe import load_recipe, parse_recipe

MINE: dict[str, Any] = {
    "about": "A trial",
    "base": "plain",
    "options": {
        "width": {"kind": "int", "help": "Dimensions."},
        "margin": {"kind": "float", "help": "Margins.", "flag": "m"},
        "all": {"kind": "flag", "help": "Everything.", "implies": {"width": [16, 32], "margin": [0.5]}},
    },
    "settings": {
        "width": {"path": "matcher.embed_dim"},
        "margin": {"path": "stages.*.loss.triplet.margin"},
        "pooling": {"path": "matcher.pooling"},
    },
    "variants": {
        "plain": {"label": "Plain"},
        "widths": {"key": "wide{width}", "label": "{width} dimensions", "sweep": "width"},
        "margins": {"key": "m{margin:g}", "label": "{margin:g}", "sweep": "margin", "own_value": True},
        "pooled": {"label": "pooled by {pooling}", "set": {"matcher.pooling": "mean"}, "marks": ["x"]},
        "tuned": {"label": "Tuned", "set": {"stages.0.init": "@wide"}},
        "wide": {"label": "Wide", "set": {"matcher.embed_dim": 16}},
    },
    "tables": [
        {"title": "All of {method}", "rows": ["plain", "widths", "pooled"], "marks": ["extra"]},
        {"title": "Margins", "rows": ["margins"], "when": "margin", "columns": ["rsum"], "compare": "plain"},
    ],
}


def mine(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(copy.deepcopy(MINE) | changes, sort_keys=False), encoding="utf-8")
    return path


def keys(study: Study) -> list[str]:
    return [variant.key for variant in study.variants]


def test_a_study_of_ones_own_is_a_file(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    base = parse_recipe(tiny_recipe)
    study = build_study(mine(tmp_path), base, width=[16], margin=[0.3, 0.1])
    own = base.matcher.arguments["embed_dim"]
    assert (study.name, study.base, study.reference) == ("mine", "tiny", "plain")
    assert keys(study) == ["plain", "wide16", "m0.1", "m0.3"]
    first, second = study.tables
    assert first.title == "All of VSE++"
    assert first.rows[0] == Row("plain", "Plain")
    assert first.rows[-1] == Row("plain", "pooled by mean", ("x",)), "the matcher's default"
    assert [row.label for row in second.rows] == ["0.1", "0.2", "0.3"], "the recipe's own margin among them"
    assert (second.rows[1].variant, second.columns, second.compare) == ("plain", ("rsum",), "plain")
    wide = parse_recipe(study.variant("wide16").content(3))
    assert (wide.name, wide.seed, wide.matcher.arguments["embed_dim"]) == ("tiny-wide16", 3, 16)
    assert wide.stages == base.stages
    again = build_study(mine(tmp_path), base, width=[own])
    assert keys(again) == ["plain"], "what comes to the same is trained once"
    assert len(again.tables) == 1, "a table whose option is not given is left out"


def test_an_option_implies_others_that_are_not_given(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    base = parse_recipe(tiny_recipe)
    assert keys(build_study(mine(tmp_path), base, all=True)) == ["plain", "wide16", "wide32", "m0.5"]
    assert keys(build_study(mine(tmp_path), base, all=True, width=[64])) == ["plain", "wide64", "m0.5"]
    assert keys(build_study(mine(tmp_path), base, all=False, margin=None)) == ["plain"]


def test_what_a_variant_needs_is_trained_before(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tables = [{"title": "Tuned", "rows": ["tuned"]}]
    study = build_study(mine(tmp_path, tables=tables), parse_recipe(tiny_recipe))
    assert keys(study) == ["plain", "wide", "tuned"]
    assert study.variant("tuned").needs == ("wide",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": "plane"}, "no variant 'plane'; did you mean 'plain'"),
        ({"tables": [{"title": "T", "rows": ["wider"]}]}, "no variant 'wider'"),
        ({"tables": [{"title": "T", "rows": ["plain"], "when": "widht"}]}, "no option 'widht'; did you mean 'width'"),
        ({"variants": {"plain": {"label": "P", "sweep": "al"}}, "tables": []}, "no option 'al'"),
        ({"settings": {}}, "no setting"),
        ({"variants": {"plain": {"label": "P", "sett": {}}}, "tables": []}, "variants.plain.sett"),
        ({"about": None}, "about"),
    ],
)
def test_mistakes_in_a_file_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        load_study(mine(tmp_path, **changes))


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"label": "{widht}"}, "nothing is called 'widht'; did you mean 'width'"),
        ({"label": "P", "set": {"stages.onlin.epochs": 5}}, "'plain'.*did you mean 'online'"),
        ({"label": "P", "set": {"stages.online.epoch": 5}}, "'plain'.*did you mean 'epochs'"),
        ({"label": "P", "losses": ["caption"]}, "no stage with the loss 'caption'"),
        ({"label": "P", "round": 1}, "does not say which `rounds`"),
        ({"label": "P", "replace": {"pooling": {"max": "mean"}}}, "no value of 'pooling'"),
    ],
)
def test_mistakes_in_a_variant_are_named(
    variant: dict[str, Any], message: str, tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    path = mine(tmp_path, variants=MINE["variants"] | {"plain": variant})
    with pytest.raises(RecipeError, match=message):
        build_study(path, parse_recipe(tiny_recipe))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": [2.5]}, "takes whole numbers, got 2.5"),
        ({"margin": ["big"]}, "takes numbers, got 'big'"),
        ({"all": 3}, "is on or off"),
        ({"widht": [3]}, "no option 'widht'; did you mean 'width'"),
    ],
)
def test_mistakes_in_options_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        load_study(mine(tmp_path)).given(options)


def test_shipped_studies_are_found_by_name(tmp_path: Path) -> None:
    assert list_studies() == ["aoq", "clip", "dual-path", "hrem", "mmca"]
    for name in list_studies():
        assert load_study(name).name == name
    with pytest.raises(RecipeError, match="did you mean 'aoq'"):
        load_study("aqo")
    with pytest.raises(RecipeError, match="does not exist"):
        load_study(tmp_path / "none.yaml")


def test_the_example_of_the_documentation_is_a_study(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "mine.yaml").write_text(example, encoding="utf-8")
    study = build_study(tmp_path / "mine.yaml", load_recipe("vse-scenes"), width=[512, 2048])
    assert keys(study) == ["plain", "width512", "width2048", "margin", "tuned"]
    assert study.variant("tuned").needs == ("plain",)
    assert study.variant("margin").content(0)["stages"][0]["loss"]["triplet"]["margin"] == 0.1
