from __future__ import annotations

import numpy as np

from quintet.mining.summary import list_counts, quantiles, summarise


def test_quantiles_are_values_that_occur() -> None:
    assert quantiles(np.arange(101.0)) == [0, 5, 25, 50, 75, 95, 100]
    assert quantiles(np.array([])) is None


def test_the_last_of_a_short_list_is_its_last_real_one() -> None:
    scores = np.array([[3.0, 2.0, 1.0], [5.0, 4.0, -np.inf], [-np.inf] * 3])
    found = summarise(np.array([9.0]), scores, scores)
    assert found["texts"]["last"] is not None
    assert sorted({found["texts"]["last"][0], found["texts"]["last"][-1]}) == [1.0, 4.0]
    assert found["texts"]["1"][0] == 3.0
    assert found["positives"] == [9.0] * 7
    assert list_counts(np.array([[1, 2], [1, -1], [-1, -1]])) == {"anchors": 3, "not_full": 2, "empty": 1}
