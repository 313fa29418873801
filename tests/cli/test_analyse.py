from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from quintet.cli.analyse import analyse_command
from quintet.errors import QuintetError, RunError
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe

pytest.importorskip("matplotlib")


@pytest.fixture
def run(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    tiny_recipe["stages"][0]["epochs"] = 1
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    return tmp_path / "run"


def call(*arguments: object) -> Result:
    app = typer.Typer()
    app.command("analyse")(analyse_command)
    result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"], env={"COLUMNS": "100", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_figures_and_numbers_of_a_run_on_its_own_corpus(run: Path, tmp_path: Path) -> None:
    shown = call(run, "-o", tmp_path / "out", "--samples", 4, "--png").stdout
    assert "tiny: S 0." in shown
    assert "mean correlation" in shown
    assert "errors: skipped" in shown
    stored = json.loads((tmp_path / "out" / "distributions.json").read_text())
    assert f"S {stored['runs']['tiny']['S']:.4f}" in shown
    assert stored["figures"] == ["distributions.svg", "distributions.png"]
    assert len(json.loads((tmp_path / "out" / "words.json").read_text())["runs"]["tiny"]["texts"]) == 4


def test_chosen_kinds_of_two_runs_as_json(run: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    stage = run / "stages" / "online"
    options = ["--compare", stage, "--corpus", tiny_corpus, "--split", "dev", "--what", "distributions,ranks"]
    found = json.loads(call(run, *options, "-o", tmp_path / "out", "--json").stdout)
    assert list(found) == ["distributions", "ranks"]
    assert list(found["distributions"]["runs"]) == ["tiny", "tiny, stage online"]
    assert found["ranks"]["split"] == "dev"


def test_the_epochs_that_pass_the_baseline_are_printed(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    second = tiny_recipe["stages"][0] | {"name": "longer", "epochs": 6}
    train_recipe(parse_recipe(tiny_recipe | {"stages": [*tiny_recipe["stages"], second]}), tmp_path / "r", device="cpu")
    shown = call(tmp_path / "r", "--what", "curves", "-o", tmp_path / "out").stdout
    passed = json.loads((tmp_path / "out" / "curves.json").read_text())["passed"]
    assert passed["baseline"] == "tiny: online"
    found = passed["epochs"]["tiny: longer"]["t2i_r1"]
    assert f"image R@1 {'never' if found is None else f'after {found}'}" in shown
    log = [json.loads(line) for line in (tmp_path / "r" / "stages" / "longer" / "log.jsonl").read_text().splitlines()]
    values = [row["t2i_r1"] for row in log if row["kind"] == "validation"]
    above = [number for number, value in enumerate(values, 1) if value > passed["best"]["t2i_r1"]]
    assert found == (above[0] if above else None)


def test_ensembles_stand_beside_runs_in_analyses_of_scores(run: Path, tmp_path: Path) -> None:
    stage = run / "stages" / "online"
    options = ["--ensemble", f"{run},{stage}", "--what", "ranks,distributions,negatives,curves", "--json"]
    found = json.loads(call(run, *options, "-o", tmp_path / "out").stdout)
    names = ["tiny", "tiny + tiny, stage online"]
    assert list(found["distributions"]["runs"]) == list(found["negatives"]["runs"]) == names
    assert list(found["ranks"]["cross_retrieval"]["counts"]) == names
    assert list(found["curves"]["validation"]) == ["tiny"]
    assert [one["name"] for one in found["ranks"]["provenance"]["runs"]] == ["tiny", "tiny, stage online"]
    with pytest.raises(QuintetError, match="two or more"):
        call(run, "--ensemble", run, "-o", tmp_path / "out")


def test_mistakes_are_explained_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused = call(run, "--what", "word", "-o", out)
    assert refused.exit_code == 2
    assert "did you mean 'words'" in " ".join(refused.output.split())
    with pytest.raises(QuintetError, match="did you mean 'test'"):
        call(run, "--split", "tset", "-o", out)
    with pytest.raises(RunError, match="is not a run"):
        call(tmp_path / "nothing", "-o", out)
    assert not out.exists()
