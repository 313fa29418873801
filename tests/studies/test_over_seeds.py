from __future__ import annotations

import statistics
from typing import Any

import pytest

from quintet.studies.over_seeds import over_seeds


def test_mean_and_sample_standard_deviation() -> None:
    values = [{"rsum": value, "i2t_r1": -value} for value in (3.0, 5.0, 10.0)]
    found: dict[str, Any] = over_seeds(values)
    assert found["seeds"] == 3
    assert found["mean"] == {"rsum": 6.0, "i2t_r1": -6.0}
    assert found["spread"]["rsum"] == pytest.approx(statistics.stdev([3.0, 5.0, 10.0]))
    assert found["spread"]["rsum"] == pytest.approx((26 / 2) ** 0.5), "divided by one less than the number of seeds"


def test_one_seed_has_no_spread_and_none_has_nothing() -> None:
    assert over_seeds([{"rsum": 3.0}]) == {"seeds": 1, "mean": {"rsum": 3.0}, "spread": None}
    assert over_seeds([]) == {"seeds": 0, "mean": {}, "spread": None}
