from __future__ import annotations

import numpy as np
import pytest

from quintet.errors import RecipeError
from quintet.models import MODELS
from quintet.registry import Registry

THINGS = Registry(
    "thing", {"fraction": "fractions:Fraction", "join": "tests.nowhere:join", "divide": "operator:floordiv"}
)


def test_names_builders_and_arguments() -> None:
    assert THINGS.names() == ["divide", "fraction", "join"]
    assert str(THINGS.create("fraction", numerator=1, denominator=2)) == "1/2"
    assert list(THINGS.parameters("fraction"))[:2] == ["numerator", "denominator"]


def test_mistakes_name_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"'fractoin'.*'fraction'"):
        THINGS.create("fractoin")
    with pytest.raises(RecipeError, match=r"'numerater'.*'numerator'"):
        THINGS.create("fraction", numerater=1)
    with pytest.raises(RecipeError, match="needs the argument"):
        THINGS.create("divide")


def test_a_refusing_builder_is_explained() -> None:
    with pytest.raises(RecipeError, match="refused its arguments"):
        THINGS.create("fraction", numerator="x")


def test_facts_fill_what_nobody_set() -> None:
    assert THINGS.complete("fraction", {"numerator": 1}, {"numerator": 9, "denominator": 2, "other": 3}) == {
        "numerator": 1,
        "denominator": 2,
    }


def test_a_value_of_another_type_is_told_by_its_name() -> None:
    sizes = {"image_dim": 8, "vocabulary_size": 10, "embed_dim": 4, "word_dim": 4}
    for wrong in ({"lambda_softmax": "abc"}, {"lambda_softmax": float("nan")}, {"embed_dim": 4.5}, {"embed_dim": -4}):
        with pytest.raises(RecipeError, match=f"{next(iter(wrong))} cannot be"):
            MODELS.create("scan", **(sizes | wrong))
    for wrong_choice in ({"direction": ["t2i"]}, {"direction": "t2j"}):
        with pytest.raises(RecipeError, match="direction cannot be"):
            MODELS.create("scan", **(sizes | wrong_choice))
    MODELS.create("scan", **(sizes | {"lambda_softmax": np.float64(9)}))
