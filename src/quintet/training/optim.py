"""What an optimizer step changes: frozen parts, parameter groups, learning rates, gradient clipping."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from quintet import distributed
from quintet.errors import RecipeError
from quintet.layers.normalize import BATCH_NORMS
from quintet.training.recipe_models import GroupRecipe, OptimizerRecipe, ScheduleRecipe


def freeze(module: nn.Module, patterns: Iterable[str]) -> None:
    """Freeze the parameters whose names match a pattern. A pattern that matches nothing is an error."""
    named = dict(module.named_parameters())
    for pattern in patterns:
        matched = [parameter for name, parameter in named.items() if fnmatchcase(name, pattern)]
        if not matched:
            raise RecipeError(f"freeze pattern {pattern!r} matches no parameter; names look like {_some(named)}")
        for parameter in matched:
            parameter.requires_grad_(False)


def frozen_modules(module: nn.Module, patterns: Iterable[str]) -> list[nn.Module]:
    """The outermost modules whose parameters all match, so that nothing in them is trained."""
    patterns = tuple(patterns)
    found: dict[str, nn.Module] = {}
    for name, part in module.named_modules():
        inside = [f"{name}.{leaf}" if name else leaf for leaf, _ in part.named_parameters()]
        covered = any(name.startswith(f"{outer}.") for outer in found)
        if inside and not covered and all(any(fnmatchcase(leaf, p) for p in patterns) for leaf in inside):
            found[name] = part
    return list(found.values())


def hold_statistics(modules: Iterable[nn.Module]) -> None:
    """BatchNorms in training mode normalise with the batch's statistics and leave their running ones unchanged."""
    for part in (inner for module in modules for inner in module.modules()):
        if isinstance(part, BATCH_NORMS):
            part.momentum = 0.0


def clip_gradients(parameters: Sequence[nn.Parameter], largest: float) -> Tensor:
    """Scale the gradients so that their total norm is at most `largest`. Returns the norm before.

    What is sharded over processes counts once, so that all processes scale alike.
    """
    shared_out = [parameter for parameter in parameters if distributed.is_sharded(parameter)]
    if distributed.world_size() == 1 or not shared_out:
        return nn.utils.clip_grad_norm_(parameters, largest)
    rest = [parameter for parameter in parameters if not distributed.is_sharded(parameter)]
    common, own = (
        nn.utils.get_total_norm([_here(part.grad) for part in parts if part.grad is not None])
        for parts in (rest, shared_out)
    )
    norm = (common.square() + distributed.all_reduce_sum(own.square())).sqrt()
    for of_fsdp in (False, True):  # no kernel takes both
        some = [parameter for parameter in parameters if distributed.is_dtensor(parameter) == of_fsdp]
        nn.utils.clip_grads_with_norm_(some, largest, norm)
    return norm


def _here(gradient: Tensor) -> Tensor:
    """What this process has of it."""
    return gradient.to_local() if distributed.is_dtensor(gradient) else gradient  # type: ignore[attr-defined]


def transformer_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that layer-wise decay counts and FSDP shards, inner ones first."""
    found = (_LAYER.match(name) for name, _ in module.named_parameters())
    names = dict.fromkeys(match[0].rstrip(".") for match in found if match is not None)
    return [module.get_submodule(name) for name in sorted(names, key=lambda name: -name.count("."))]


def make_optimizer(module: nn.Module, recipe: OptimizerRecipe) -> torch.optim.Optimizer:
    """An optimizer with the groups of the recipe.

    A parameter joins the first group whose pattern matches its name; the rest are in a default group.
    """
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not named:
        raise RecipeError("there is nothing to train: every parameter is frozen")
    depths = layer_depths(module) if recipe.layer_decay < 1 else {}
    # (number of the group, layers above, of FSDP: kernels for many parameters take one sort) -> its parameters
    members: dict[tuple[int, int, bool], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        matches = (number for number, group in enumerate(recipe.groups) if fnmatchcase(name, group.match))
        group_of = next(matches, len(recipe.groups)), depths.get(name, 0), distributed.is_dtensor(parameter)
        members.setdefault(group_of, []).append(parameter)
    for number, group in enumerate(recipe.groups):
        if all(member != number for member, *_ in members):
            raise RecipeError(
                f"optimizer group {group.match!r} matches no trainable parameter; names look like {_some(named)}"
            )
    rest = GroupRecipe(match="*")
    settings = []
    for (number, depth, _), parameters in sorted(members.items(), key=lambda member: member[0]):
        group = (*recipe.groups, rest)[number]
        decay = recipe.weight_decay if group.weight_decay is None else group.weight_decay
        lr = recipe.lr * group.lr_scale * recipe.layer_decay**depth
        settings.append({"params": parameters, "base_lr": lr, "weight_decay": decay})
    if recipe.name == "sgd":
        return torch.optim.SGD(settings, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.name]
    on_gpu = all(parameter.is_cuda for parameter in named.values())
    return kind(settings, lr=recipe.lr, fused=True if on_gpu else None)  # one kernel instead of dozens


def layer_depths(module: nn.Module) -> dict[str, int]:
    """How many layers a parameter of a transformer has above it, as layer-wise decay counts: the last layer has one.

    What feeds the first layer (embeddings, patches) has one more than that; heads and projections have none.
    """
    layers: dict[str, dict[int, list[str]]] = {}  # of each transformer, by number
    for name, _ in module.named_parameters():
        if (found := _LAYER.match(name)) is not None:
            layers.setdefault(found["tower"], {}).setdefault(int(found["number"]), []).append(name)
    if not layers:
        raise RecipeError("optimizer.layer_decay is for transformers, and this matcher has no numbered layers")
    depths: dict[str, int] = {}
    for tower, numbered in layers.items():
        count = max(numbered) + 1
        depths |= {name: count - number for number, names in numbered.items() for name in names}
        root = tower.rsplit(".", 1)[0]  # what holds the stack of layers and, beside it, the embeddings
        for name, _ in module.named_parameters():
            if name not in depths and name.startswith(f"{root}.") and _INPUT.search(name[len(root) :]):
                depths[name] = count + 1
    return depths


# A layer of a transformer: `...encoder.layers.3.` and what other libraries call it.
_LAYER = re.compile(r"(?P<tower>.+)\.(layers?|blocks|resblocks|h)\.(?P<number>\d+)\.")
_INPUT = re.compile(r"embed|cls_token|pre_?laye?rnorm")


def _some(named: dict[str, nn.Parameter]) -> str:
    return ", ".join(repr(name) for name in list(named)[:3])


def lr_factor(recipe: ScheduleRecipe, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The factor of the learning rate at optimizer step `step` (from 0).

    >>> lr_factor(ScheduleRecipe(kind="step", every=2), step=25, steps_per_epoch=10, epochs=4)
    0.1
    """
    epoch = step / steps_per_epoch
    if recipe.kind == "step":
        factor = recipe.factor ** (int(epoch) // recipe.every)
    elif recipe.kind == "multistep":
        factor = recipe.factor ** sum(epoch >= milestone for milestone in recipe.milestones)
    elif recipe.kind == "cosine":
        factor = recipe.floor + (1 - recipe.floor) * (1 + math.cos(math.pi * min(1.0, epoch / epochs))) / 2
    else:
        factor = 1.0
    return factor * min(1.0, (step + 1) / recipe.warmup_steps) if recipe.warmup_steps else factor


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
