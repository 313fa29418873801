from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet.errors import QuintetError, RunError
from quintet.evaluation.result import load_ranks
from quintet.evaluation.significance import paired_test
from quintet.files import read_json
from quintet.studies.runner import Settings, run_study
from quintet.studies.variants import Column, Extra, Layout, Row, Study, Trained, Variant
from quintet.training import stages
from quintet.training.logs import Silent

QUICK = Settings(seeds=(0, 1), device="cpu", bootstrap=20, resamples=200)


class Calls:
    """Counts trainings and resumptions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        for name in ("train_recipe", "resume_run"):
            monkeypatch.setattr(stages, name, self._counted(name, getattr(stages, name)))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            folder = arguments[1] if name == "train_recipe" else arguments[0]
            self.made.append(f"{name.partition('_')[0]} {Path(folder).name}")
            return function(*arguments, **options)

        return counted


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def changed(recipe: dict[str, Any], **stage: Any) -> dict[str, Any]:
    recipe = copy.deepcopy(recipe)
    recipe["stages"][0] |= stage
    return recipe


def make_study(recipe: dict[str, Any], *more: Variant, extras: tuple[Extra, ...] = ()) -> Study:
    """Two variants: `plain`, and `tuned`, which starts from it."""
    variants = (
        Variant("plain", "Plain", recipe),
        Variant("tuned", "Plain + tuned", changed(recipe, init="@plain", epochs=1)),
        *more,
    )
    table = Layout("All", tuple(Row(variant.key, variant.label) for variant in variants))
    return Study("toy", "tiny", "plain", variants, (table,), extras)


def test_numbers_are_the_means_of_the_result_files(tiny_recipe: dict[str, Any], tmp_path: Path, calls: Calls) -> None:
    summary = run_study(make_study(tiny_recipe), tmp_path, QUICK)
    assert calls.made == [f"train {key}-seed{seed}" for seed in (0, 1) for key in ("plain", "tuned")]
    found = {
        key: [read_json(tmp_path / "results" / f"{key}-seed{seed}.full.json") for seed in (0, 1)]
        for key in ("plain", "tuned")
    }
    for key, results in found.items():
        numbers = summary["variants"][key]["protocols"]["full"]
        for name in ("rsum", "i2t_r1", "t2i_r10"):
            values = [result["metrics"][name] for result in results]
            assert numbers["mean"][name] == pytest.approx(statistics.fmean(values))
            assert numbers["spread"][name] == pytest.approx(statistics.stdev(values))
    gains = [
        new["metrics"]["rsum"] - old["metrics"]["rsum"] for old, new in zip(found["plain"], found["tuned"], strict=True)
    ]
    difference = summary["variants"]["tuned"]["protocols"]["full"]["difference"]
    assert difference["mean"]["rsum"] == pytest.approx(statistics.fmean(gains))
    assert difference["spread"]["rsum"] == pytest.approx(statistics.stdev(gains))
    assert summary == json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert f"{difference['mean']['rsum']:+.1f}" in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_results_tell_how_they_were_made(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    run_study(make_study(tiny_recipe), tmp_path, QUICK)
    made = read_json(tmp_path / "results" / "tuned-seed1.full.json")["provenance"]
    assert (made["study"], made["variant"], made["seed"], made["trained_on"]) == ("toy", "tuned", 1, "cpu")
    assert made["command"]
    assert made["seconds"]["training"] > 0
    assert made["peak_memory_bytes"] is None, "not known on a CPU"


def test_the_paired_test_is_against_the_reference_of_the_same_seed(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    summary = run_study(make_study(tiny_recipe), tmp_path, QUICK)
    for seed in (0, 1):
        ranks = [load_ranks(tmp_path / "results" / f"{key}-seed{seed}.full.npz") for key in ("tuned", "plain")]
        expected = paired_test(ranks[0], ranks[1], QUICK.resamples)["rsum"].to_json()
        run = summary["variants"]["tuned"]["runs"][seed]
        assert run["protocols"]["full"]["paired"]["rsum"] == expected
        assert summary["variants"]["plain"]["runs"][seed]["protocols"]["full"]["paired"] is None


def test_a_second_call_trains_and_measures_nothing(
    tiny_recipe: dict[str, Any], tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(make_study(tiny_recipe), tmp_path, QUICK)
    calls.made.clear()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}
    second = run_study(make_study(tiny_recipe), tmp_path, QUICK)
    assert calls.made == []
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()} == files
    assert second["variants"] == first["variants"]
    more = run_study(
        make_study(tiny_recipe), tmp_path, Settings(seeds=(0, 1, 2), device="cpu", bootstrap=20, resamples=50)
    )
    assert calls.made == ["train plain-seed2", "train tuned-seed2"]
    assert more["variants"]["plain"]["protocols"]["full"]["seeds"] == 3


class StopAt(Silent):
    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch(self, epoch: int, metrics: dict[str, float], best: bool) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_stopped_study_resumes_where_it_was(tiny_recipe: dict[str, Any], tmp_path: Path, calls: Calls) -> None:
    whole = run_study(make_study(tiny_recipe), tmp_path / "whole", QUICK)
    with pytest.raises(KeyboardInterrupt):
        run_study(make_study(tiny_recipe), tmp_path / "stopped", QUICK, display=StopAt(5))  # in the run plain-seed1
    calls.made.clear()
    resumed = run_study(make_study(tiny_recipe), tmp_path / "stopped", QUICK)
    assert calls.made == ["resume plain-seed1", "train tuned-seed1"]
    for key in ("plain", "tuned"):
        for one, other in zip(whole["variants"][key]["runs"], resumed["variants"][key]["runs"], strict=True):
            assert one["protocols"]["full"]["metrics"] == other["protocols"]["full"]["metrics"]


def test_a_failing_variant_is_reported_and_stops_nothing(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    broken = Variant("broken", "Broken", changed(tiny_recipe, loss={"triplet": {"margin": 1e39}}))
    after = Variant("after", "After broken", changed(tiny_recipe, init="@broken"))
    last = Variant("last", "Last", changed(tiny_recipe, epochs=1))
    summary = run_study(make_study(tiny_recipe, broken, after, last), tmp_path, QUICK)
    status = {key: [run["status"] for run in variant["runs"]] for key, variant in summary["variants"].items()}
    assert status == {
        "plain": ["trained"] * 2,
        "tuned": ["trained"] * 2,
        "broken": ["failed"] * 2,
        "after": ["skipped"] * 2,
        "last": ["trained"] * 2,
    }
    assert "became inf" in summary["variants"]["broken"]["runs"][0]["reason"]
    tables = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "After broken, seed 1: skipped: needs Broken" in tables


def test_a_failing_reference_leaves_the_others_without_differences(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    broken = Variant("plain", "Plain", changed(tiny_recipe, loss={"triplet": {"margin": 1e39}}))
    study = Study("toy", "tiny", "plain", (broken, Variant("other", "Other", tiny_recipe)), ())
    summary = run_study(study, tmp_path, QUICK)
    other = summary["variants"]["other"]
    assert other["protocols"]["full"]["seeds"] == 2
    assert other["protocols"]["full"]["difference"]["seeds"] == 0
    assert other["runs"][0]["protocols"]["full"]["paired"] is None


def test_out_of_memory_is_a_failure_of_its_variant(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = stages.train_recipe

    def full(recipe: Any, out: Path, **options: Any) -> Any:
        if out.name.startswith("tuned"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 TiB. GPU 0 has less")
        return train(recipe, out, **options)

    monkeypatch.setattr(stages, "train_recipe", full)
    summary = run_study(make_study(tiny_recipe), tmp_path, QUICK)
    run = summary["variants"]["tuned"]["runs"][0]
    assert (run["status"], run["reason"]) == ("failed", "out of memory: CUDA out of memory")


def test_what_training_notes_is_kept(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = stages.train_recipe

    def noting(recipe: Any, out: Path, *, display: Any, **options: Any) -> Any:
        display.note("the matcher has collapsed")
        return train(recipe, out, display=display, **options)

    monkeypatch.setattr(stages, "train_recipe", noting)
    for _ in range(2):
        summary = run_study(make_study(tiny_recipe), tmp_path, QUICK)
        assert summary["variants"]["plain"]["runs"][0]["notes"] == ["the matcher has collapsed"]
    assert "Plain, seed 0: the matcher has collapsed" in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_other_settings_in_the_same_folder_are_refused_before_anything_is_trained(
    tiny_recipe: dict[str, Any], tmp_path: Path, calls: Calls
) -> None:
    run_study(make_study(tiny_recipe), tmp_path, QUICK)
    calls.made.clear()
    with pytest.raises(RunError, match=r"plain-seed0 .*stages\.0\.epochs .*2, .*4"):
        run_study(make_study(changed(tiny_recipe, epochs=4)), tmp_path, QUICK)
    assert calls.made == []


def test_a_folder_made_with_other_settings_of_speed_is_continued(
    tiny_recipe: dict[str, Any], tmp_path: Path, calls: Calls
) -> None:
    first = run_study(make_study(changed(tiny_recipe, graphs=True)), tmp_path, QUICK)
    calls.made.clear()
    assert run_study(make_study(tiny_recipe), tmp_path, QUICK)["variants"] == first["variants"]
    assert calls.made == []


def test_a_run_whose_first_round_was_trained_anew_is_not_passed_off_as_its_successor(
    tiny_recipe: dict[str, Any], tmp_path: Path
) -> None:
    one = Settings(seeds=(0,), device="cpu", bootstrap=0, resamples=50)
    run_study(make_study(tiny_recipe), tmp_path, one)
    record = read_json(tmp_path / "runs" / "tuned-seed0" / "study.json")
    record["needs"]["plain"] = "another checksum"
    (tmp_path / "runs" / "tuned-seed0" / "study.json").write_text(json.dumps(record), encoding="utf-8")
    run = run_study(make_study(tiny_recipe), tmp_path, one)["variants"]["tuned"]["runs"][0]
    assert run["status"] == "failed"
    assert "other weights of plain" in run["reason"]


def test_a_foreign_run_is_left_alone(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "plain-seed0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RunError, match="no study made"):
        run_study(make_study(tiny_recipe), tmp_path, QUICK)


@pytest.mark.usefixtures("folds_of_any_size")
def test_several_protocols_are_measured_with_one_training(
    tiny_recipe: dict[str, Any], tmp_path: Path, calls: Calls
) -> None:
    one = Settings(seeds=(0,), device="cpu", bootstrap=0, resamples=50)
    run_study(make_study(tiny_recipe), tmp_path, one)
    calls.made.clear()
    both = Settings(seeds=(0,), protocols=("5fold", "full"), device="cpu", bootstrap=0, resamples=50)
    summary = run_study(make_study(tiny_recipe), tmp_path, both)
    assert calls.made == []
    numbers = summary["variants"]["plain"]["protocols"]
    assert numbers["5fold"]["mean"]["i2t_r1"] >= numbers["full"]["mean"]["i2t_r1"]
    assert "6 test images, 5fold" in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_an_ablation_that_never_takes_effect_says_so_in_the_tables(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    late = changed(tiny_recipe, loss={"triplet": {"warmup_epochs": 2}})
    study = make_study(tiny_recipe, Variant("late", "Plain + late", late))
    run_study(study, tmp_path, Settings(seeds=(0,), device="cpu", bootstrap=0, resamples=20))
    notes = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "Plain + late, seed 0: the warm-up of loss 'triplet' (warmup_epochs: 2) lasts all 2 epochs" in notes


def test_nonsense_is_refused(tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tiny_recipe)
    for settings, message in (
        (Settings(seeds=(), device="cpu"), "needs different seeds"),
        (Settings(seeds=(1, 1), device="cpu"), "needs different seeds"),
        (Settings(protocols=("ful",), device="cpu"), "did you mean 'full'"),
        (Settings(protocols=("5k",), device="cpu"), "is for 5,000 images"),
    ):
        with pytest.raises(QuintetError, match=message):
            run_study(study, tmp_path, settings)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(QuintetError, match="runs in one process"):
        run_study(study, tmp_path, QUICK)


def test_an_extra_is_measured_once_and_may_fail(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    seen: list[Trained] = []

    def measure(trained: Trained) -> list[dict[str, Any]]:
        seen.append(trained)
        return [{"label": "Plain", "seconds": 1.5}]

    columns = (Column("label", "model"), Column("seconds", "seconds", "{:.2f}"))
    study = make_study(tiny_recipe, extras=(Extra("speed", "How fast", columns, {"plain": "Plain"}, measure),))
    for _ in range(2):
        summary = run_study(study, tmp_path, QUICK)
        assert summary["extras"]["speed"]["rows"] == [{"label": "Plain", "seconds": 1.5}]
        assert "| Plain |    1.50 |" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert len(seen) == 1
    assert seen[0].folders == {"plain": tmp_path / "runs" / "plain-seed0"}
    assert seen[0].labels == {"plain": "Plain"}

    def fail(trained: Trained) -> list[dict[str, Any]]:
        raise QuintetError("the clock is broken")

    study = make_study(tiny_recipe, extras=(Extra("broken", "How fast", columns, {"plain": "Plain"}, fail),))
    assert run_study(study, tmp_path, QUICK)["extras"]["broken"]["reason"] == "the clock is broken"
