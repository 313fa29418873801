"""Long commands that are stopped say how to go on, and the demo does go on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from quintet.cli import demo
from quintet.cli.main import app

runner = CliRunner()


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def terminated(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        signal.pause()


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["quintet", *arguments])
    return runner.invoke(app, list(arguments))


@pytest.mark.parametrize(("stop", "status"), [(interrupted, 130), (terminated, 143)])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("quintet.search.indexing.build_index", ["index", "quintet-small", "my photos", "-o", "index"]),
        ("quintet.features.extract.extract_features", ["features", "CORPUS"]),
        ("quintet.mining.mine.mine", ["mine", "quintet-small", "CORPUS", "-o", "lists"]),
        ("quintet.training.stages.prepare_features", ["train", "vse-scenes", "--corpus", "CORPUS", "-o", "my run"]),
    ],
)
def test_a_stopped_command_says_how_to_go_on(
    function: str,
    arguments: list[str],
    stop: Any,
    status: int,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    monkeypatch.setattr(function, stop)
    before = signal.getsignal(signal.SIGTERM)
    given = [str(tiny_corpus) if each == "CORPUS" else each for each in arguments]
    result = call(monkeypatch, *given)
    assert result.exit_code == status
    shown = " ".join(f"'{each}'" if " " in each else each for each in given)
    assert f"goes on: quintet {shown}\n" in result.output
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_to_copy_is_quoted_for_the_shell(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my run"
    monkeypatch.setattr("quintet.training.stages.train", interrupted)
    monkeypatch.setattr("quintet.runs.run_folder.is_begun", lambda folder: True)
    result = call(monkeypatch, "train", "vse-scenes", "--corpus", str(tiny_corpus), "-o", str(folder))
    assert f"`quintet train --resume '{folder}'`" in result.output


def test_a_first_index_that_is_stopped_before_anything_is_encoded_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "photos/a.png")
    monkeypatch.setattr("quintet.search.encoded.EncodedItems.append", interrupted)
    index = ["index", "quintet-small", str(tmp_path / "photos"), "-o", str(tmp_path / "index"), "--device", "cpu"]
    assert call(monkeypatch, *index).exit_code == 130
    assert not (tmp_path / "index").exists()


@pytest.mark.slow
def test_the_demo_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "short.yaml"
    shown = runner.invoke(app, ["recipes", "vse-scenes"]).stdout
    recipe.write_text(
        shown.replace(next(line for line in shown.splitlines() if "    epochs:" in line), "    epochs: 1")
    )
    command = ["demo", "--out", str(tmp_path / "demo"), "--recipe", str(recipe), "--scenes", "50"]
    measure, stopped = demo._measure, list[Path]()

    def stop_once(out: Path, *rest: Any) -> Any:
        if not stopped:
            stopped.append(out)
            raise KeyboardInterrupt
        return measure(out, *rest)

    monkeypatch.setattr(demo, "_measure", stop_once)
    result = call(monkeypatch, *command)
    assert (result.exit_code, "goes on: quintet demo" in result.output) == (130, True)
    files = [tmp_path / "demo/corpus/corpus.json", tmp_path / "demo/run/weights.safetensors"]
    times = [file.stat().st_mtime_ns for file in files]
    other = call(monkeypatch, *command, "--seed", "5")
    assert "earlier demo" in str(other.exception)
    assert call(monkeypatch, *command).exit_code == 0
    assert [file.stat().st_mtime_ns for file in files] == times
    assert (tmp_path / "demo/page.html").is_file()
