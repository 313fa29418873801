from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quintet.data.corpus import Corpus, Split
from quintet.evaluation.result import load_ranks
from quintet.evaluation.scoring import Member
from quintet.files import read_json, write_json
from quintet.studies.measurements import Measurement, measure_run, training_seconds
from quintet.studies.variants import Measure
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


@pytest.fixture
def run(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    return tmp_path / "run"


def measure(
    run: Path, corpus: Path, *protocols: str, bootstrap: int = 0, measures: tuple[Measure, ...] = ()
) -> dict[str, Measurement]:
    opened = Corpus.open(corpus)
    options: dict[str, Any] = {"device": "cpu", "block": 1024, "bootstrap": bootstrap, "facts": {"seed": 7}}
    options["measures"] = measures
    return measure_run(run.name, [run], opened, opened.split("test"), protocols, run.parent / "results", **options)


@pytest.mark.usefixtures("folds_of_any_size")
def test_what_holds_is_kept_and_what_does_not_is_measured_again(run: Path, tiny_corpus: Path) -> None:
    found = measure(run, tiny_corpus, "full")["full"]
    content = found.content()
    assert content["provenance"]["seed"] == 7
    assert len(load_ranks(found.ranks)[0].image_groups) == content["counts"]["images"] == 6
    before = found.result.stat().st_mtime_ns
    assert measure(run, tiny_corpus, "full", "5fold")["full"].result.stat().st_mtime_ns == before
    assert (run.parent / "results" / "run.5fold.json").is_file()

    content["provenance"]["runs"][0]["weights_sha256"] = "of other weights"
    content["metrics"]["rsum"] = -1.0
    write_json(found.result, content)
    assert measure(run, tiny_corpus, "full")["full"].content()["metrics"]["rsum"] >= 0

    found.ranks.unlink()
    measure(run, tiny_corpus, "full")
    assert found.ranks.is_file()

    assert not found.content()["intervals"]
    assert measure(run, tiny_corpus, "full", bootstrap=20)["full"].content()["intervals"]


@pytest.mark.usefixtures("folds_of_any_size")
def test_further_measures_stand_among_the_metrics_and_are_made_once(run: Path, tiny_corpus: Path) -> None:
    calls = []

    def half_the_texts(members: Sequence[Member], split: Split) -> float:
        calls.append(len(members[0].image_codes))
        return len(split.texts) / 2

    plain = measure(run, tiny_corpus, "full")["full"].content()["metrics"]
    for _ in range(2):
        found = measure(run, tiny_corpus, "full", "5fold", measures=(Measure("half", half_the_texts),))
        assert found["full"].content()["metrics"] == plain | {"half": 6.0}
        assert found["5fold"].content()["metrics"]["half"] == 6.0
    assert calls == [6]


def test_training_seconds_are_those_of_the_epochs(run: Path) -> None:
    log = (run / "stages" / "online" / "log.jsonl").read_text(encoding="utf-8")
    assert log.count('"seconds"') == 2
    assert 0 < training_seconds(run) < 60
    assert read_json(run / "run.json")["status"] == "complete"
