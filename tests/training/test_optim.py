from __future__ import annotations

import pytest
import torch
from torch import nn

from quintet.errors import RecipeError
from quintet.training.optim import freeze, frozen_modules, hold_statistics, lr_factor, make_optimizer, set_lr
from quintet.training.recipe_models import GroupRecipe, OptimizerRecipe, ScheduleRecipe


def module() -> nn.ModuleDict:
    return nn.ModuleDict({"tower": nn.Linear(2, 2), "head": nn.Linear(2, 2)})


def test_groups_take_the_first_match_and_the_rest_is_default() -> None:
    recipe = OptimizerRecipe(
        name="adamw",
        lr=0.1,
        weight_decay=0.5,
        groups=(GroupRecipe(match="tower.*", lr_scale=0.01, weight_decay=0.0), GroupRecipe(match="*.bias", lr_scale=2)),
    )
    optimizer = make_optimizer(module(), recipe)
    set_lr(optimizer, 0.5)
    seen = [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert seen == [(2, pytest.approx(0.0005), 0.0), (1, pytest.approx(0.1), 0.5), (1, pytest.approx(0.05), 0.5)]


def test_group_and_freeze_patterns_must_match() -> None:
    with pytest.raises(RecipeError, match="matches no trainable parameter"):
        make_optimizer(module(), OptimizerRecipe(groups=(GroupRecipe(match="towers.*"),)))
    with pytest.raises(RecipeError, match="matches no parameter"):
        freeze(module(), ["towers.*"])


def test_frozen_parameters_are_left_out() -> None:
    parts = module()
    freeze(parts, ["tower.*"])
    optimizer = make_optimizer(parts, OptimizerRecipe())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    freeze(parts, ["head.*"])
    with pytest.raises(RecipeError, match="nothing to train"):
        make_optimizer(parts, OptimizerRecipe())


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_three_steps_of_each_optimizer_by_hand(name: str, nesterov: bool) -> None:
    gradients, lr, decay, momentum = (1.0, -0.5, 2.0), 0.1, 0.25, 0.6
    weight = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    settings = {"name": name, "lr": lr, "weight_decay": decay, "momentum": momentum, "nesterov": nesterov}
    optimizer = make_optimizer(nn.ParameterDict({"w": weight}), OptimizerRecipe.model_validate(settings))
    w, first, second = 3.0, 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        g = gradient + (0 if name == "adamw" else decay * w)
        if name == "sgd":
            first = g if step == 1 else momentum * first + g
            w -= lr * (g + momentum * first if nesterov else first)
        else:
            w *= 1 - lr * decay if name == "adamw" else 1
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            w -= lr * first / (1 - 0.9**step) / ((second / (1 - 0.999**step)) ** 0.5 + 1e-8)
        assert weight.item() == pytest.approx(w)


@pytest.mark.parametrize(
    ("recipe", "step", "expected"),
    [
        (ScheduleRecipe(), 999, 1.0),
        (ScheduleRecipe(kind="step", every=15), 149, 1.0),
        (ScheduleRecipe(kind="step", every=15), 150, 0.1),
        (ScheduleRecipe(kind="step", every=15), 300, 0.01),
        (ScheduleRecipe(kind="multistep", milestones=(15, 25)), 149, 1.0),
        (ScheduleRecipe(kind="multistep", milestones=(15, 25)), 250, 0.01),
        (ScheduleRecipe(kind="cosine"), 0, 1.0),
        (ScheduleRecipe(kind="cosine", floor=0.2), 150, 0.6),
        (ScheduleRecipe(kind="cosine", floor=0.2), 300, 0.2),
        (ScheduleRecipe(warmup_steps=10), 0, 0.1),
        (ScheduleRecipe(warmup_steps=10), 9, 1.0),
    ],
)
def test_schedules_by_hand(recipe: ScheduleRecipe, step: int, expected: float) -> None:
    assert lr_factor(recipe, step, steps_per_epoch=10, epochs=30) == pytest.approx(expected)


def test_frozen_modules_are_the_outermost_ones_without_anything_to_train() -> None:
    tower = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout())
    parts = nn.ModuleDict({"tower": tower, "towers": nn.Linear(2, 2), "head": nn.Sequential(nn.Linear(2, 2))})
    assert frozen_modules(parts, ["tower.*"]) == [tower]
    assert frozen_modules(parts, ["tower.0.*"]) == [tower[0]]
    assert frozen_modules(parts, ["*.weight"]) == [], "their biases are trained"
    assert frozen_modules(parts, ["tower.*", "head.*"]) == [tower, parts["head"]]
    assert frozen_modules(parts, []) == []


def test_held_statistics_stay_while_the_batch_is_normalised() -> None:
    norm = nn.BatchNorm1d(3)
    hold_statistics([nn.Sequential(norm)])
    x = 5 + torch.randn(40, 3)
    assert norm.train()(x).mean().abs() < 1e-5, "by the statistics of the batch"
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert torch.equal(norm.running_var, torch.ones(3))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(2, 2)
        self.pre_layrnorm = nn.LayerNorm(2)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])})
        self.post_layernorm = nn.LayerNorm(2)


def test_layer_decay_by_hand() -> None:
    parts = nn.ModuleDict({"vision": Tower(), "head": nn.Linear(2, 2)})
    recipe = OptimizerRecipe(lr=1.0, layer_decay=0.5, groups=(GroupRecipe(match="*.bias", lr_scale=10),))
    optimizer = make_optimizer(parts, recipe)
    set_lr(optimizer, 1.0)
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    found = {name: rates[id(parameter)] for name, parameter in parts.named_parameters()}
    assert len(found) == len(rates)
    assert {name: rate for name, rate in found.items() if not name.endswith("bias")} == {
        "vision.embeddings.weight": 0.0625,
        "vision.pre_layrnorm.weight": 0.0625,
        "vision.encoder.layers.0.weight": 0.125,
        "vision.encoder.layers.1.weight": 0.25,
        "vision.encoder.layers.2.weight": 0.5,
        "vision.post_layernorm.weight": 1.0,
        "head.weight": 1.0,
    }
    assert found["vision.encoder.layers.0.bias"] == 1.25


def test_layer_decay_needs_layers() -> None:
    with pytest.raises(RecipeError, match="no numbered layers"):
        make_optimizer(module(), OptimizerRecipe(layer_decay=0.5))
