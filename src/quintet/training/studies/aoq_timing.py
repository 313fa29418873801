"""Seconds per training batch of the losses of several variants, on the same batch (AOQ supplement)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quintet.data.batches import PairBatch
from quintet.data.corpus import Split
from quintet.data.loading import load_pairs
from quintet.data.negatives import OfflineRows
from quintet.data.sampling import epoch_batches
from quintet.data.tokenizers import Tokenizer, load_tokenizer
from quintet.evaluation.loss_timing import time_losses
from quintet.protocols import Matcher
from quintet.runs.run import open_run
from quintet.training.build import Objectives, TrainingData, build_objective, open_data, texts_of
from quintet.training.recipe_models import Recipe, StageRecipe
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


def timing_batch(recipe: Recipe, data: TrainingData, tokenizer: Tokenizer, matcher: Matcher) -> PairBatch:
    """The first batch that a recipe trains on, with negatives from anywhere in the split."""
    batches = recipe.stages[-1].batches
    pairs = epoch_batches(data.train, batches.size, seed=(recipe.seed, 0, 0), per=batches.per)[0]
    rng = np.random.default_rng(recipe.seed)
    source = data.image_source(matcher, recipe.data.augment)
    rows = any_negatives(data.train, len(pairs), rng)
    sentences = texts_of(tokenizer, data.train, recipe.data.augment)
    return next(load_pairs(data.train, source, sentences, [pairs], seed=(0,), offline=lambda _: rows))


def any_negatives(split: Split, n: int, rng: np.random.Generator) -> OfflineRows:
    """n quadruples of the shape that mined negatives have, from anywhere in the split."""
    off_text = rng.integers(len(split.texts), size=n)
    off_image = rng.integers(len(split.images), size=n)
    return OfflineRows(
        off_text=off_text,
        off_image=off_image,
        derived_image=np.array([split.images_of_text[row][0] for row in off_text]),
        derived_text=np.array([split.texts_of_group[split.image_groups[row]][0] for row in off_image]),
        text_rank=np.zeros(n, np.int64),
        image_rank=np.zeros(n, np.int64),
        corresponding=np.zeros(n, bool),
    )


def past_warmup(stage: StageRecipe) -> StageRecipe:
    """The first epochs of a warm-up are another loss; what is timed is the one that comes after."""
    loss = {
        name: {key: value for key, value in arguments.items() if not key.startswith("warmup")}
        for name, arguments in stage.loss.items()
    }
    return stage.model_copy(update={"loss": loss})
