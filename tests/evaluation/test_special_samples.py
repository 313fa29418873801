from __future__ import annotations

import numpy as np
import pytest
import torch

from quintet.errors import QuintetError
from quintet.evaluation.ranks import ranks_of_matrix
from quintet.evaluation.special_samples import negative_means, special_samples


@pytest.mark.parametrize("block", [(2, 3), (100, 100)])
def test_means_are_over_wrong_candidates_only(block: tuple[int, int]) -> None:
    images, texts = np.array([0, 1, 2, 2, 3]), np.array([0, 0, 1, 2, 3, 3, 3])
    scores = np.random.default_rng(0).normal(size=(5, 7))
    matrix = torch.from_numpy(scores)
    image_means, text_means = negative_means(lambda rows, columns: matrix[rows, columns], images, texts, block)
    for i, group in enumerate(images):
        assert image_means[i] == pytest.approx(np.mean([scores[i, t] for t in range(7) if texts[t] != group]))
    for t, group in enumerate(texts):
        assert text_means[t] == pytest.approx(np.mean([scores[i, t] for i in range(5) if images[i] != group]))


def test_recalls_are_of_the_chosen_queries() -> None:
    groups = np.arange(10)
    good, bad = np.eye(10), np.eye(10)
    bad[[0, 1]] = bad[[1, 0]]  # two images are taken for each other
    runs = {"good": ranks_of_matrix(good, groups, groups), "bad": ranks_of_matrix(bad, groups, groups)}
    rows = special_samples(runs, np.linspace(1, 0, 10), np.linspace(0, 1, 10), percents=(10, 40))
    found = {(row["samples"], row["percent"], row["run"]): row for row in rows}
    assert len(rows) == 2 * 2 * 2
    assert all(found[kind, percent, "good"]["i2t_r1"] == 100 for kind in ("hard", "infrequent") for percent in (10, 40))
    assert found["hard", 10, "bad"] == {
        **{"samples": "hard", "percent": 10, "run": "bad"},
        **{"i2t_r1": 0.0, "i2t_queries": 1, "t2i_r1": 100.0, "t2i_queries": 1},
    }
    assert (found["hard", 40, "bad"]["i2t_r1"], found["hard", 40, "bad"]["i2t_queries"]) == (50.0, 4)
    assert found["infrequent", 40, "bad"]["i2t_r1"] == 100.0, "the other end"
    assert found["infrequent", 10, "bad"]["t2i_r1"] == 0.0


def test_queries_without_a_right_candidate_are_not_counted() -> None:
    runs = {"run": ranks_of_matrix(np.eye(3), [0, 1, 9], [0, 1, 8])}
    (row,) = [
        row for row in special_samples(runs, np.array([0.0, 0.0, 1.0]), np.zeros(3), (5,)) if row["samples"] == "hard"
    ]
    assert (row["i2t_queries"], row["i2t_r1"]) == (1, 100.0), "the highest mean is of no query that is measured"


def test_a_split_of_one_group_has_no_special_samples() -> None:
    with pytest.raises(QuintetError, match="no negatives"):
        negative_means(lambda rows, columns: torch.zeros(1, 2), [0], [0, 0])
