"""The fuzzing of `make fuzz`: seeds that are read, exceptions that are noted, its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quintet.errors import QuintetError

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks/results/fuzz.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("fastapi")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        from benchmarks.torture.material import Material, make_material

        found = Material(tmp_path_factory.mktemp("material"))
        make_material(found.folder)
        return found


@pytest.mark.slow
def test_every_seed_is_read_or_refused_and_most_are_read(script: Any, made: Any, tmp_path: Path) -> None:
    targets = script("targets")
    for name, target in targets.TARGETS.items():
        (tmp_path / name).mkdir()
        for number, parser in enumerate(target(made, tmp_path / name)):
            read = 0
            assert parser.seeds, f"{name}, parser {number}"
            for seed in parser.seeds:
                try:
                    parser.read(seed)
                    read += 1
                except QuintetError:
                    pass
            wrong_on_purpose = name == "command lines" or (name, number) in {("recipes", 1), ("images", 1)}
            assert read or wrong_on_purpose, f"{name}, parser {number}: no seed is valid"


def test_a_file_is_as_it_was_after_an_input(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"{}")
    parser = script("targets").at_file(path, lambda: json.loads(path.read_bytes()), b"[1]")
    assert parser.seeds == [b"{}", b"[1]"]
    with pytest.raises(ValueError, match="Expecting"):
        parser.read(b"{")
    assert path.read_bytes() == b"{}"


def test_deaths_are_told_with_their_input(script: Any, tmp_path: Path) -> None:
    fuzzing = script("fuzzing")
    (tmp_path / "oom-1").write_bytes(b"\x02abc")
    text = f"==1== ERROR: libFuzzer: out-of-memory\nTest unit written to {tmp_path}/oom-1\n"
    assert fuzzing._death(text, 71) == {
        "parser": 2,
        "what": "out of memory",
        "where": "",
        "said": "",
        "input": "AmFiYw==",
    }
    told = fuzzing._told({"said": "could not read /home/someone/a.json", "input": "A" * 400})
    assert told == {"said": "could not read *", "input": "300 bytes"}


def test_results_of_other_runs_are_taken_in(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzing = script("fuzzing")
    for name, target in (("one", "words"), ("two", "runs"), ("three", "words")):
        (tmp_path / name).write_text(json.dumps({"targets": {target: {"seconds": len(name)}}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fuzzing.py", "--take", "one", "two", "three", "--out", "out.json"])
    fuzzing.main()
    found = json.loads(Path("out.json").read_text())
    assert found["targets"] == {"runs": {"seconds": 3}, "words": {"seconds": 5}}
    assert list(found["targets"]) == ["runs", "words"]


def test_the_page_is_made_of_the_result_of_every_target(script: Any) -> None:
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert script("reliability_page").page(text, "fuzz", found) == text
    assert list(found["targets"]) == list(script("fuzzing").NAMES)
    for one in found["targets"].values():
        assert one["executions"] > 0
        assert one["edges"] > 0
        assert one["seconds"] > 0


def test_the_names_of_targets_are_those_of_the_table(script: Any) -> None:
    pytest.importorskip("fastapi")
    assert tuple(script("targets").TARGETS) == script("fuzzing").NAMES
