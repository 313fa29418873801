from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quintet.data.corpus import Corpus
from quintet.errors import QuintetError, TrainingError


class AtOnce:
    """A pool that does the work when it is asked, in this process."""

    def __init__(self, breaks: str = "") -> None:
        self.made: list[str] = []
        self.breaks = breaks

    def submit(self, work: Any, row: Any, setup: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.made.append(row.id)
        if row.id == self.breaks:
            future.set_exception(TrainingError("the loss is NaN"))
        else:
            future.set_result(work(row, setup))
        return future


@pytest.fixture
def flickr8k(script: Any) -> Any:
    return script("flickr8k")


def run(flickr8k: Any, toy: SimpleNamespace, rows: list[Any], pool: AtOnce, minutes: float | None = None) -> Any:
    schedule = flickr8k.Schedule(flickr8k.plan(toy.rows, rows, toy.setup), toy.setup, minutes)
    schedule.run(pool)
    return schedule


def chosen(flickr8k: Any, toy: SimpleNamespace, *patterns: str) -> list[Any]:
    return flickr8k.select(toy.rows, patterns, (0, 1))


def test_rows_are_chosen_by_pattern_and_seed(flickr8k: Any, toy: SimpleNamespace) -> None:
    assert [row.id for row in chosen(flickr8k, toy, "two")] == ["two-seed0", "two-seed1"]
    assert [row.id for row in chosen(flickr8k, toy, "one-*-seed1", "both*")][:2] == [
        "both-ensemble-seed0",
        "one-online-seed1",
    ]
    alone = {row.id for row in flickr8k.select(toy.rows, (), (0,))}
    assert "both-ensemble-seed0" in alone
    assert "one-ensemble-online-seed0" not in alone  # would need seed 1, which was not asked for


def test_a_row_brings_what_it_needs_and_is_made_once(
    flickr8k: Any, toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = AtOnce()
    run(flickr8k, toy, chosen(flickr8k, toy, "one-off-tri-seed0", "both-ensemble-seed0"), pool)
    assert pool.made == ["one-online-seed0", "one-off-tri-seed0", "two-seed0", "both-ensemble-seed0"]
    assert "one-off-tri-seed0: rsum" in capsys.readouterr().out
    again = AtOnce()
    run(flickr8k, toy, chosen(flickr8k, toy, "*-seed0"), again)
    assert set(again.made).isdisjoint(pool.made)

    single = json.loads((toy.setup.results / "one-off-tri-seed0.json").read_text())
    assert single["kind"] == "single"
    assert single["loss"] == "OffTri"
    assert single["recipe"]["stages"][0]["negatives"]["from"] == "RUNS/one-online-seed0"
    assert single["recipe"]["data"]["corpus"] == "CORPUS"
    assert single["training"]["seconds"] > 0
    assert single["peak_memory"]["bytes"] > 0
    assert set(single["intervals"]) >= {"i2t_r1", "t2i_r10", "rsum"}
    assert 0 <= single["similarities"]["S"] <= 1
    assert "--only one-off-tri-seed0 --again" in single["command"]
    together = json.loads((toy.setup.results / "both-ensemble-seed0.json").read_text())
    assert together["kind"] == "ensemble"
    assert together["members"] == ["one-online-seed0", "two-seed0"]
    assert "training" not in together


def test_second_rounds_of_one_run_mine_once(
    flickr8k: Any, toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import quintet.mining.mine as mining

    mined = []
    real = mining.mine_codes
    monkeypatch.setattr(mining, "mine_codes", lambda *args, **kwargs: mined.append(1) or real(*args, **kwargs))
    run(flickr8k, toy, chosen(flickr8k, toy, "one-off-*-seed0", "one-adap-*-seed0"), AtOnce())
    assert len(mined) == 1
    lists = sorted((toy.setup.runs).glob("one-*-seed0/stages/*/negatives/manifest.json"))
    assert len(lists) == 3
    assert len({path.read_bytes() for path in lists}) == 1


def test_agreement_with_people_is_measured_where_there_are_judgements(
    flickr8k: Any, toy: SimpleNamespace, tmp_path: Path
) -> None:
    split = Corpus.open(toy.setup.corpus).split("test")
    lines = [f"{image.id}\t{split.texts[(3 * k) % 12].id}\t{1 + k % 4}\t1\t2" for k, image in enumerate(split.images)]
    (tmp_path / "experts.txt").write_text("\n".join(lines), encoding="utf-8")
    setup = replace(toy.setup, annotations=tmp_path / "experts.txt")
    toy.row.check(setup)
    (row,) = chosen(flickr8k, toy, "two-seed0")
    found = toy.row.make_row(row, setup)
    assert found["human_agreement"]["judgements"] == 3 * found["human_agreement"]["pairs"] > 0
    assert "tau-c" in toy.row.summary_line(found)
    (tmp_path / "experts.txt").write_text("nowhere.jpg\tnothing#0\t1\t1\t1", encoding="utf-8")
    with pytest.raises(QuintetError, match="judged pairs"):
        toy.row.check(setup)


def test_hits_of_groups_add_up_to_rsum(flickr8k: Any, toy: SimpleNamespace) -> None:
    run(flickr8k, toy, chosen(flickr8k, toy, "two-seed0"), AtOnce())
    found = json.loads((toy.setup.results / "two-seed0.json").read_text())
    total = sum(
        100 * sum(map(int, found["hits"][way].split())) / found["counts"][f"{way}_queries"] for way in ("i2t", "t2i")
    )
    assert total == pytest.approx(found["metrics"]["rsum"])


def test_a_run_whose_weights_are_gone_is_trained_again_only_for_a_row_that_needs_it(
    flickr8k: Any, toy: SimpleNamespace
) -> None:
    run(flickr8k, toy, chosen(flickr8k, toy, "one-online-seed0"), AtOnce())
    before = (toy.setup.results / "one-online-seed0.json").read_bytes()
    (toy.setup.runs / "one-online-seed0").rename(toy.setup.runs / "lost")
    assert flickr8k.plan(toy.rows, chosen(flickr8k, toy, "one-online-seed0"), toy.setup) == []
    pool = AtOnce()
    run(flickr8k, toy, chosen(flickr8k, toy, "one-off-tri-seed0"), pool)
    assert pool.made == ["one-online-seed0", "one-off-tri-seed0"]
    assert (toy.setup.results / "one-online-seed0.json").read_bytes() == before


def test_no_row_starts_after_the_time_is_up(
    flickr8k: Any, toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = AtOnce()
    run(flickr8k, toy, chosen(flickr8k, toy), pool, minutes=-1)
    assert pool.made == []
    assert "rows were not started" in capsys.readouterr().out


def test_a_failure_costs_only_the_rows_that_need_it(flickr8k: Any, toy: SimpleNamespace) -> None:
    pool = AtOnce(breaks="one-online-seed0")
    schedule = run(flickr8k, toy, chosen(flickr8k, toy, "one-online-seed0", "one-off-tri-seed0", "two-seed0"), pool)
    assert schedule.failed["one-online-seed0"] == "TrainingError: the loss is NaN"
    assert schedule.failed["one-off-tri-seed0"] == "needs one-online-seed0, which failed"
    assert schedule.done == ["two-seed0"]
    assert not (toy.setup.results / "one-online-seed0.json").exists()


def test_the_list_says_what_is_done_and_what_has_changed(
    flickr8k: Any, toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = chosen(flickr8k, toy, "two-seed*")
    run(flickr8k, toy, rows[:1], AtOnce())
    capsys.readouterr()
    flickr8k.show(rows, toy.setup)
    first, second, total = capsys.readouterr().out.splitlines()
    assert "done, rsum" in first
    assert "changed" not in first
    assert second.endswith("to do")
    assert total == "2 rows, 2 of them trained anew; 1 done"
    flickr8k.show(flickr8k.with_overrides(rows, [("two*", "stages.online.epochs=3")]), toy.setup)
    assert "stages.0.epochs is 1" in capsys.readouterr().out
    said = [("two*", "stages.online.loss.triplet.same_group=ignored"), ("two*", "matcher.first_rank=1")]
    flickr8k.show(flickr8k.with_overrides(rows, said), toy.setup)
    assert "changed" not in capsys.readouterr().out, "a default that is said aloud is no change"


def test_made_again_is_compared_with_the_record(
    flickr8k: Any, toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = chosen(flickr8k, toy, "two-seed0")
    run(flickr8k, toy, rows, AtOnce())
    assert flickr8k.compare(rows, toy.setup.results, toy.setup)
    assert ": within" in capsys.readouterr().out
    other = tmp_path / "record" / "two-seed0.json"
    other.parent.mkdir()
    other.write_text(json.dumps({"metrics": {"rsum": 900.0}, "intervals": {"rsum": [890.0, 910.0]}}))
    assert not flickr8k.compare(rows, other.parent, toy.setup)
    assert "OUTSIDE" in capsys.readouterr().out


@pytest.mark.slow
def test_several_processes_make_the_same_rows(
    script: Any,
    flickr8k: Any,
    toy: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(script("catalogue").GRIDS, "flickr8k", toy.grids.Grid(toy.methods, toy.ensembles))
    setup = toy.setup
    folders = ["--corpus", str(setup.corpus), "--runs", str(setup.runs), "--results", str(setup.results)]
    options = [
        *folders,
        "--jobs",
        "2",
        "--device",
        "cpu",
        "--bootstrap",
        "20",
        "--only",
        "two*-seed0",
        "--only",
        "both*-seed0",
    ]
    assert flickr8k.main(options) == 0
    assert sorted(path.stem for path in setup.results.iterdir()) == [
        "both-ensemble-seed0",
        "one-online-seed0",
        "two-seed0",
    ]
    assert flickr8k.main(options) == 0
    assert "0 to make" in capsys.readouterr().out
