from __future__ import annotations

import numpy as np
import pytest

from quintet.errors import QuintetError
from quintet.evaluation.metrics import metrics_of_ranks
from quintet.evaluation.ranks import Ranks, ranks_of_matrix
from quintet.evaluation.significance import QueryValues, _group_table, bootstrap_intervals, paired_test, paired_values

GROUPS = np.arange(60)
TEXTS = np.repeat(GROUPS, 5)


def noisy(seed: int, signal: float) -> Ranks:
    rng = np.random.default_rng(seed)
    return ranks_of_matrix(rng.normal(size=(60, 300)) + signal * (GROUPS[:, None] == TEXTS), GROUPS, TEXTS)


@pytest.mark.parametrize("unit", ["group", "query"])
def test_intervals_hold_the_number_and_repeat_by_seed(unit: str) -> None:
    ranks = noisy(0, 2.0)
    metrics = metrics_of_ranks(ranks)
    intervals = bootstrap_intervals(ranks, seed=3, unit=unit)  # type: ignore[arg-type]
    assert set(intervals) == {name for name in metrics if not name.endswith("medr")}
    for name, (low, high) in intervals.items():
        assert low <= metrics[name] <= high
        assert low < high or metrics[name] == 100.0
    assert intervals == bootstrap_intervals(ranks, seed=3, unit=unit)  # type: ignore[arg-type]
    assert intervals != bootstrap_intervals(ranks, seed=4, unit=unit)  # type: ignore[arg-type]


def test_one_resample_equals_the_metrics_of_the_groups_it_drew() -> None:
    """The table of sums, weighted, against plainly repeating the queries of the drawn groups."""
    ranks = noisy(1, 2.0)
    table = _group_table(ranks)
    drawn = np.random.default_rng(0).integers(0, 60, 60)
    times = np.bincount(drawn, minlength=60)
    weighted = dict(zip(table.names, (times @ table.sums) / (times @ table.counts), strict=True))
    for direction in ("i2t", "t2i"):
        queries = getattr(ranks, direction)
        best = np.concatenate([queries.best[queries.groups == group] for group in drawn])
        for cut in (1, 5, 10):
            assert weighted[f"{direction}_r{cut}"] == pytest.approx(100 * np.mean(best < cut))
        assert weighted[f"{direction}_meanr"] == pytest.approx(best.mean() + 1)


def test_captions_of_one_image_that_agree_widen_the_interval() -> None:
    # Every caption of a group is a copy of one: as many observations as groups, not as captions.
    rng = np.random.default_rng(2)
    one = rng.normal(size=(60, 60)) + 2.0 * np.eye(60)
    ranks = ranks_of_matrix(np.repeat(one, 5, axis=1), GROUPS, TEXTS)
    by_group = bootstrap_intervals(ranks)["t2i_r1"]
    by_query = bootstrap_intervals(ranks, unit="query")["t2i_r1"]
    assert by_group[1] - by_group[0] > 1.7 * (by_query[1] - by_query[0])  # sqrt(5) = 2.24 in expectation


def test_coverage_is_about_95_per_cent() -> None:
    """Many corpora from one source: their intervals should hold the source's own number about 19 times in 20."""
    hits = np.random.default_rng(5).random((300, 200)) < 0.4  # 200 groups of one image and one text, R@1 = 40 %
    covered = 0
    for row in hits:
        ranks = Ranks(*(np.arange(200),) * 4, np.where(row, 0, 20), np.where(row, 0, 20))
        low, high = bootstrap_intervals(ranks, resamples=300)["i2t_r1"]
        covered += low <= 40.0 <= high
    assert 0.90 <= covered / 300 <= 0.985


def test_folds_are_resampled_within_themselves() -> None:
    # Fold one is perfect, fold two hopeless, neither varies: neither may the average.
    perfect = ranks_of_matrix(np.eye(12), range(12), range(12))
    hopeless = ranks_of_matrix(-np.eye(12), range(12), range(12))
    intervals = bootstrap_intervals([perfect, hopeless])
    assert intervals["i2t_r1"] == pytest.approx((50.0, 50.0))
    assert intervals["rsum"] == pytest.approx((300.0, 300.0))


def test_identical_runs_get_p_one() -> None:
    ranks = noisy(0, 1.0)
    for difference in paired_test(ranks, ranks, resamples=200).values():
        assert difference.difference == 0.0
        assert difference.p_value == 1.0
        assert difference.interval == (0.0, 0.0)


def test_swapping_the_runs_changes_signs_only() -> None:
    one, two = noisy(0, 1.2), noisy(1, 1.0)
    there, back = paired_test(one, two, resamples=500, seed=7), paired_test(two, one, resamples=500, seed=7)
    metrics_one, metrics_two = metrics_of_ranks(one), metrics_of_ranks(two)
    assert set(there) == {name for name in metrics_one if not name.endswith("medr")}
    for name, difference in there.items():
        assert difference.difference == pytest.approx(metrics_one[name] - metrics_two[name])
        assert back[name].difference == -difference.difference
        assert back[name].p_value == difference.p_value
        assert back[name].interval == pytest.approx((-difference.interval[1], -difference.interval[0]))


def test_a_real_difference_is_found_and_noise_is_not() -> None:
    better, worse, alike = noisy(0, 2.5), noisy(1, 1.0), noisy(2, 2.5)
    found = paired_test(better, worse, resamples=999)["rsum"]
    assert found.p_value == 1 / 1000
    assert found.interval[0] > 0
    nothing = paired_test(better, alike, resamples=999)["rsum"]
    assert nothing.p_value > 0.01


def test_p_values_are_uniform_when_there_is_no_difference() -> None:
    values = [paired_test(noisy(2 * k, 1.5), noisy(2 * k + 1, 1.5), resamples=200)["rsum"].p_value for k in range(60)]
    assert 0.3 < np.mean(values) < 0.7
    assert np.mean(np.array(values) < 0.05) < 0.15


def test_values_of_queries_are_paired_by_their_groups() -> None:
    groups = np.array([3, 3, 1, 5, 5, 5, 1])
    rng = np.random.default_rng(0)
    first, second = (QueryValues({"t2i_ndcg": rng.random(7)}, {"t2i": groups}) for _ in range(2))
    (found,) = paired_values(first, second, resamples=2_000).values()
    change = first.values["t2i_ndcg"] - second.values["t2i_ndcg"]
    sums = [change[groups == group].sum() for group in (1, 3, 5)]
    signs = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T  # all of them
    assert found.difference == pytest.approx(change.mean())
    share = np.mean(np.abs(signs @ sums) >= abs(sum(sums)) - 1e-12)
    assert found.p_value == pytest.approx(share, abs=0.04)
    other = QueryValues(second.values, {"t2i": groups[::-1]})
    with pytest.raises(QuintetError, match="same queries"):
        paired_values(first, other)


def test_different_queries_are_refused() -> None:
    other = ranks_of_matrix(np.eye(3), range(3), range(3))
    with pytest.raises(QuintetError, match="same split"):
        paired_test(noisy(0, 1.0), other)
    with pytest.raises(QuintetError, match="same split"):
        paired_test([other, other], other)


def test_no_resamples_and_unknown_units_are_refused() -> None:
    with pytest.raises(QuintetError, match="at least 1"):
        bootstrap_intervals(noisy(0, 1.0), resamples=0)
    with pytest.raises(QuintetError, match="'caption'"):
        bootstrap_intervals(noisy(0, 1.0), unit="caption")  # type: ignore[arg-type]
