"""Mined negatives and what losses cost (AOQ): of runs that were trained here, from what they left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quintet.data.negatives import NegativeLists
from quintet.data.sampling import epoch_batches
from quintet.data.tokenizers import load_tokenizer
from quintet.errors import RunError
from quintet.evaluation.hardness import measure_top_share, replay_draws
from quintet.evaluation.loss_timing import time_losses
from quintet.report.analysis.subject import Finding, Options, Subject
from quintet.training.build import TrainingData, open_data
from quintet.training.loop import DRAWING, OFFLINE
from quintet.training.recipe import load_recipe
from quintet.training.recipe_models import Recipe, StageRecipe
from quintet.training.studies.aoq_timing import timing_batch

TOPS = (1, 10, 100)


def mined(subjects: Sequence[Subject], options: Options) -> Finding:
    """How hard the mined negatives were that a run drew in its first epoch, beside what a random batch offers."""
    found: dict[str, Any] = {}
    for subject in subjects:
        recipe = _recipe(subject.run.folder)
        data = open_data(recipe, lambda _: None)
        for number, stage in enumerate(recipe.stages):
            folder = subject.run.folder / "stages" / stage.name / "negatives"
            if stage.negatives is not None and (folder / "manifest.json").is_file():
                lists = NegativeLists.open(folder)
                lists.check(data.train)
                settings = stage.negatives.model_dump(include=DRAWING)
                found[f"{subject.label}: {stage.name}"] = {
                    "online": _online(lists, data, stage, options),
                    "drawn": replay_draws(lists, data.train, _first_epoch(recipe, number, data), **settings),
                }
    if not found:
        raise RunError(f"no stage of {', '.join(subject.label for subject in subjects)} trained with mined negatives")
    return Finding({"stages": found})


def _online(lists: NegativeLists, data: TrainingData, stage: StageRecipe, options: Options) -> dict[str, Any]:
    """By k: how often a random batch of the stage's size holds one of an anchor's k hardest negatives."""
    longest = max(lists.texts.shape[1], lists.images.shape[1])
    size = min(stage.batches.size, len(data.train.texts))
    groups = data.train.image_groups, data.train.text_groups
    return {
        f"top{k}": measure_top_share(
            lists, *groups, size, k, batches=options.batches, rng=np.random.default_rng(options.seed)
        )
        for k in TOPS
        if k <= longest
    }


def _first_epoch(recipe: Recipe, number: int, data: TrainingData) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
    """The batches of a stage's first epoch and the random numbers that its draws started from."""
    batches, seed = recipe.stages[number].batches, (recipe.seed, number, 0)
    plan = epoch_batches(data.train, batches.size, seed=seed, per=batches.per, drop_last=batches.drop_last)
    for place, pairs in enumerate(plan):
        yield pairs, np.random.default_rng((*seed, place, OFFLINE))


def timing(subjects: Sequence[Subject], options: Options) -> Finding:
    """Seconds per batch of AOQ's losses with each run's matcher, on the first batch of its recipe (supplement)."""
    found = {}
    for subject in subjects:
        recipe = _recipe(subject.run.folder)
        data = open_data(recipe, lambda _: None)
        tokenizer = load_tokenizer(subject.run.folder / "tokenizer.json")
        batch = timing_batch(recipe, data, tokenizer, subject.run.matcher).to(subject.device)
        found[subject.label] = time_losses(subject.run.matcher, batch)
    return Finding({"runs": found})


def _recipe(folder: Path) -> Recipe:
    if not (folder / "recipe.yaml").is_file():
        raise RunError(f"{folder} was not trained here: it has no recipe.yaml")
    return load_recipe(folder / "recipe.yaml")
