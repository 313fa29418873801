from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quintet.studies.expand import build_study
from quintet.training.recipe import list_recipes, load_recipe


def test_the_grid_has_every_method_the_benchmark_promises(script: Any) -> None:
    grid = script("catalogue")
    rows = grid.grid_rows("flickr8k")
    names = {row.name for row in rows}
    for method in ("vse-avg", "vse-gpo", "scan-t2i", "scan-i2t", "bfan-equal", "bfan-prob", "vsrn"):
        assert {f"{method}-{loss}" for loss in ("online", "off-tri", "off-quin", "adap-off-quin")} <= names
    for ensemble in ("scan", "bfan", "vsrn"):
        assert {f"{ensemble}-ensemble-{loss}" for loss in ("online", "adap-off-quin")} <= names
    assert {
        "dual-path-instance-1",
        "dual-path-full",
        "mmca",
        "hrem-fusion",
        "hrem-standalone",
        "hrem-ensemble",
    } <= names
    assert {row.seed for row in rows} == {0, 1, 2}


def test_every_recipe_of_the_grid_is_shipped_and_takes_its_overrides(script: Any) -> None:
    for grid in script("catalogue").GRIDS.values():
        for method in grid.methods:
            assert method.recipe in list_recipes()
            load_recipe(method.recipe, list(method.overrides))


def test_variants_need_what_their_studies_say(script: Any) -> None:
    grid, methods = script("rows"), script("catalogue").METHODS
    for method in (method for method in methods if method.study is not None):
        options = grid.STUDY_OPTIONS.get(method.study, {})
        study = build_study(method.study, load_recipe(method.recipe, list(method.overrides)), **options)
        for key, variant in grid.STUDIES[method.study].items():
            assert study.variant(key).needs == variant.needs


def test_rows_stand_after_what_they_need(toy: SimpleNamespace) -> None:
    places = {row.id: number for number, row in enumerate(toy.rows)}
    assert all(places[need] < places[row.id] for row in toy.rows for need in row.needs)


def test_second_rounds_need_round_one_and_ensembles_their_members(toy: SimpleNamespace) -> None:
    needs = {row.id: row.needs for row in toy.rows}
    assert needs["one-online-seed0"] == ()
    assert needs["one-off-tri-seed1"] == ("one-online-seed1",)
    assert needs["both-ensemble-seed0"] == ("one-online-seed0", "two-seed0")
    assert needs["one-ensemble-off-tri-seed0"] == ("one-off-tri-seed0", "one-off-tri-seed1")
    assert needs["one-ensemble-off-tri-seed1"] == ("one-off-tri-seed1", "one-off-tri-seed0")


def test_a_grid_that_names_what_it_does_not_have_is_refused(toy: SimpleNamespace) -> None:
    wrong = toy.grids.Ensemble("wrong", "Wrong", ("one-online", "three"), series=())
    with pytest.raises(ValueError, match="three-seed0"):
        toy.grids.rows(toy.methods, (wrong,), (0,))
