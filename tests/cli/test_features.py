from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image as Images
from safetensors.torch import save_file
from typer.testing import CliRunner

from quintet.backbones.create import create_tower
from quintet.cli.features import features_command
from quintet.data.corpus import Corpus, Image, Text
from quintet.data.feature_store import FeatureStore
from quintet.errors import QuintetError

app = typer.Typer()
app.command()(features_command)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a", "b"):
        Images.new("RGB", (40, 30), (200, 0, 0)).save(folder / f"{name}.png")
    (folder / "c.png").write_bytes(b"")
    images = [Image(name, name, f"{name}.png") for name in "abc"]
    Corpus("three", images, [Text(f"{name}#0", name, "red") for name in "abc"], {"train": list("abc")}).save(folder)
    torch.manual_seed(0)
    save_file(create_tower("small-cnn").state_dict(), tmp_path / "small.safetensors")
    return folder


def command(corpus: Path, *more: str) -> list[str]:
    weights = corpus.parent / "small.safetensors"
    return [str(corpus), "--backbone", "small-cnn", "--weights", str(weights), "--device", "cpu", *more]


def test_it_writes_features_and_tells_what_it_skipped(corpus: Path) -> None:
    result = CliRunner().invoke(app, command(corpus))
    assert result.exit_code == 0, result.output
    assert "skipped c:" in result.output
    assert "features of 2 images, 1 skipped" in result.output
    store = FeatureStore(corpus / "features" / "small-cnn")
    assert (store.ids, store.fragments) == (["a", "b"], 36)
    again = CliRunner().invoke(app, command(corpus))
    assert "is complete" in again.output


def test_json(corpus: Path) -> None:
    result = CliRunner().invoke(
        app, command(corpus, "--json", "--name", "other", "--grid", "2x3", "--dtype", "float32", "--crop", "center")
    )
    report = json.loads(result.stdout)
    assert {key: report[key] for key in ("images", "written", "resumed")} == {
        "images": 3,
        "written": 2,
        "resumed": 0,
    }
    assert [entry["id"] for entry in report["skipped"]] == ["c"]
    store = FeatureStore(report["folder"])
    assert store.folder == corpus / "features" / "other"
    assert store.manifest["tower"]["grid"] == [2, 3]
    assert store.manifest["tower"]["preprocess"]["crop"] == "center"


@pytest.mark.parametrize("grid", ["0", "six", "2x", "2x3x4", "-1", "1000"])
def test_a_bad_grid_is_explained(corpus: Path, grid: str) -> None:
    result = CliRunner().invoke(app, command(corpus, f"--grid={grid}"))
    assert isinstance(result.exception, QuintetError)
    assert "4 rows of 8" in str(result.exception)


def test_not_a_corpus(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(result.exception, QuintetError)
    assert "not a corpus" in str(result.exception)


def test_a_choice_that_is_none(corpus: Path) -> None:
    assert CliRunner().invoke(app, command(corpus, "--dtype", "int8")).exit_code == 2
