from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintet.losses.step import Progress, Step
from quintet.report.analysis.loss_timing import time_losses
from quintet.studies import measurements
from quintet.studies.measurements import timing
from quintet.studies.variants import Trained
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


def test_what_is_timed_is_each_variants_own_loss_after_its_warm_up(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms: dict[str, set[str]] = {}

    def look(matcher: Any, batch: Any, objectives: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        for key, objective in objectives.items():
            terms[key] = set(objective(Step(matcher, batch, Progress())))
        return time_losses(matcher, batch, objectives, **options)

    monkeypatch.setattr(measurements, "time_losses", look)
    first = parse_recipe(tiny_recipe)
    train_recipe(first, tmp_path / "run", device="cpu")
    tiny_recipe["stages"][0] |= {"loss": {"quintuplet": {"warmup_epochs": 9}}, "negatives": {"from": "runs/none"}}
    recipes = {"online": first, "second": parse_recipe(tiny_recipe)}
    labels = {"online": "A", "second": "A + B"}
    rows = timing(Trained(dict.fromkeys(recipes, tmp_path / "run"), recipes, labels, "cpu"), repeats=2)
    assert [row["label"] for row in rows] == ["A", "A + B"]
    assert [row["batch"] for row in rows] == [6, 6]
    assert rows[0]["relative"] == 1.0
    assert terms["online"] == {"triplet.text", "triplet.image"}
    assert {"quintuplet.offline_text", "quintuplet.derived_pair"} <= terms["second"], "no longer warming up"
