"""How the stages of a recipe are divided into the two rounds that a study compares."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from quintet.errors import RecipeError
from quintet.training.recipe_models import NegativesRecipe, Recipe

Stages = list[dict[str, Any]]  # as in a recipe's content

QUINTUPLET = "quintuplet"
ROUND_ONE = "@online"
BOTH_ROUNDS = ("same_group", "warmup_epochs", "warmup", "weight")  # arguments that the losses of both rounds have


def online_offline(recipe: Recipe) -> tuple[Stages, Stages]:
    """AOQ: the stages before the quintuplet loss, and those from it on, which mine with the run of round one.

    A recipe with one of the two rounds gets the other: its nearest stage with the other round's loss.
    """
    content = recipe.model_dump(mode="json", by_alias=True)["stages"]
    names = [stage.name for stage in recipe.stages]
    with_quintuplet = [number for number, stage in enumerate(recipe.stages) if QUINTUPLET in stage.loss]
    if len(with_quintuplet) > 1:
        raise RecipeError(
            f"recipe {recipe.name!r} has {len(with_quintuplet)} stages with the quintuplet loss; a study needs one"
        )
    cut = with_quintuplet[0] if with_quintuplet else len(names)
    first = content[:cut] or [_with_triplet(content[0])]
    second = content[cut:] or [_with_quintuplet(content[-1])]
    return first, _from_round_one(second, names[:cut])


def _with_quintuplet(stage: dict[str, Any]) -> dict[str, Any]:
    """The same stage with the quintuplet loss for the triplet loss."""
    if "triplet" not in stage["loss"]:
        raise RecipeError(f"stage {stage['name']!r} has no triplet loss that the quintuplet loss could replace")
    triplet = stage["loss"]["triplet"]
    kept = {key: triplet[key] for key in BOTH_ROUNDS if key in triplet}
    loss = {QUINTUPLET: {"margin_online": triplet.get("margin", 0.2), **kept}}
    others = {name: arguments for name, arguments in stage["loss"].items() if name != "triplet"}
    negatives = NegativesRecipe(source=ROUND_ONE).model_dump(mode="json", by_alias=True)
    return copy.deepcopy(stage) | {"name": "offline", "loss": loss | others, "negatives": negatives}


def _with_triplet(stage: dict[str, Any]) -> dict[str, Any]:
    """The same stage with the triplet loss for the quintuplet loss: the baseline of a recipe with a teacher."""
    quintuplet = stage["loss"][QUINTUPLET]
    kept = {key: quintuplet[key] for key in BOTH_ROUNDS if key in quintuplet}
    loss = {"triplet": {"margin": quintuplet.get("margin_online", 0.2), "negatives": "hardest", **kept}}
    others = {name: arguments for name, arguments in stage["loss"].items() if name != QUINTUPLET}
    return copy.deepcopy(stage) | {"name": "online", "loss": loss | others, "negatives": None}


def instance_ranking(recipe: Recipe) -> tuple[Stages, Stages]:
    """Dual-Path: stage I with the instance loss alone, then stage II with instance and ranking loss together."""
    *first, last = recipe.stages
    alone = first and all(set(stage.loss) == {"instance"} for stage in first)
    if not alone or set(last.loss) != {"instance", "ranking"}:
        raise RecipeError(
            f"recipe {recipe.name!r} has not the two stages that this study compares: the instance loss alone, then "
            "instance and ranking loss together"
        )
    content = recipe.model_dump(mode="json", by_alias=True)["stages"]
    return content[:-1], content[-1:]


def before_mining(recipe: Recipe) -> tuple[Stages, Stages]:
    """The stages before the first with offline negatives, and those from it on, which mine with round one's run."""
    content = recipe.model_dump(mode="json", by_alias=True)["stages"]
    names = [stage.name for stage in recipe.stages]
    cut = next((number for number, stage in enumerate(recipe.stages) if stage.negatives is not None), 0)
    if cut == 0:
        raise RecipeError(
            f"recipe {recipe.name!r} has not the two rounds that this study compares: stages without `negatives`, then "
            "one that mines with them, as in clip-scenes"
        )
    return content[:cut], _from_round_one(content[cut:], names[:cut])


def _from_round_one(second: Stages, first: list[str]) -> Stages:
    """The second round, with the run of round one in place of its stages."""
    if second[0]["negatives"]["from"] in first:
        second[0]["negatives"]["from"] = ROUND_ONE
    if second[0]["init"] == "previous":
        second[0]["init"] = ROUND_ONE
    return second


ROUNDS: dict[str, Callable[[Recipe], tuple[Stages, Stages]]] = {
    "online-offline": online_offline,
    "instance-ranking": instance_ranking,
    "before-mining": before_mining,
}
