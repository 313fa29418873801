from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintet.errors import RecipeError
from quintet.studies.variants import Layout, Row, Study, Variant, differences


def test_a_mark_becomes_the_run_folder_of_the_same_seed(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0]["init"] = "@first"
    variant = Variant("second", "Second", tiny_recipe)
    assert variant.needs == ("first",)
    recipe = variant.recipe_for(5, {"first": tmp_path / "runs" / "first-seed5"})
    assert recipe.seed == 5
    assert recipe.stages[0].init == str((tmp_path / "runs" / "first-seed5").resolve())
    assert variant.content(5)["stages"][0]["init"] == "@first", "what is compared later names no folder"
    assert "seed" not in tiny_recipe, "the variant's own content stays as it was"


def test_a_broken_variant_is_named(tiny_recipe: dict[str, Any]) -> None:
    tiny_recipe["stages"][0]["epoch"] = 3
    with pytest.raises(RecipeError, match=r"'odd'.*'epochs'"):
        Variant("odd", "Odd", tiny_recipe).content(0)


def test_studies_that_cannot_be_run_are_refused() -> None:
    first, second = Variant("first", "First", {}), Variant("second", "Second", {"init": "@first"})
    Study("s", "b", "first", (first, second), ())
    with pytest.raises(ValueError, match="needs 'first'"):
        Study("s", "b", "first", (second, first), ())
    with pytest.raises(ValueError, match="two variants"):
        Study("s", "b", "first", (first, first), ())
    with pytest.raises(ValueError, match="no variant 'third'"):
        Study("s", "b", "first", (first,), (Layout("t", (Row("third", "Third"),)),))
    with pytest.raises(ValueError, match="no variant 'zero'"):
        Study("s", "b", "zero", (first,), ())


def test_differences_name_the_place() -> None:
    old = {"stages": [{"epochs": 2, "loss": {"triplet": {}}}], "seed": 0}
    new = {"stages": [{"epochs": 3, "loss": {"triplet": {"margin": 0.1}}}], "seed": 0}
    assert list(differences(old, old)) == []
    assert list(differences(old, new)) == [
        "stages.0.epochs is 2, not 3",
        "stages.0.loss.triplet.margin is None, not 0.1",
    ]
    assert list(differences([1], [1, 2])) == [" is [1], not [1, 2]"]
