from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quintet.cli.main import app
from quintet.errors import QuintetError

runner = CliRunner()


@pytest.fixture
def short_recipe(tmp_path: Path) -> Path:
    """The demo's own recipe, with one epoch."""
    shown = runner.invoke(app, ["recipes", "vse-scenes"]).stdout
    path = tmp_path / "short.yaml"
    path.write_text(
        shown.replace(shown[shown.index("    epochs:") :].splitlines()[0], "    epochs: 1"), encoding="utf-8"
    )
    return path


def test_the_demo_goes_all_the_way(tmp_path: Path, short_recipe: Path) -> None:
    out = tmp_path / "a: [demo] #1"  # marks that mean something to YAML and to rich
    result = runner.invoke(app, ["demo", "--out", str(out), "--recipe", str(short_recipe), "--scenes", "64"])
    assert result.exit_code == 0, result.output
    for word in (
        "image to text",
        "text to image",
        "chance",
        "R@1",
        "rsum",
        "score",
    ):
        assert word in result.output
    measured = json.loads((out / "result-online.json").read_text())
    assert measured["counts"]["images"] == 200
    page = (out / "page.html").read_text(encoding="utf-8")
    assert page.count("<section>") == 3
    assert page.count("data:image/png;base64,") == 18
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert (out / "index" / "index.json").is_file()
    again = runner.invoke(app, ["demo", "--out", str(out)])
    assert isinstance(again.exception, QuintetError), "an earlier demo is not overwritten"


@pytest.mark.slow
def test_the_demo_learns_ten_times_chance(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = runner.invoke(app, ["demo", "--out", str(out)])
    assert result.exit_code == 0, result.output
    for path in out.glob("result-*.json"):
        measured = json.loads(path.read_text())
        for name in ("i2t_r1", "t2i_r1"):
            assert measured["metrics"][name] >= 10 * measured["chance"][name], (path.name, name)
