"""Runs that mine with the same matcher in the same way share the lists: the first one mines, the others copy."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from quintet.files import atomic_write
from quintet.training.recipe_models import NegativesRecipe, Recipe, StageRecipe


def share_lists(run: Path, recipe: Recipe, siblings: Mapping[Path, Recipe]) -> None:
    """Copy into a run that is about to start the lists that a sibling has mined. Training checks them as ever."""
    for stage in recipe.stages:
        source = _find(stage, siblings)
        target = run / "stages" / stage.name / "negatives"
        if source is None or (target / "manifest.json").is_file():
            continue
        # The manifest comes last: until it is there, the folder holds no lists and training would mine.
        for path in sorted(source.iterdir(), key=lambda path: path.name == "manifest.json"):
            with atomic_write(target / path.name) as temporary:
                shutil.copyfile(path, temporary)


def _find(stage: StageRecipe, siblings: Mapping[Path, Recipe]) -> Path | None:
    if stage.negatives is None:
        return None
    wanted = stage.negatives
    for folder, recipe in siblings.items():
        names = {other.name for other in recipe.stages}
        for other in recipe.stages:
            lists = folder / "stages" / other.name / "negatives"
            same = other.negatives is not None and _mined_alike(other.negatives, wanted)
            # A stage mined with by its name belongs to one run alone.
            if same and wanted.source not in names and (lists / "manifest.json").is_file():
                return lists
    return None


def _mined_alike(one: NegativesRecipe, other: NegativesRecipe) -> bool:
    return one.source == other.source and one.mining() == other.mining()
