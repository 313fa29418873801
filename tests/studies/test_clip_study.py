from __future__ import annotations

import pytest

from quintet.errors import RecipeError
from quintet.studies.expand import build_study
from quintet.training.recipe import load_recipe


@pytest.mark.parametrize(("recipe", "loss"), [("clip-scenes", "contrastive"), ("siglip-scenes", "sigmoid")])
def test_second_rounds_differ_in_their_negatives_alone(recipe: str, loss: str) -> None:
    study = build_study("clip", load_recipe(recipe))
    stages = {variant.key: variant.recipe["stages"] for variant in study.variants}
    assert list(stages) == ["online", "longer", "mined", "adap-off-quin"]
    (first,), (longer,), (mined,), (adaptive,) = stages.values()
    assert (first["init"], first["negatives"]) == ("scratch", None)
    assert longer["loss"][loss].pop("offline") is False
    assert mined["loss"][loss].pop("offline") is True
    assert longer["loss"] == mined["loss"]
    assert mined["negatives"]["from"] == adaptive["negatives"]["from"] == "@online"
    assert list(adaptive["loss"]) == ["quintuplet"]
    rest = [{key: value for key, value in one.items() if key not in ("loss", "negatives")} for one in (longer, mined)]
    assert rest[0] == rest[1] == {key: adaptive[key] for key in rest[0]}
    assert rest[0]["init"] == "@online"


def test_a_recipe_without_a_mining_round_is_refused() -> None:
    with pytest.raises(RecipeError, match="two rounds"):
        build_study("clip", load_recipe("vse-scenes"))
