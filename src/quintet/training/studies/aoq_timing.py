"""Seconds per training batch of the losses of several variants, on the same batch (AOQ supplement)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintet.data.tokenizers import load_tokenizer
from quintet.report.analysis.loss_timing import time_losses, timing_batch
from quintet.runs.run import open_run
from quintet.training.build import Objectives, build_objective, open_data
from quintet.training.recipe_models import StageRecipe
from quintet.training.studies.study import Trained


def time_batches(trained: Trained, first: str, labels: Mapping[str, str], repeats: int = 20) -> list[dict[str, Any]]:
    """One row per variant in `labels`: its last stage's losses, on the first batch of the variant `first`.

    The batch's offline negatives are drawn from the whole split. Which ones they are makes no difference to the time.
    """
    recipe = trained.recipes[first]
    data = open_data(recipe, lambda _: None)
    tokenizer = load_tokenizer(trained.folders[first] / "tokenizer.json")
    matcher = open_run(trained.folders[first], device=trained.device).matcher
    batch = timing_batch(recipe, data, tokenizer, matcher).to(trained.device)
    objectives: dict[str, Objectives] = {
        key: build_objective(past_warmup(trained.recipes[key].stages[-1]), matcher, tokenizer, data) for key in labels
    }
    rows = time_losses(matcher, batch, objectives, repeats=repeats)
    return [row | {"label": labels[row["loss"]]} for row in rows]


def past_warmup(stage: StageRecipe) -> StageRecipe:
    """The first epochs of a warm-up are another loss; what is timed is the one that comes after."""
    loss = {
        name: {key: value for key, value in arguments.items() if not key.startswith("warmup")}
        for name, arguments in stage.loss.items()
    }
    return stage.model_copy(update={"loss": loss})
