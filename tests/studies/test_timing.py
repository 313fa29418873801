"""Seconds per batch: `quintet study --timing` and `quintet analyse --what timing` time the same losses."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quintet.data.corpus import Corpus
from quintet.losses.step import Progress, Step
from quintet.report.analysis import loss_timing, open_subjects
from quintet.report.analysis.loss_timing import time_losses
from quintet.runs.devices import pick_device
from quintet.studies.expand import build_study
from quintet.studies.measurements import timing
from quintet.studies.variants import Trained
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


@pytest.fixture
def terms(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, set[str]]]:
    """The terms of every loss that is timed."""
    seen: list[tuple[str, set[str]]] = []

    def look(matcher: Any, batch: Any, objectives: Mapping[str, Any], **options: Any) -> list[dict[str, Any]]:
        trained = copy.deepcopy(matcher).train()
        seen.extend((key, set(one(Step(trained, batch, Progress())))) for key, one in objectives.items())
        return time_losses(matcher, batch, objectives, **{**options, "repeats": 1, "warmup": 0})

    monkeypatch.setattr(loss_timing, "time_losses", look)
    return seen


def test_what_is_timed_is_each_variants_own_loss_after_its_warm_up(
    tiny_recipe: dict[str, Any], tmp_path: Path, terms: list[tuple[str, set[str]]]
) -> None:
    first = parse_recipe(tiny_recipe)
    train_recipe(first, tmp_path / "run", device="cpu")
    tiny_recipe["stages"][0] |= {"loss": {"quintuplet": {"warmup_epochs": 9}}, "negatives": {"from": "runs/none"}}
    recipes = {"online": first, "second": parse_recipe(tiny_recipe)}
    labels = {"online": "A", "second": "A + B"}
    rows = timing(Trained(dict.fromkeys(recipes, tmp_path / "run"), recipes, labels, "cpu"), repeats=2)
    assert [row["label"] for row in rows] == ["A", "A + B"]
    assert [row["batch"] for row in rows] == [6, 6]
    assert rows[0]["relative"] == 1.0
    found = dict(terms)
    assert found["online"] == {"triplet.text", "triplet.image"}
    assert {"quintuplet.offline_text", "quintuplet.derived_pair"} <= found["second"], "no longer warming up"


def test_study_and_analysis_time_the_same_losses_with_everything_that_trains(
    tiny_recipe: dict[str, Any], tiny_corpus: Path, tmp_path: Path, terms: list[tuple[str, set[str]]]
) -> None:
    tiny_recipe["matcher"] = {"name": "vsrn", "variant": "f30k", "embed_dim": 8, "word_dim": 6}
    tiny_recipe["stages"][0]["loss"]["caption"] = {"hidden": 8, "word_dim": 6}
    tiny_recipe["stages"][0]["epochs"] = 1
    recipe = parse_recipe(tiny_recipe)
    train_recipe(recipe, tmp_path / "run", device="cpu")
    study = build_study("aoq", recipe, timing=True)
    (extra,) = (extra for extra in study.extras if extra.key == "timing")
    recipes = {key: parse_recipe(study.variant(key).content(0)) for key in extra.labels}
    extra.measure(Trained(dict.fromkeys(recipes, tmp_path / "run"), recipes, extra.labels, "cpu"))
    of_study = [found for _, found in terms]
    terms.clear()
    subjects = open_subjects([tmp_path / "run"], Corpus.open(tiny_corpus), "test", device=pick_device("cpu"))
    loss_timing.timing(subjects, options=None)  # type: ignore[arg-type]
    of_analysis = [found for _, found in terms]
    assert of_study == of_analysis
    assert len(of_study) == 4
    assert all("caption.caption" in found for found in of_study)
