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
    for heading in ("Searches that work", "A search that fails", "Your own photos"):
        assert heading in page
    assert "What mining found" not in page, "one stage, no mining"
    assert page.count("data:image/png;base64,") >= 5, "the searches show images"
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert (out / "index" / "index.json").is_file()
    again = runner.invoke(app, ["demo", "--out", str(out)])
    assert isinstance(again.exception, QuintetError), "an earlier demo is not overwritten"


@pytest.mark.slow
def test_the_demo_learns_and_explains_itself(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = runner.invoke(app, ["demo", "--out", str(out)])
    assert result.exit_code == 0, result.output
    for path in out.glob("result-*.json"):
        measured = json.loads(path.read_text())
        assert measured["metrics"]["rsum"] >= 350, path.name  # the demo of a matcher that was weaker reached 252
    page = (out / "page.html").read_text(encoding="utf-8")
    for heading in ("What mining found", "Where each word looks"):
        assert heading in page
    assert page.count("First correct result at rank 1.") == 3
    assert "The first result is another scene" in page
