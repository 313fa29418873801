from __future__ import annotations

from typing import Any

import pytest

from quintet.errors import RecipeError
from quintet.training.recipe import parse_recipe
from quintet.training.studies.overrides import Overrides


def test_what_comes_to_the_same_is_trained_once(tiny_recipe: dict[str, Any]) -> None:
    plan = Overrides(parse_recipe(tiny_recipe), "base", "Base")
    assert plan.row("other", "as it is").variant == "base"
    assert plan.row("pooled", "pooled", "matcher.pooling=mean").variant == "base", "which is what the matcher takes"
    assert plan.row("margin", "margin", "stages.online.loss.triplet.margin=0.20").variant == "base"
    first = plan.row("wide", "wide", "matcher.embed_dim=16", marks=("x",))
    assert (first.variant, first.label, first.marks) == ("wide", "wide", ("x",))
    assert plan.row("again", "wide again", "matcher.embed_dim=16").variant == "wide"


def test_a_variant_is_the_base_with_its_overrides(tiny_recipe: dict[str, Any]) -> None:
    plan = Overrides(parse_recipe(tiny_recipe), "base", "Base")
    plan.row("wide", "Wide", "matcher.embed_dim=16", "stages.*.epochs=5")
    base, wide = (parse_recipe(variant.content(3)) for variant in plan.variants)
    assert (wide.name, wide.matcher.arguments["embed_dim"], wide.stages[0].epochs, wide.seed) == ("tiny-wide", 16, 5, 3)
    assert wide.stages[0].loss == base.stages[0].loss
    with pytest.raises(RecipeError, match="did you mean 'online'"):
        plan.row("typo", "Typo", "stages.onlin.epochs=5")
