from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def speed(script: Any) -> Any:
    return script("accuracy_speed")


def result(path: Path, rsum: float, split: str = "abc") -> Path:
    path.write_text(json.dumps({"metrics": {"rsum": rsum}, "split_checksum": split}), encoding="utf-8")
    return path


def test_every_method_of_one_tower_can_be_built(speed: Any) -> None:
    recipes = speed.grid_recipes()
    assert recipes["aoq-vse-flickr8k"] == "vse-avg-online"
    assert recipes["dual-path-flickr8k"] == "dual-path-full"
    assert not any("minilm-flickr8k" in recipe for recipe in recipes), "they read two towers"
    for recipe in recipes:
        assert sum(parameter.numel() for parameter in speed.build(recipe, 1280).parameters()) > 1_000_000


def test_accuracies_are_means_over_files_of_one_test_set(speed: Any, tmp_path: Path) -> None:
    files = [result(tmp_path / f"{number}.json", 100.0 + number) for number in range(3)]
    found = speed.accuracies([("a", files[0]), ("a", files[2]), ("b", files[1])])
    assert found["a"] == {"files": ["0.json", "2.json"], "rsums": [100.0, 102.0], "rsum": 101.0}
    with pytest.raises(SystemExit, match="different test sets"):
        speed.accuracies([("a", files[0]), ("b", result(tmp_path / "other.json", 1.0, "xyz"))])


def test_accuracies_are_added_to_speeds_measured_before(
    speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"recipe": "fast", "pairs_per_second": 1e6}, {"recipe": "slow", "skipped": "the limit"}]
    measured = tmp_path / "speeds.json"
    measured.write_text(json.dumps({"rows": rows, "settings": {"images": 5}}), encoding="utf-8")
    given = [f"fast={result(tmp_path / 'fast.json', 250.0)}", f"slow={result(tmp_path / 'slow.json', 300.0)}"]
    figure = tmp_path / "figure"
    arguments = ["--from", str(measured), "--out", str(tmp_path / "joined.json"), "--figure", str(figure)]
    monkeypatch.setattr(sys, "argv", ["accuracy_speed.py", *arguments, "--accuracy", *given])
    speed.main()
    joined = json.loads((tmp_path / "joined.json").read_text())
    assert joined["settings"] == {"images": 5}
    assert [row["accuracy"]["rsum"] for row in joined["rows"]] == [250.0, 300.0]
    drawn = figure.with_suffix(".svg").read_text()
    assert "fast" in drawn
    assert "slow" not in drawn, "what was not timed has no place"


def test_accuracies_of_the_large_grid_come_first(speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    for grid, row in (("flickr8k", "mmca"), ("small", "mmca"), ("small", "dual-path-full")):
        (tmp_path / grid).mkdir(exist_ok=True)
        result(tmp_path / grid / f"{row}-seed0.json", 100.0)
    monkeypatch.setattr(sys, "argv", ["accuracy_speed.py", "--flickr8k"])
    found = {recipe: path.parent.name for recipe, path in speed.result_files(speed.parse())}
    assert found == {"mmca-flickr8k": "flickr8k", "dual-path-flickr8k": "small"}
