"""`evaluate`, `analyse` and `report` measure on the split that the run's recipe tests on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import quintet
from quintet.cli.analyse import analyse_command
from quintet.cli.evaluate import evaluate_command
from quintet.cli.report import report_command
from quintet.data.corpus import Corpus
from quintet.errors import RunError
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe

pytest.importorskip("matplotlib")


@pytest.fixture
def corpus(make_corpus: Any, tmp_path: Path) -> Corpus:
    """As COCO's regions: `test` is the beginning of `testall`."""
    corpus = Corpus.open(make_corpus(tmp_path / "corpus"))
    corpus.splits["testall"] = corpus.splits["test"]
    corpus.splits["test"] = corpus.splits["test"][:3]
    corpus.save(tmp_path / "corpus")
    return corpus


@pytest.fixture
def run(corpus: Corpus, tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    return trained(tiny_recipe, corpus, tmp_path / "run", "testall")


def trained(recipe: dict[str, Any], corpus: Corpus, out: Path, test: str) -> Path:
    recipe["data"] |= {"corpus": str(corpus.root), "test": test}
    recipe["stages"][0]["epochs"] = 1
    train_recipe(parse_recipe(recipe), out, device="cpu")
    return out


def call(command: Any, *arguments: object) -> str:
    app = typer.Typer()
    app.command("call")(command)
    result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_every_command_takes_the_split_of_the_recipe(run: Path, tmp_path: Path) -> None:
    assert json.loads(call(evaluate_command, run, "--json", "--bootstrap", 0))["counts"]["images"] == 6
    assert json.loads(call(analyse_command, run, "--what", "ranks", "-o", tmp_path, "--json"))["ranks"]["split"] == (
        "testall"
    )
    call(report_command, run, "-o", tmp_path / "report", "--samples", 2, "--examples", 1, "--bootstrap", 0)
    (result,) = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))["results"].values()
    assert result["split"] == "testall"
    assert quintet.evaluate(run, bootstrap=0).split == "testall"
    assert json.loads(call(evaluate_command, run, "--split", "test", "--json"))["counts"]["images"] == 3


def test_recipes_that_differ_or_a_corpus_without_the_split_need_a_choice(
    run: Path, corpus: Corpus, tiny_recipe: dict[str, Any], tmp_path: Path, tiny_corpus: Path
) -> None:
    other = trained(tiny_recipe, corpus, tmp_path / "other", "test")
    with pytest.raises(RunError, match="different splits"):
        call(evaluate_command, run, "--compare", other)
    with pytest.raises(RunError, match="different splits"):
        quintet.evaluate([run, other])
    assert quintet.evaluate([run, other], split="test", bootstrap=0).counts["images"] == 3
    with pytest.raises(RunError, match="--split: train, dev, test"):
        call(evaluate_command, run, "--corpus", tiny_corpus)


def test_a_run_without_a_recipe_is_measured_on_test(run: Path) -> None:
    (run / "recipe.yaml").unlink()
    assert quintet.evaluate(run, bootstrap=0).split == "test"


def test_a_damaged_recipe_is_told(run: Path) -> None:
    (run / "recipe.yaml").write_text("data: [", encoding="utf-8")
    with pytest.raises(RunError, match="which split"):
        quintet.evaluate(run)
