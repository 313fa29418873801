"""Training a recipe: its stages one after the other, in a run folder that can be resumed at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from quintet import processes
from quintet.data.tokenizers import Tokenizer, load_tokenizer
from quintet.errors import RunError
from quintet.files import read_json, write_text
from quintet.training.build import (
    TrainingData,
    build_matcher,
    build_objective,
    build_tokenizer,
    complete_model,
    initial_weights,
    keep_inputs,
    open_data,
)
from quintet.training.categories import assign_categories
from quintet.training.check import check_stages
from quintet.training.checkpoint import load_tensors
from quintet.training.devices import pick_device
from quintet.training.logs import Display, Silent
from quintet.training.loop import StageTrainer
from quintet.training.negatives import stage_negatives
from quintet.training.objective_state import continue_objective
from quintet.training.recipe import load_recipe, recipe_yaml, with_whole_paths
from quintet.training.recipe_models import Recipe, StageRecipe
from quintet.training.run import finish_run, load_weights, read_head, start_run


def train(recipe: Recipe, out: Path | str, *, device: str = "auto", display: Display | None = None) -> dict[str, Any]:
    """Train a recipe into a new run folder. Returns the selected validation metrics of each stage."""
    out = Path(out)
    if (out / "run.json").exists():
        raise RunError(
            f"{out} holds a run already; resume it with `quintet train --resume {out}`, or choose another folder"
        )
    display = display or Silent()
    place = pick_device(device)
    with processes.joined(place):
        data = open_data(recipe, display.note)
        tokenizer = build_tokenizer(recipe.data.tokenizer, data.train)
        model = complete_model(recipe, data, tokenizer)
        check_stages(recipe, model, tokenizer, data)
        if processes.is_first():
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
        processes.barrier()
        return _run_stages(recipe, out, data, tokenizer, place, display)


def resume(out: Path | str, *, device: str = "auto", display: Display | None = None) -> dict[str, Any]:
    """Go on with a run exactly where its last checkpoint stands."""
    out = Path(out)
    head = read_head(out)
    if head["status"] == "complete":
        return dict(head.get("stages", {}))
    if not (out / "tokenizer.json").is_file() or not (out / "recipe.yaml").is_file():
        raise RunError(f"{out} stopped before its first step and cannot be resumed; remove the folder and train again")
    display = display or Silent()
    place = pick_device(device)
    with processes.joined(place):
        recipe = load_recipe(out / "recipe.yaml")
        data = open_data(recipe, display.note)
        if head.get("splits") != data.checksums():
            raise RunError(
                f"the corpus {data.corpus.root} has changed since {out} was started: other ids, groups or splits; "
                "put it back as it was, or train anew"
            )
        tokenizer = load_tokenizer(out / "tokenizer.json")
        return _run_stages(recipe, out, data, tokenizer, place, display)


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
            if processes.is_first():  # killed between the two: the stage is done, its checkpoint is of no more use
                (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        else:
            trainer = _make_trainer(recipe, number, stage, model, data, tokenizer, out, previous, device, display)
            summaries[stage.name] = trainer.run(resume=True)
        previous = folder / "selected.safetensors"
    assert previous is not None
    if processes.is_first():
        finish_run(out, load_tensors(previous)[0], {"stages": summaries})
    processes.barrier()
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
    # The same first weights whether or not an earlier stage ran in this process; dropout differs between processes.
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
    torch.manual_seed(_mix(recipe.seed, number, 1 + processes.rank()))
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
