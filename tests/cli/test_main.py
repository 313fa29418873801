from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import quintet
from quintet.cli import main
from quintet.errors import QuintetError, RecipeError

runner = CliRunner()


def test_version_and_help_name_every_command() -> None:
    assert runner.invoke(main.app, ["--version"]).stdout.strip() == f"quintet {quintet.__version__}"
    text = runner.invoke(main.app, ["--help"]).stdout
    for command in ("demo", "data", "features", "train", "evaluate", "models", "recipes"):
        assert command in text


def test_a_mistyped_command_names_the_nearest() -> None:
    result = runner.invoke(main.app, ["evalute"])
    assert result.exit_code == 2
    assert "did you mean 'evaluate'" in result.output


def test_errors_become_a_message_and_status_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(prog_name: str) -> None:
        raise QuintetError("the [disk] is full")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as stop:
        main.run()
    assert stop.value.code == 1
    assert "error: the [disk] is full" in capsys.readouterr().err


def test_an_interruption_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(prog_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupt)
    with pytest.raises(SystemExit) as stop:
        main.run()
    assert stop.value.code == 130


def test_models_and_recipes_are_listed() -> None:
    models = json.loads(runner.invoke(main.app, ["models", "--json"]).stdout)
    assert set(models) == set(quintet.list_models())
    arguments = json.loads(runner.invoke(main.app, ["models", "vse++", "--json"]).stdout)
    assert arguments["embed_dim"] == "1024"
    assert arguments["vocabulary_size"] == "needed"
    recipes = json.loads(runner.invoke(main.app, ["recipes", "--json"]).stdout)
    assert "vse-scenes" in recipes
    shown = runner.invoke(main.app, ["recipes", "vse-scenes"]).stdout
    assert yaml.safe_load(shown)["name"] == "vse-scenes"
    whole = json.loads(runner.invoke(main.app, ["recipes", "aoq-vse-scenes", "--json"]).stdout)
    assert whole["stages"][1]["negatives"]["from"] == "online"
    assert whole["stages"][1]["epochs"] == 20


def test_train_then_evaluate(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    run = str(tmp_path / "run")
    command = ["train", str(tmp_path / "mine.yaml"), "stages.online.epochs=1", "-o", run, "--device", "cpu", "--json"]
    trained = runner.invoke(main.app, command)
    assert trained.exit_code == 0, trained.output
    selected = json.loads(trained.stdout)["stages"]["online"]["metrics"]
    measured = runner.invoke(main.app, ["evaluate", run, "--split", "dev", "--device", "cpu", "--json"])
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout)["metrics"]["rsum"] == pytest.approx(selected["rsum"])
    again = runner.invoke(main.app, ["train", "--resume", run, "--json"])
    assert json.loads(again.stdout)["stages"]["online"]["metrics"] == selected


def test_train_without_enough_says_what_is_missing(tmp_path: Path) -> None:
    resume = ["train", "--resume", str(tmp_path)]
    for arguments in (["train"], ["train", "vse-scenes"], [*resume, "vse-scenes"], [*resume, "--corpus", "x"]):
        result = runner.invoke(main.app, arguments)
        assert isinstance(result.exception, RecipeError)


def test_only_the_first_of_several_processes_speaks(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tiny_recipe), encoding="utf-8")
    train = ["train", str(tmp_path / "mine.yaml"), "--device", "cpu", "-o"]
    monkeypatch.setenv("RANK", "1")  # known from the start, not only while the processes are joined
    for run, options in (("a", []), ("b", ["--json"])):
        result = runner.invoke(main.app, [*train, str(tmp_path / run), *options])
        assert result.exit_code == 0, result.output
        assert result.output == ""


def test_python_minus_m_quintet() -> None:
    done = subprocess.run([sys.executable, "-m", "quintet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("quintet ")
