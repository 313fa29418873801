from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_is_what_the_script_writes(script: Any) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script("readme_page").page(text) == text, "run python -m benchmarks.pages.readme_page"


def test_the_tour_is_what_the_readme_prints_with_the_time_of_each_command(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, commands = script("readme_page"), list(script("readme_tour").TOUR)
    times = dict(zip(commands, (3.0, 57.0, 128.0, 95.0, 8.1), strict=True))
    (tmp_path / "readme_tour.json").write_text(json.dumps({"cores": 2, "seconds": times}))
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    lines = page.tour().splitlines()[1:6]
    assert [line.rpartition("; ")[2] for line in lines] == ["10 s", "1 min", "2 min", "1.5 min", "10 s"]
    assert [line.partition("#")[0].strip() for line in lines] == commands
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(line.rpartition("; ")[0] in text for line in lines)


def test_a_row_has_the_means_of_its_result_files_and_rows_are_in_order(script: Any) -> None:
    lines = [line.split("|") for line in script("readme_page").methods().splitlines() if line.startswith("| [")]
    (mmca,) = (line for line in lines if "[MMCA]" in line[1])
    files = [json.loads(path.read_text()) for path in (ROOT / "benchmarks/results/flickr8k").glob("mmca-seed*.json")]
    assert len(files) == 3
    for column, metric in ((3, "i2t_r1"), (4, "t2i_r1")):
        assert abs(float(mmca[column]) - statistics.fmean(file["metrics"][metric] for file in files)) < 0.051
    mean, spread = map(float, mmca[5].split("±"))
    rsums = [file["metrics"]["rsum"] for file in files]
    assert abs(mean - statistics.fmean(rsums)) < 0.051
    assert abs(spread - statistics.stdev(rsums)) < 0.051
    order = [float(line[5].split("±")[0]) for line in lines]
    assert order == sorted(order, reverse=True)


def test_every_method_that_is_measured_on_flickr8k_has_a_row(script: Any) -> None:
    rows = {name for *_, grid, name in script("readme_page").METHODS if grid == "flickr8k"}
    files = {path.name.partition("-seed")[0] for path in (ROOT / "benchmarks/results/flickr8k").glob("*-seed0.json")}
    assert rows <= files
    first = {name.partition("-")[0] for name in files} - {"best"}
    assert first == {name.partition("-")[0] for name in rows}
