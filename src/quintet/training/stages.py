"""Trains a recipe: its stages one after the other, in a run folder that can be resumed at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from quintet import distributed
from quintet.data.negatives import NegativeLists
from quintet.data.tokenizers import Tokenizer, load_tokenizer
from quintet.errors import RecipeError, RunError, suggest
from quintet.files import read_json, user_path, write_text
from quintet.mining.mine import mine
from quintet.models import MODELS
from quintet.protocols import Matcher, module_of
from quintet.runs.checkpoint import load_tensors, load_weights
from quintet.runs.devices import pick_device
from quintet.runs.run import load
from quintet.runs.run_folder import locate, read_head, shipped_runs
from quintet.runs.writing import finish_run, start_run
from quintet.training.build import (
    build_matcher,
    build_objective,
    build_tokenizer,
    complete_model,
    continue_objective,
    initial_weights,
)
from quintet.training.clusters import assign_categories, require_clustering
from quintet.training.inputs import TrainingData, keep_inputs, open_data
from quintet.training.logs import Display, Silent
from quintet.training.loop import StageTrainer, check_metric
from quintet.training.optim import freeze, make_optimizer
from quintet.training.recipe import load_recipe, recipe_yaml, with_whole_paths
from quintet.training.recipe_models import NegativesRecipe, Recipe, StageRecipe


def check_stages(recipe: Recipe, model: dict[str, Any], tokenizer: Tokenizer, data: TrainingData) -> None:
    """Build what each stage names once and drop it: a mistake in the last stage is reported before the first runs."""
    matcher: Matcher = MODELS.create(model["name"], **model["arguments"])
    if recipe.data.augment.words:
        tokenizer.kinds()  # raises if the vocabulary has no mask
    trainable = {parameter: parameter.requires_grad for parameter in matcher.parameters()}
    for number, stage in enumerate(recipe.stages):
        earlier = [before.name for before in recipe.stages[:number]]
        _check_source(f"stage {stage.name!r}: init", stage.init, ["scratch", *(["previous"] if number else [])])
        if stage.negatives is not None:
            _check_source(f"stage {stage.name!r}: negatives.from", stage.negatives.source, earlier)
        check_metric(stage.select)
        objective = build_objective(stage, matcher, tokenizer, data)
        if stage.batches.kind == "neighbours" or objective.categorised:
            require_clustering()
        module = nn.ModuleDict({"matcher": module_of(matcher), "objective": objective})
        freeze(module, stage.freeze)
        make_optimizer(module, stage.optimizer)
        for parameter, wanted in trainable.items():
            parameter.requires_grad_(wanted)


def _check_source(where: str, name: str, known: list[str]) -> None:
    """Raise unless `name` is known or a run."""
    if name in known:
        return
    if not Path(name).exists() and name not in shipped_runs():
        hint = f"; {suggest(name, known)}" if known else ""
        raise RecipeError(f"{where}: {name!r} is not a run folder or a known stage{hint}")
    read_head(locate(name)[0])


def stage_negatives(
    recipe: NegativesRecipe,
    *,
    out: Path,
    stages: list[str],
    folder: Path,
    data: TrainingData,
    device: torch.device,
    display: Display,
) -> NegativeLists:
    """Open the lists in `folder`, or mine them first. A mining job that was killed is resumed."""
    own = recipe.source in stages
    miner = load(out, stage=recipe.source, device=device) if own else load(recipe.source, device=device)
    counts = f"{len(data.train.images)} images and {len(data.train.texts)} texts"
    display.info(f"hard negatives of {counts}, mined with {miner.name}")
    lists = mine(miner, data.corpus, split=data.train, out=folder / "negatives", **recipe.mining())
    lists.check(data.train, miner.weights_checksum)
    return lists


def train(
    recipe: Recipe, out: Path | str, *, device: torch.device | str = "auto", display: Display | None = None
) -> dict[str, Any]:
    """Train a recipe into a new run folder. Returns the selected validation metrics of each stage."""
    out = user_path(out)
    if (out / "run.json").exists():
        raise RunError(
            f"{out} holds a run already; resume it with `quintet train --resume {out}`, or choose another folder"
        )
    display = display or Silent()
    chosen = pick_device(device)
    with distributed.process_group(chosen):
        data = open_data(recipe, display.note)
        tokenizer = build_tokenizer(recipe.data.tokenizer, data.train)
        model = complete_model(recipe, data, tokenizer)
        check_stages(recipe, model, tokenizer, data)
        if distributed.is_main():
            write_text(out / "recipe.yaml", recipe_yaml(with_whole_paths(recipe)))
            start_run(
                out,
                name=recipe.name,
                model=model,
                tokenizer=tokenizer,
                image_input=data.image_input(),
                corpus=data.corpus.root,
                splits=data.checksums(),
            )
        distributed.barrier()
        return _run_stages(recipe, out, data, tokenizer, chosen, display)


def resume(out: Path | str, *, device: torch.device | str = "auto", display: Display | None = None) -> dict[str, Any]:
    """Continue a run exactly from its last checkpoint."""
    out = user_path(out)
    head = read_head(out)
    if head["status"] == "complete":
        return dict(head.get("stages", {}))
    if not (out / "tokenizer.json").is_file() or not (out / "recipe.yaml").is_file():
        raise RunError(f"{out} stopped before its first step and cannot be resumed; remove the folder and train again")
    display = display or Silent()
    chosen = pick_device(device)
    with distributed.process_group(chosen):
        recipe = load_recipe(out / "recipe.yaml")
        data = open_data(recipe, display.note)
        if head.get("splits") != data.checksums():
            raise RunError(
                f"the corpus {data.corpus.root} has changed since {out} was started: other ids, groups or splits; "
                "restore it, or train into a new folder"
            )
        tokenizer = load_tokenizer(out / "tokenizer.json")
        return _run_stages(recipe, out, data, tokenizer, chosen, display)


def _run_stages(
    recipe: Recipe, out: Path, data: TrainingData, tokenizer: Tokenizer, device: torch.device, display: Display
) -> dict[str, Any]:
    model = read_json(out / "model.json")
    data = keep_inputs(data, recipe.data, device)
    summaries: dict[str, Any] = {}
    previous: Path | None = None
    for number, stage in enumerate(recipe.stages):
        folder = out / "stages" / stage.name
        if (folder / "done.json").is_file():
            summaries[stage.name] = read_json(folder / "done.json")
            if distributed.is_main():  # left over if the run was killed between the two files
                (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        else:
            trainer = _make_trainer(recipe, number, stage, model, data, tokenizer, out, previous, device, display)
            summaries[stage.name] = trainer.run(resume=True)
        previous = folder / "selected.safetensors"
    assert previous is not None
    if distributed.is_main():
        finish_run(out, load_tensors(previous)[0], {"stages": summaries})
    distributed.barrier()
    return summaries


def _make_trainer(
    recipe: Recipe,
    number: int,
    stage: StageRecipe,
    model: dict[str, Any],
    data: TrainingData,
    tokenizer: Tokenizer,
    out: Path,
    previous: Path | None,
    device: torch.device,
    display: Display,
) -> StageTrainer:
    folder = out / "stages" / stage.name
    # The same initial weights whether or not an earlier stage ran in this process.
    torch.manual_seed(_mix(recipe.seed, number, 0))
    matcher = build_matcher(model, recipe.data.tokenizer, tokenizer, recipe.seed)
    weights = initial_weights(stage, previous)
    if weights is not None:
        load_weights(matcher, weights, Path(stage.init))
    objective = build_objective(stage, matcher, tokenizer, data)
    continue_objective(objective, stage, previous, display.note)
    assign_categories(objective, matcher, data, folder=folder, seed=(recipe.seed, number), device=device)
    negatives = None
    if stage.negatives is not None:
        names = [earlier.name for earlier in recipe.stages]
        negatives = stage_negatives(
            stage.negatives, out=out, stages=names, folder=folder, data=data, device=device, display=display
        )
    torch.manual_seed(_mix(recipe.seed, number, 1 + distributed.rank()))  # dropout differs between processes
    return StageTrainer(
        stage,
        matcher,
        objective,
        data,
        tokenizer,
        folder=folder,
        seed=(recipe.seed, number),
        device=device,
        augment=recipe.data.augment,
        workers=recipe.data.workers,
        display=display,
        negatives=negatives,
    )


def _mix(seed: int, stage: int, stream: int) -> int:
    return (seed * 1009 + stage) * 10_007 + stream
