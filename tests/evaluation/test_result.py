from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quintet.data.corpus import Split, split_checksum
from quintet.errors import QuintetError
from quintet.evaluation.metrics import chance_level, metrics_of_ranks
from quintet.evaluation.ranks import Ranks, ranks_of_matrix
from quintet.evaluation.result import Result, load_ranks, provenance, write_result
from quintet.evaluation.significance import bootstrap_intervals


@pytest.fixture
def result(make_split: Callable[..., Split]) -> Result:
    split = make_split(range(6), np.repeat(range(6), 2))
    scores = np.random.default_rng(0).random((6, 12))
    ranks = ranks_of_matrix(scores, split.image_groups, split.text_groups)
    return Result(
        protocol="full",
        split="test",
        split_checksum=split_checksum(split),
        members=("a",),
        metrics=metrics_of_ranks(ranks),
        intervals=bootstrap_intervals(ranks, 50),
        chance=chance_level(split.image_groups, split.text_groups),
        counts={"images": 6, "texts": 12},
        settings={"seed": 0},
        ranks=(ranks, ranks),
    )


def test_the_file_holds_everything_needed_to_repeat_it(result: Result, tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", result, corpus="scenes", runs=[{"name": "a", "weights": "sha256:0"}])
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["metrics"] == result.metrics
    assert stored["intervals"]["rsum"] == list(result.intervals["rsum"])
    assert stored["kind"] == "single model"
    assert stored["split_checksum"] == result.split_checksum
    assert stored["provenance"]["corpus"] == "scenes"
    assert stored["provenance"]["runs"][0]["name"] == "a"
    assert set(stored["provenance"]) >= {"command", "time", "versions", "machine"}
    assert set(stored["provenance"]["versions"]) == {"quintet", "torch", "numpy", "python"}


def test_ranks_survive_saving(result: Result, tmp_path: Path) -> None:
    result.save_ranks(tmp_path / "ranks.npz")
    loaded = load_ranks(tmp_path / "ranks.npz")
    assert len(loaded) == 2
    for ours, theirs in zip(loaded, result.ranks, strict=True):
        assert isinstance(ours, Ranks)
        assert metrics_of_ranks(ours) == metrics_of_ranks(theirs)


def test_ranks_that_are_missing_or_damaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="does not exist"):
        load_ranks(tmp_path / "none.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(QuintetError, match="does not hold ranks"):
        load_ranks(tmp_path / "cut.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(QuintetError, match="does not hold ranks"):
        load_ranks(tmp_path / "other.npz")


def test_the_checksum_sees_ids_groups_and_order(make_split: Callable[..., Split]) -> None:
    one = make_split([0, 1, 2], [0, 1, 2])
    assert split_checksum(one) == split_checksum(make_split([0, 1, 2], [0, 1, 2]))
    assert split_checksum(one) != split_checksum(make_split([0, 1, 2], [0, 2, 1]))
    assert split_checksum(one) != split_checksum(one.take_groups([0, 2, 1]))
    assert split_checksum(one) != split_checksum(one.take_groups([0, 1]))


@pytest.mark.parametrize("program", ["/some/where/bin/quintet", "quintet"])
def test_the_command_is_recorded_without_the_place_of_the_program(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "evaluate", "runs/a b"])
    assert provenance()["command"] == "quintet evaluate 'runs/a b'"
    monkeypatch.setattr(sys, "argv", ["benchmarks/flickr8k.py", "--list"])
    assert provenance()["command"] == "benchmarks/flickr8k.py --list"


def test_results_and_ranks_of_somebody_else_are_not_replaced(result: Result, tmp_path: Path) -> None:
    for save, path in ((result.save, tmp_path / "a.json"), (result.save_ranks, tmp_path / "a.npz")):
        save(path)
        save(path)
        path.write_bytes(b'{"mine": 1}')
        with pytest.raises(QuintetError, match="is in the way"):
            save(path)
        assert path.read_bytes() == b'{"mine": 1}'
