"""`quintet results add`: result files of several people in one table, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quintet
from quintet.cli.main import app
from quintet.errors import QuintetError

GRID = Path(__file__).parents[2] / "benchmarks" / "results" / "clip"
RECALLS = [f"{way}_r{cut}" for way in ("i2t", "t2i") for cut in (1, 5, 10)]


def content(name: str = "scan", level: float = 50.0, **changes: Any) -> dict[str, Any]:
    run = {"name": name, "weights_sha256": f"{name}-weights", "seed": 1}
    found = {
        **{"format": "quintet-result", "members": [name], "protocol": "full", "split": "test", "split_checksum": "abc"},
        "metrics": {**dict.fromkeys(RECALLS, level), "rsum": 6 * level},
        "settings": {"device": "cuda:0"},
        "provenance": {
            "code": {"commit": None, "sources_sha256": "0123456789abcdef"},
            "machine": {"accelerator": "A GPU"},
            "runs": [run],
        },
    }
    return found | changes


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def to_file(file: str, value: Any) -> Path:
        path = tmp_path / file
        path.write_text(json.dumps(value))
        return path

    return to_file


def test_files_are_copied_and_ranked_by_rsum(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "results"
    quintet.add_results(write("a.json", content("scan", 40.0)), folder=folder)
    board = quintet.add_results(
        [write("b.json", content("bfan", 60.0)), write("c.json", content("a|b c/d", 50.0))], folder=folder
    )
    assert [entry.metrics["rsum"] for entry in board.entries] == [360.0, 300.0, 240.0]
    lines = (folder / "leaderboard.md").read_text().splitlines()
    assert lines[3] == "| 1 | bfan | 1 | 360.0 | 60.0 | 60.0 | A GPU | 0123456789ab |"
    assert r"a\|b c/d" in lines[4]
    assert len(list(folder.glob("*.json"))) == 3
    assert not [path for path in folder.iterdir() if path.is_dir()]  # a name with a slash names no folder
    copied = [json.loads(path.read_text())["members"] for path in folder.glob("bfan-*.json")]
    assert copied == [["bfan"]]


def without(*path: str) -> dict[str, Any]:
    found: dict[str, Any] = content()
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return found


def another_seed_missing() -> dict[str, Any]:
    found = content()
    del found["provenance"]["runs"][0]["seed"]
    return found


@pytest.mark.parametrize(
    ("made", "noun"),
    [
        (without("split_checksum"), "split_checksum"),
        (without("provenance", "code"), "code"),
        (without("settings", "device"), "device"),
        (another_seed_missing(), "seed"),
        (content(metrics={**dict.fromkeys(RECALLS, 50.0), "rsum": 400.0}), "rsum"),
        (content(metrics={"rsum": 300.0}), "recalls"),
        (content(metrics={**dict.fromkeys(RECALLS, 150.0), "rsum": 900.0}), "per cent"),
        (content(members=[]), "no run"),
        ({"results": {"a": {}, "b": {}}}, "several results"),
        ([1], "not a result file"),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused_and_nothing_is_written(
    write: Callable[..., Path], tmp_path: Path, made: Any, noun: str
) -> None:
    good, folder = write("good.json", content("good")), tmp_path / "results"
    with pytest.raises(QuintetError, match=noun):
        quintet.add_results([good, write("bad.json", made)], folder=folder)
    assert not folder.exists()


def test_another_split_another_protocol_and_the_same_weights_are_refused(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    quintet.add_results(write("first.json", content("scan")), folder=folder)
    before = sorted(path.name for path in folder.iterdir())
    for file, made, noun in (
        ("split.json", content("bfan", split_checksum="xyz"), "other images or texts"),
        ("protocol.json", content("bfan", protocol="5fold"), "protocol"),
        ("again.json", content("scan", 55.0), "already"),
    ):
        with pytest.raises(QuintetError, match=noun):
            quintet.add_results(write(file, made), folder=folder)
    twice = write("new.json", content("new"))
    with pytest.raises(QuintetError, match="already"):
        quintet.add_results([twice, twice], folder=folder)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_rows_of_a_grid_are_result_files(tmp_path: Path) -> None:
    files = [str(GRID / f"clip-{name}-seed1.json") for name in ("mined", "longer")]
    done = CliRunner().invoke(app, ["results", "add", *files, "--folder", str(tmp_path / "results"), "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert sorted(row["members"] for row in rows) == [["clip-longer-seed1"], ["clip-mined-seed1"]]
    assert {row["device"] for row in rows} == {"NVIDIA H200"}
    assert {tuple(row["seeds"]) for row in rows} == {(1,)}
    table = (tmp_path / "results" / "leaderboard.md").read_text()
    assert table.count("| 77783de07cd5+changed |") == 2  # a commit alone would not be the code that ran


def test_what_evaluate_saves_can_be_added(tiny_corpus: Path, tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    from quintet.training.recipe import parse_recipe
    from quintet.training.stages import train_recipe

    train_recipe(parse_recipe(tiny_recipe | {"seed": 7}), tmp_path / "run", device="cpu")
    quintet.evaluate(tmp_path / "run", bootstrap=0, device="cpu").save(tmp_path / "result.json")
    done = CliRunner().invoke(
        app, ["results", "add", str(tmp_path / "result.json"), "--folder", str(tmp_path / "results")]
    )
    assert done.exit_code == 0, done.output
    assert "| 1 | tiny | 7 |" in done.stdout
    assert "| cpu |" in done.stdout
