"""Time per training batch of each loss (AOQ supplement, its table of training efficiency)."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from quintet.data.batches import PairBatch
from quintet.data.corpus import Split
from quintet.data.loading import load_pairs
from quintet.data.negatives import OfflineRows
from quintet.data.sampling import epoch_batches
from quintet.data.tokenizers import Tokenizer, load_tokenizer
from quintet.losses.step import Progress, Step
from quintet.protocols import Matcher, module_of
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.analysis.hard_negatives import recipe_of
from quintet.runs.run import Run
from quintet.training.build import build_objective
from quintet.training.inputs import TrainingData, open_data, texts_of
from quintet.training.recipe_models import Recipe, StageRecipe
from quintet.training.rounds import QUINTUPLET, online_offline

# The four rows of the paper's table: the online baseline, then Eq. 3, 4 and 5.
ROWS = {"online": None, "OffTri": "triplet", "OffQuin": "quintuplet", "AdapOffQuin": "adaptive"}


def paper_stages(recipe: Recipe) -> dict[str, StageRecipe]:
    """The stage behind each row: those of the recipe's two rounds, with their other losses (VSRN's captions)."""
    first, second = (rounds[-1] for rounds in online_offline(recipe))
    stages = {}
    for name, variant in ROWS.items():
        content = copy.deepcopy(first if variant is None else second)
        if variant is not None:
            content["loss"][QUINTUPLET]["variant"] = variant
        stages[name] = StageRecipe.model_validate(content)
    return stages


def time_stages(
    run: Run, recipe: Recipe, stages: Mapping[str, StageRecipe], *, repeats: int = 20
) -> list[dict[str, Any]]:
    """Time the losses of each stage, all of them and after their warm-up, with a run's matcher.

    The batch is the first one of `recipe`.
    """
    data = open_data(recipe, lambda _: None)
    tokenizer = load_tokenizer(run.folder / "tokenizer.json")
    batch = timing_batch(recipe, data, tokenizer, run.matcher).to(run.device)
    objectives = {
        name: build_objective(past_warmup(stage), run.matcher, tokenizer, data) for name, stage in stages.items()
    }
    return time_losses(run.matcher, batch, objectives, repeats=repeats)


def past_warmup(stage: StageRecipe) -> StageRecipe:
    """The stage without the warm-up of its losses: what is timed is the loss that comes after it."""
    loss = {
        name: {key: value for key, value in arguments.items() if not key.startswith("warmup")}
        for name, arguments in stage.loss.items()
    }
    return stage.model_copy(update={"loss": loss})


def time_losses(
    matcher: Matcher,
    batch: PairBatch,
    objectives: Mapping[str, nn.Module],
    *,
    repeats: int = 20,
    warmup: int = 3,
) -> list[dict[str, Any]]:
    """Seconds per training step (encode, score, loss, backward, Adam) of each loss on one batch with offline negatives.

    The batch is already on the matcher's device: loader processes read offline negatives from disk during training, so
    that time is not counted. The losses take turns, so that a machine that slows down slows them all. The matcher is
    not changed. Each row has the median and the fastest step, and the median relative to the first loss.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    steppers = {
        name: _Stepper(copy.deepcopy(matcher), copy.deepcopy(objective), batch)
        for name, objective in objectives.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for turn in range(warmup + repeats):
        for name, stepper in steppers.items():
            spent = stepper.timed()
            if turn >= warmup:
                seconds[name].append(spent)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    first = next(iter(medians.values()))
    return [
        {
            "loss": name,
            "seconds": medians[name],
            "fastest": min(found),
            "relative": medians[name] / first,
            "batch": len(batch),
            "repeats": repeats,
        }
        for name, found in seconds.items()
    ]


class _Stepper:
    """Trains one loss on its own copy of the matcher."""

    def __init__(self, matcher: Matcher, objective: nn.Module, batch: PairBatch) -> None:
        self.matcher, self.objective, self.batch = matcher, objective, batch
        self.device = batch.text_groups.device
        self.module = nn.ModuleList([module_of(matcher), objective]).to(self.device).train()
        self.optimizer = torch.optim.Adam(
            [parameter for parameter in self.module.parameters() if parameter.requires_grad], lr=1e-6
        )

    def timed(self) -> float:
        self._wait()
        began = time.perf_counter()
        terms = self.objective(Step(self.matcher, self.batch, Progress()))
        torch.stack([term.weight * term.values.sum() for term in terms.values()]).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def timing_batch(recipe: Recipe, data: TrainingData, tokenizer: Tokenizer, matcher: Matcher) -> PairBatch:
    """The first batch that a recipe trains on, with offline negatives drawn from the whole split.

    Which negatives these are makes no difference to the time.
    """
    batches = recipe.stages[-1].batches
    pairs = epoch_batches(data.train, batches.size, seed=(recipe.seed, 0, 0), per=batches.per)[0]
    rng = np.random.default_rng(recipe.seed)
    source = data.image_source(matcher, recipe.data.augment)
    rows = any_negatives(data.train, len(pairs), rng)
    texts = texts_of(tokenizer, data.train, recipe.data.augment)
    return next(load_pairs(data.train, source, texts, [pairs], seed=(0,), offline=lambda _: rows))


def any_negatives(split: Split, n: int, rng: np.random.Generator) -> OfflineRows:
    """n quadruples with the shapes of mined negatives, drawn from the whole split."""
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


def timing(subjects: Sequence[Subject], options: Options) -> Finding:
    """Seconds per batch of AOQ's losses with the matcher of each run and everything else that its recipe trains."""
    recipes = {subject.label: recipe_of(subject.run.folder) for subject in subjects}
    stages = {label: paper_stages(recipe) for label, recipe in recipes.items()}
    return Finding(
        {"runs": {one.label: time_stages(one.run, recipes[one.label], stages[one.label]) for one in subjects}}
    )
