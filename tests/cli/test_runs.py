"""`quintet run verify`: which file is damaged, and the exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from quintet.cli.main import app
from quintet.errors import QuintetError
from quintet.models import create_model
from quintet.runs.checkpoint import write_run
from quintet.runs.run_folder import shipped_runs

MODEL = {"name": "vse++", "arguments": {"image_dim": 8, "vocabulary_size": 10, "embed_dim": 4, "word_dim": 4}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = create_model("vse++", **MODEL["arguments"]).state_dict()  # type: ignore[arg-type]
    images = {"kind": "features", "name": "toy", "tower": None}
    folder = tmp_path / "run"
    write_run(folder, name="tiny", model=MODEL, state_dict=state, tokenizer=None, image_input=images)
    return folder


def verify(run: Path) -> dict[str, str]:
    """The damaged files, and what is told about each."""
    result = CliRunner().invoke(app, ["run", "verify", str(run), "--json"])
    damaged: dict[str, str] = json.loads(result.stdout)["damaged"]
    assert isinstance(result.exception, QuintetError) == bool(damaged)
    return damaged


def test_a_run_as_it_was_written(run: Path) -> None:
    assert verify(run) == {}
    result = CliRunner().invoke(app, ["run", "verify", str(run)])
    assert result.exit_code == 0
    assert "5 files" in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", ["weights.safetensors", "model.json", "images.json", "run.json"])
def test_one_flipped_bit_is_found(run: Path, name: str) -> None:
    content = bytearray((run / name).read_bytes())
    for at in (len(content) // 2, len(content) - 2):
        damaged = bytearray(content)
        damaged[at] ^= 1
        (run / name).write_bytes(damaged)
        assert list(verify(run)) == [name]


def test_missing_files_and_damaged_checksums(run: Path) -> None:
    (run / "images.json").unlink()
    assert list(verify(run)) == ["images.json"]
    (run / "checksums.json").write_text("[]")
    assert next(iter(verify(run))) == "checksums.json"


def test_runs_without_checksums_are_read(run: Path) -> None:
    (run / "checksums.json").unlink()
    assert verify(run) == {}
    shutil.copyfile(run / "model.json", run / "weights.safetensors")
    assert len(verify(run)) == 1


def test_shipped_runs_are_whole() -> None:
    for name in shipped_runs():
        assert verify(Path(name)) == {}
