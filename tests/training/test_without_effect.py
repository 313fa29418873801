"""Settings of a stage that never take effect are told before training, on the run, and beside its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.data.corpus import Corpus
from quintet.files import read_json
from quintet.training.logs import Silent
from quintet.training.recipe import list_recipes, load_recipe, parse_recipe
from quintet.training.recipe_models import StageRecipe
from quintet.training.stages import train_recipe
from quintet.training.without_effect import optimizer_steps, settings_without_effect

AOQ = {"negatives": {"from": "x"}}


def stage(**settings: Any) -> StageRecipe:
    return StageRecipe.model_validate({"name": "one", "loss": {"triplet": {}}, "epochs": 4} | settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": {"triplet": {"warmup_epochs": 4}}}, "warmup_epochs: 4"),
        ({"loss": {"relation": {"warmup_steps": 40}}}, "warmup_steps: 40"),
        ({"loss": {"relation": {"warmup_epochs": 5}}}, "warmup_epochs: 5"),
        ({"batches": {"kind": "neighbours", "from_epoch": 4}}, "from_epoch: 4"),
        ({"batches": {"from_epoch": 2}}, "batches.from_epoch"),
        ({"schedule": {"kind": "step", "every": 4}}, "never decays"),
        ({"schedule": {"kind": "multistep", "milestones": [2, 4, 6]}}, "4, 6 are not reached"),
        ({"schedule": {"warmup_steps": 40}}, "schedule.warmup_steps"),
        ({"schedule": {"kind": "cosine", "every": 3}}, "schedule.every"),
        ({"optimizer": {"nesterov": True}}, "optimizer.nesterov"),
        ({"frozen": "train"}, "nothing is frozen"),
        ({"negatives": {"from": "x"}}, "no loss of it reads them"),
        ({"loss": {"quintuplet": {}}, "negatives": {"from": "x", "std": 0.1}}, "negatives.std"),
        ({"loss": {"triplet": {"warmup": "softmax"}}}, "loss.triplet.warmup"),
        (AOQ | {"loss": {"quintuplet": {"variant": "triplet", "alpha": 0.5}}}, "loss.quintuplet.alpha"),
        (AOQ | {"loss": {"quintuplet": {"variant": "quintuplet", "clamp": True}}}, "loss.quintuplet.clamp"),
        (AOQ | {"loss": {"quintuplet": {"variant": "only_offline", "margin_online": 0.1}}}, "margin_online"),
        ({"loss": {"ranking": {"pool": 9}}}, "loss.ranking.pool"),
    ],
)
def test_each_is_told(settings: dict[str, Any], words: str) -> None:
    (message,) = settings_without_effect(stage(**settings), 40)
    assert words in message
    assert "'one'" in message


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": {"triplet": {"warmup_epochs": 3.9}}},
        {"loss": {"relation": {"warmup_steps": 39}}},
        {"loss": {"relation": {"warmup_steps": 50, "relations": "none"}}},
        {"batches": {"kind": "neighbours", "from_epoch": 3, "per_cluster": 4}},
        {"schedule": {"kind": "step", "every": 3, "factor": 0.5}},
        {"schedule": {"kind": "multistep", "milestones": [3]}},
        {"optimizer": {"name": "sgd", "nesterov": True}},
        {"loss": {"quintuplet": {}}, "negatives": {"from": "x", "distribution": "normal", "std": 0.1}},
        {"loss": {"triplet": {"warmup": "softmax", "warmup_epochs": 1}}},
        AOQ | {"loss": {"quintuplet": {"variant": "without_offline_adaptation", "alpha": 0.5, "margin_online": 0.1}}},
        {"loss": {"ranking": {"pool": 9, "negatives": "hardest"}}},
    ],
)
def test_what_takes_effect_is_not_told(settings: dict[str, Any]) -> None:
    assert settings_without_effect(stage(**settings), 40) == []


@pytest.mark.parametrize("name", list_recipes())
def test_every_setting_of_a_shipped_recipe_takes_effect(name: str) -> None:
    found = [message for each in load_recipe(name).stages for message in settings_without_effect(each, 30_000)]
    # The README of BFAN's authors: 15 epochs, and a decay every 15.
    assert found == (
        ["the learning rate never decays (schedule.every: 15) in the 15 epochs of stage 'online'"]
        if name.startswith(("bfan-", "aoq-bfan-")) and name.endswith("-f30k") and "teacher" not in name
        else []
    )


class Notes(Silent):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, message: str) -> None:
        self.seen.append(message)


def test_it_is_told_before_training_and_stays_with_the_run(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_recipe, ["stages.online.loss.triplet.warmup_epochs=2"])
    display = Notes()
    train_recipe(recipe, tmp_path / "run", device="cpu", display=display)
    (message,) = (note for note in display.seen if "warm-up" in note)
    assert read_json(tmp_path / "run" / "run.json")["stages"]["online"]["without_effect"] == [message]
    result = quintet.evaluate(tmp_path / "run", bootstrap=0)
    assert message in result.table(width=300)
    assert result.to_json()["provenance"]["runs"][0]["notes"] == (message,)


def test_steps_are_those_that_are_taken(tiny_recipe: dict[str, Any], tiny_corpus: Path, tmp_path: Path) -> None:
    tiny_recipe["stages"][0] |= {"accumulate": 2, "batches": {"size": 7, "drop_last": True}}
    recipe = parse_recipe(tiny_recipe)
    summary = train_recipe(recipe, tmp_path / "run", device="cpu")
    train = Corpus.open(tiny_corpus).split("train")
    assert optimizer_steps(recipe.stages[0], train) == summary["online"]["steps"]
