"""`quintet convert`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import quintet
from quintet.cli.convert import _options
from quintet.cli.main import app
from quintet.errors import QuintetError, RecipeError


def bfan_file(path: Path, **options: object) -> Path:
    torch.manual_seed(0)
    rnn = torch.nn.GRU(4, 6, bidirectional=True)
    image = {"fc.weight": torch.randn(6, 5), "fc.bias": torch.randn(6)}
    text = {"embed.weight": torch.randn(9, 4), **{f"rnn.{k}": v.detach() for k, v in rnn.named_parameters()}}
    torch.save({"epoch": 1, "model": [image, text], "opt": argparse.Namespace(**options)}, path)
    return path


def test_a_checkpoint_becomes_a_run(tmp_path: Path) -> None:
    path = bfan_file(tmp_path / "model_best.pth.tar", lambda_softmax=20)
    done = CliRunner().invoke(app, ["convert", "bfan", str(path), "-o", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "focal_type; took equal" in done.output
    assert "takes token ids" in done.output
    assert type(quintet.load(tmp_path / "run").matcher).__name__ == "BFAN"


def test_json_and_options(tmp_path: Path) -> None:
    path = bfan_file(tmp_path / "best", focal_type="equal")
    arguments = ["convert", "aoq", str(path), "-o", str(tmp_path / "run"), "--json"]
    arguments += ["--option", "focal_type=prob", "--option", "lambda_softmax=4.5"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert made["model"]["name"] == "bfan"
    assert made["model"]["arguments"] | {"focal": "prob", "lambda_softmax": 4.5} == made["model"]["arguments"]
    assert made["assumed"] == {"no_imgnorm": False, "no_txtnorm": False}


def test_errors_reach_the_person(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"no checkpoint")
    done = CliRunner().invoke(app, ["convert", "bfan", str(tmp_path / "damaged"), "-o", str(tmp_path / "run")])
    assert isinstance(done.exception, QuintetError)
    assert str(tmp_path / "damaged") in str(done.exception)


def test_values_of_options() -> None:
    assert _options(["a=1.5", "b=True", "c=Mean", "d=x=y"]) == {"a": 1.5, "b": True, "c": "Mean", "d": "x=y"}
    with pytest.raises(RecipeError, match="KEY=VALUE"):
        _options(["lambda"])
