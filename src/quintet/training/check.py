"""Is a recipe one that can be trained? Asked for all of its stages before the run folder is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from quintet.data.neighbours import require_clustering
from quintet.data.tokenizers import Tokenizer
from quintet.errors import RecipeError, suggest
from quintet.models import MODELS
from quintet.training.build import TrainingData, build_objective
from quintet.training.optim import freeze, make_optimizer
from quintet.training.recipe_models import Recipe
from quintet.training.run import locate, read_head
from quintet.training.shipped import shipped_runs
from quintet.training.validation import check_metric


def check_stages(recipe: Recipe, model: dict[str, Any], tokenizer: Tokenizer, data: TrainingData) -> None:
    """Build what each stage names, once, and throw it away: a slip in the last stage is told before the first runs."""
    matcher = MODELS.create(model["name"], **model["arguments"])
    if recipe.data.augment.words:
        tokenizer.kinds()  # a vocabulary without a mask is told now
    trainable = {parameter: parameter.requires_grad for parameter in matcher.parameters()}
    for number, stage in enumerate(recipe.stages):
        earlier = [before.name for before in recipe.stages[:number]]
        _check_source(f"stage {stage.name!r}: init", stage.init, ["scratch", *(["previous"] if number else [])])
        if stage.negatives is not None:
            _check_source(f"stage {stage.name!r}: negatives.from", stage.negatives.source, earlier)
        check_metric(stage.select)
        objective = build_objective(stage, matcher, tokenizer, data)
        wants_categories = any(getattr(part, "categories", None) for part in objective.parts.values())
        if stage.batches.kind == "neighbours" or wants_categories:
            require_clustering()
        module = nn.ModuleDict({"matcher": matcher, "objective": objective})
        freeze(module, stage.freeze)
        make_optimizer(module, stage.optimizer)
        for parameter, wanted in trainable.items():
            parameter.requires_grad_(wanted)


def _check_source(where: str, name: str, known: list[str]) -> None:
    """A name that is known, or a run folder."""
    if name in known:
        return
    if not Path(name).exists() and name not in shipped_runs():
        hint = f"; {suggest(name, known)}" if known else ""
        raise RecipeError(f"{where}: {name!r} is no run folder, and no name that means anything here{hint}")
    read_head(locate(name)[0])
