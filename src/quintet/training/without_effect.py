"""What a stage says and never does: a warm-up that outlasts it, batches that never begin, settings of another kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from quintet import distributed
from quintet.data.corpus import Split
from quintet.data.sampling import epoch_batches
from quintet.losses import OBJECTIVES
from quintet.protocols import UsesOfflineNegatives
from quintet.training.recipe_models import BatchRecipe, NegativesRecipe, OptimizerRecipe, ScheduleRecipe, StageRecipe

# Loss -> arguments that it reads only where another one has such a value.
ADAPTIVE = ("adaptive", "without_offline_adaptation")
READ_WITH: dict[str, dict[tuple[str, ...], tuple[str, Callable[[Any], bool]]]] = {
    "triplet": {("warmup",): ("warmup_epochs", bool)},
    "quintuplet": {
        ("warmup",): ("warmup_epochs", bool),
        ("alpha", "beta", "detach", "clamp"): ("variant", lambda variant: variant in ADAPTIVE),
        ("margin_online",): ("variant", lambda variant: variant != "only_offline"),
    },
    "ranking": {("pool",): ("negatives", lambda negatives: negatives == "hardest")},
}


def optimizer_steps(stage: StageRecipe, train: Split) -> int:
    """How many optimizer steps a stage takes."""
    batches = epoch_batches(
        train, stage.batches.size, seed=(0,), per=stage.batches.per, drop_last=stage.batches.drop_last
    )
    return stage.epochs * -(-len(batches) // stage.accumulate)


def settings_without_effect(stage: StageRecipe, steps: int) -> list[str]:
    """The settings of a stage of `steps` optimizer steps that never take effect, in words.

    >>> stage = StageRecipe(name="one", loss={"triplet": {"warmup_epochs": 3}}, epochs=3)
    >>> settings_without_effect(stage, 30)
    ["the warm-up of loss 'triplet' (warmup_epochs: 3) lasts all 3 epochs of stage 'one': what follows it never begins"]
    """
    return [*_losses(stage, steps), *_batches(stage), *_schedule(stage, steps), *_others(stage)]


def _losses(stage: StageRecipe, steps: int) -> Iterator[str]:
    for name, given in stage.loss.items():
        defaults = {key: parameter.default for key, parameter in OBJECTIVES.parameters(name).items()}
        arguments: dict[str, Any] = {k: v for k, v in defaults.items() if v is not inspect.Parameter.empty} | given
        for names, (other, is_read) in READ_WITH.get(name, {}).items():
            for key in [] if is_read(arguments[other]) else names:
                if arguments[key] != defaults[key]:
                    value = arguments[other]
                    yield f"loss.{name}.{key} has no effect with {other}: {value} (stage {stage.name!r})"
        if arguments.get("relations") == "none":  # nothing follows
            continue
        epochs, first = arguments.get("warmup_epochs", 0), arguments.get("warmup_steps", 0)
        end = f"of stage {stage.name!r}: what follows it never begins"
        if epochs and epochs >= stage.epochs:
            yield f"the warm-up of loss {name!r} (warmup_epochs: {epochs}) lasts all {stage.epochs} epochs {end}"
        elif first and first >= steps:
            yield f"the warm-up of loss {name!r} (warmup_steps: {first}) lasts all {steps} steps {end}"


def _batches(stage: StageRecipe) -> Iterator[str]:
    batches = stage.batches
    if batches.chunk is not None and batches.chunk >= batches.size:
        yield (
            f"batches.chunk: {batches.chunk} has no effect on batches of {batches.size} pairs (stage {stage.name!r})"
        )
    if batches.kind == "random":
        yield from _unread(
            stage, batches, BatchRecipe(), "batches", ("from_epoch", "refresh", "per_cluster", "clusters")
        )
    elif batches.from_epoch >= stage.epochs:
        yield (
            f"neighbour batches (from_epoch: {batches.from_epoch}) never begin in the {stage.epochs} epochs of stage "
            f"{stage.name!r}"
        )


def _schedule(stage: StageRecipe, steps: int) -> Iterator[str]:
    schedule, where = stage.schedule, f"the {stage.epochs} epochs of stage {stage.name!r}"
    if schedule.kind == "step" and schedule.every >= stage.epochs:
        yield f"the learning rate never decays (schedule.every: {schedule.every}) in {where}"
    late = [milestone for milestone in schedule.milestones if milestone >= stage.epochs]
    if schedule.kind == "multistep" and late:
        yield f"schedule.milestones {', '.join(f'{milestone:g}' for milestone in late)} are not reached in {where}"
    if schedule.warmup_steps >= steps:
        yield f"the learning rate is warmed up for all {steps} steps of stage {stage.name!r} (schedule.warmup_steps)"
    of_kind = {"step": ("every", "factor"), "multistep": ("milestones", "factor"), "cosine": ("floor",), "constant": ()}
    others = {"every", "milestones", "factor", "floor"} - set(of_kind[schedule.kind])
    yield from _unread(stage, schedule, ScheduleRecipe(), "schedule", sorted(others))


def _others(stage: StageRecipe) -> Iterator[str]:
    if stage.shard and distributed.world_size() == 1:
        yield f"shard: true has no effect with one process (stage {stage.name!r}); torchrun starts several"
    if stage.optimizer.name != "sgd":
        yield from _unread(stage, stage.optimizer, OptimizerRecipe(), "optimizer", ("momentum", "nesterov"), "name")
    if stage.frozen == "train" and not stage.freeze:
        yield f"frozen: train has no effect: nothing is frozen in stage {stage.name!r}"
    if stage.negatives is not None:
        if not any(_reads_negatives(name, given) for name, given in stage.loss.items()):
            yield f"negatives are mined for stage {stage.name!r}, and no loss of it reads them"
        if stage.negatives.distribution == "uniform":
            plain = NegativesRecipe(source=stage.negatives.source)
            yield from _unread(stage, stage.negatives, plain, "negatives", ("mean", "std"), "distribution")


def _reads_negatives(name: str, given: dict[str, Any]) -> bool:
    loss = OBJECTIVES.builder(name)
    return isinstance(loss, UsesOfflineNegatives) and bool(given.get("offline", loss.uses_offline))


def _unread(
    stage: StageRecipe, given: BaseModel, plain: BaseModel, part: str, names: Any, kind: str = "kind"
) -> Iterator[str]:
    """Settings that are not the default and that the kind in use does not read."""
    for name in names:
        if getattr(given, name) != getattr(plain, name):
            yield f"{part}.{name} has no effect with {kind}: {getattr(given, kind)} (stage {stage.name!r})"
