from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintet.errors import RecipeError
from quintet.models import MODELS
from quintet.studies.expand import build_study
from quintet.studies.runner import Settings, run_study
from quintet.studies.variants import Study
from quintet.training.recipe import load_recipe, parse_recipe
from quintet.training.recipe_models import Recipe


def recipe_of(study: Study, key: str) -> Recipe:
    return parse_recipe(study.variant(key).content(0))


def test_the_papers_ablations() -> None:
    study = build_study("mmca", load_recipe("mmca-f30k"), ablations=True)
    assert [variant.key for variant in study.variants] == [
        *("mmca", "dim64", "dim128", "dim512", "without-cross", "alpha0.1", "alpha0.4", "alpha0.8", "without-self")
    ]
    assert study.reference == "mmca"
    dimension, weight = study.tables[1:]
    assert [(row.variant, row.label) for row in dimension.rows] == [
        *(("dim64", "64d"), ("dim128", "128d"), ("mmca", "256d"), ("dim512", "512d"))
    ]
    assert [row.variant for row in weight.rows] == [
        *("without-cross", "alpha0.1", "mmca", "alpha0.4", "alpha0.8", "without-self")
    ]
    assert len(dimension.columns) == len(weight.columns) == 6, "the paper has no rsum"
    assert "Table 6" in weight.title
    base = recipe_of(study, "mmca")
    assert base == load_recipe("mmca-f30k")
    for variant in study.variants:
        recipe = recipe_of(study, variant.key)
        assert recipe.stages == base.stages
        assert recipe.matcher.arguments.keys() <= MODELS.parameters("mmca").keys()
        changed = {k: v for k, v in recipe.matcher.arguments.items() if base.matcher.arguments.get(k) != v}
        assert len(changed) == {"mmca": 0, "without-self": 2}.get(variant.key, 1), "one thing at a time"
    assert recipe_of(study, "without-cross").matcher.arguments["cross"] is False


def test_options_one_by_one() -> None:
    base = load_recipe("mmca-scenes")
    assert [variant.key for variant in build_study("mmca", base).variants] == ["mmca"]
    study = build_study("mmca", base, dimension=[64, 128])
    assert [row.variant for row in study.tables[1].rows] == ["dim64", "mmca"], "scenes has 128 already"
    study = build_study("mmca", base, alpha=[0.4, 0.4])
    assert [row.label for row in study.tables[1].rows] == ["α = 0.4"]  # noqa: RUF001
    assert [variant.key for variant in build_study("mmca", base, without_cross=True).variants] == [
        "mmca",
        "without-cross",
    ]
    with pytest.raises(RecipeError, match="recipe of matcher 'mmca'"):
        build_study("mmca", load_recipe("scan-t2i-lse-f30k"))


def test_it_trains_and_fills_in_the_tables(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["matcher"] = {"name": "mmca", "text": "small", "text_dim": 8, "text_layers": 1, "embed_dim": 8}
    tiny_recipe["matcher"] |= {"heads": 2, "filters": 4, "text_heads": 2}
    tiny_recipe["stages"][0] |= {"epochs": 1}
    study = build_study("mmca", parse_recipe(tiny_recipe), dimension=[8], alpha=[0.2], without_cross=True)
    summary = run_study(study, tmp_path / "out", Settings(seeds=(0,), device="cpu", bootstrap=0, resamples=20))
    assert all(run["status"] == "trained" for found in summary["variants"].values() for run in found["runs"])
    text = (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    for label in ("8d", "α = 0, no cross module", "α = 0.2"):  # noqa: RUF001
        assert label in rows
