"""Variants that are overrides of one base recipe, written as on the command line of `quintet train`."""

from __future__ import annotations

import inspect
from typing import Any

from quintet.losses import OBJECTIVES
from quintet.models import MODELS
from quintet.registry import Registry
from quintet.training.recipe import parse_recipe
from quintet.training.recipe_models import Recipe
from quintet.training.studies.study import Row, Variant


class Overrides:
    """The variants of a study as they come together; the first is the base itself. None is trained twice."""

    def __init__(self, base: Recipe, key: str, label: str) -> None:
        self.key = key
        self.base = base.model_dump(mode="json", by_alias=True)
        self.variants = [Variant(key, label, self.base)]
        self._known = {key: _with_defaults(base)}

    def row(self, key: str, label: str, *overrides: str, marks: tuple[str, ...] = ()) -> Row:
        """A line of a table: a further variant, or a known one where the overrides come to the same."""
        recipe = parse_recipe(self.base, overrides, where=f"variant {key!r}")
        whole = _with_defaults(recipe)
        known = next((name for name, other in self._known.items() if other == whole), None)
        if known is not None:
            return Row(known, label, marks)
        content = recipe.model_dump(mode="json", by_alias=True)
        self.variants.append(Variant(key, label, content | {"name": f"{recipe.name}-{key}"}))
        self._known[key] = whole
        return Row(key, label, marks)


def _with_defaults(recipe: Recipe) -> dict[str, Any]:
    """The recipe with what its matcher and its losses take where it says nothing."""
    content = recipe.model_dump(mode="json", by_alias=True)
    content["matcher"] = _defaults(MODELS, recipe.matcher.name) | content["matcher"]
    for stage in content["stages"]:
        stage["loss"] = {name: _defaults(OBJECTIVES, name) | given for name, given in stage["loss"].items()}
    return content


def _defaults(registry: Registry, name: str) -> dict[str, Any]:
    parameters = registry.parameters(name).items()
    return {key: given.default for key, given in parameters if given.default is not inspect.Parameter.empty}
