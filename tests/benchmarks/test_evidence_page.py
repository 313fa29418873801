"""What docs/evidence.md makes of result files: effects, intervals, verdicts."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GROUPS = 40


@pytest.fixture
def numbers(script: Any) -> Any:
    return script("evidence_numbers")


def content(name: str, seed: int, share: float, noise: float = 0.0) -> dict[str, Any]:
    """A result in which a share of the groups is found, and the same ones by everybody."""
    found = np.arange(GROUPS) < GROUPS * share
    i2t, t2i = ("".join(f"{digit:x}" for digit in np.where(found, digits, 0)) for digits in (3, 15))
    rsum = 600 * float(found.mean()) + noise
    return {"name": name, "seed": seed, "hits": {"i2t": i2t, "t2i": t2i}, "test": {"rsum": rsum}}


def runs(**shares: tuple[float, float, float]) -> dict[str, dict[int, dict[str, Any]]]:
    return {name: {seed: content(name, seed, one) for seed, one in enumerate(three)} for name, three in shares.items()}


def test_the_doctests_hold(numbers: Any) -> None:
    assert doctest.testmod(numbers).failed == 0


def test_the_recorded_hits_give_the_recorded_rsum_and_an_interval_around_it(numbers: Any) -> None:
    for seeds in list(numbers.read_runs().values())[:200:20]:
        for one in seeds.values():
            if "test" in one:
                assert numbers.shares(one["hits"]).sum() == pytest.approx(one["test"]["rsum"], abs=0.01)
                low, high = numbers.rsum_interval(one["hits"])
                assert low < one["test"]["rsum"] < high
                assert high - low < 60  # 1,000 groups


@pytest.mark.parametrize(
    ("better", "verdict"),
    [
        ((0.6, 0.6, 0.7), "shown"),
        ((0.2, 0.2, 0.1), "refuted here"),
        ((0.6, 0.4, 0.5), "no effect seen"),
    ],
)
def test_a_verdict_needs_both_intervals_on_one_side_of_zero(
    numbers: Any, better: tuple[float, float, float], verdict: str
) -> None:
    made = runs(one=better, other=(0.4, 0.4, 0.45))
    effect = numbers.Effect(made, numbers.minus("one", "other"))
    assert effect.mean() == pytest.approx(600 * (np.mean(better) - np.mean([0.4, 0.4, 0.45])))
    assert effect.verdict == verdict


def test_the_two_directions_add_up_to_the_effect(numbers: Any) -> None:
    effect = numbers.Effect(numbers.read_runs(), numbers.gain(2000, 128))
    for measure in ("test", "test_true"):
        parts = [effect.way(direction, measure) for direction in ("i2t", "t2i")]
        assert sum(parts) == pytest.approx(effect.mean(measure), abs=0.001)
        assert parts[0] < parts[1] < 0


def test_fewer_seeds_than_the_design_asks_for_have_no_verdict(numbers: Any) -> None:
    made = runs(one=(0.8, 0.8, 0.8), other=(0.1, 0.1, 0.1))
    del made["one"][1]
    assert numbers.Effect(made, numbers.minus("one", "other")).verdict == "not measured (2 of 3 seeds)"
    assert numbers.Effect(made, numbers.minus("one", "nothing")).verdict == "not measured"


def test_the_slope_is_that_of_a_least_squares_line(numbers: Any) -> None:
    xs, ys = [16, 64, 64, 512], [-30.0, -10.0, -14.0, 6.0]
    weights = numbers.slope([(x, {str(at): 1.0}) for at, x in enumerate(xs)])
    slope = sum(weights[str(at)] * y for at, y in enumerate(ys))
    assert slope == pytest.approx(np.polyfit(np.log2(xs), ys, 1)[0])


def test_the_page_in_docs_is_that_of_the_result_files(script: Any, tmp_path: Path) -> None:
    page = script("evidence_page")
    page.main(to=tmp_path / "evidence.md")
    assert (tmp_path / "evidence.md").read_text() == page.PAGE.read_text(), "python -m benchmarks.pages.evidence_page"


def test_the_answer_fits_one_screen(script: Any) -> None:
    """Three sentences and a table of at most ten rows and five columns stand before everything else."""
    page = script("evidence_page")
    top = page.PAGE.read_text().split("\n## ")[1]
    rows = [line for line in top.splitlines() if line.startswith("| ")]
    assert len(rows) <= 11
    assert all(line.count(" | ") == 4 for line in rows)
    assert len(page.answer(page.read_runs()).splitlines()) == 3


def test_the_advice_in_docs_has_the_numbers_of_the_result_files(script: Any, tmp_path: Path) -> None:
    page = script("advice_page")
    assert doctest.testmod(page).failed == 0
    page.main(tmp_path / "advice.md")
    assert (tmp_path / "advice.md").read_text() == page.PAGE.read_text(), "python -m benchmarks.pages.advice_page"
    with pytest.raises(SystemExit, match="no result file"):
        page.value("flickr8k/no-such-row")
