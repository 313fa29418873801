from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.losses.distance_weighted import distance_weights, draw, sampled_triplet


def weights_by_loops(
    scores: Tensor, candidate: Tensor, dim: int, nearest: float, farthest: float | None
) -> list[list[float]]:
    rows = []
    for row in range(len(scores)):
        logs: list[float] = []
        for column in range(scores.shape[1]):
            x = max(nearest, math.sqrt(max(0.0, 2 - 2 * float(scores[row, column]))))
            counts = bool(candidate[row, column]) and (farthest is None or x < farthest)
            log = (2 - dim) * math.log(x) - (dim - 3) / 2 * math.log(1 - x * x / 4) if counts else -math.inf
            logs.append(log)
        top = max(logs)
        plain = [math.exp(log - top) if log > -math.inf else 0.0 for log in logs]
        rows.append([value / sum(plain) if sum(plain) else 0.0 for value in plain])
    return rows


@given(seed=st.integers(0, 99), dim=st.integers(3, 64), farthest=st.sampled_from([None, 1.2, 1.7]))
@settings(max_examples=40, deadline=None)
def test_weights_equal_the_formula(seed: int, dim: int, farthest: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(4, 6, generator=generator, dtype=torch.float64) * 1.9 - 0.95
    candidate = torch.rand(4, 6, generator=generator) < 0.6
    found = distance_weights(scores, candidate, dim=dim, nearest=0.5, farthest=farthest)
    expected = torch.tensor(weights_by_loops(scores, candidate, dim, 0.5, farthest), dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_released_numbers_of_the_weight() -> None:
    """log w in 512 dimensions is 73 at a cosine of .5, 44 at .4, 10 at .2, about 0 at 0, 10 at -.2, 56 at -.445."""
    cosines = torch.tensor([0.5, 0.4, 0.2, 0.0, -0.2, -0.445], dtype=torch.float64)
    weights = distance_weights(cosines[None], torch.ones(1, 6, dtype=torch.bool), dim=512, farthest=None)[0]
    log_weights = (weights / weights[3]).log() - math.log(2) / 2  # at a cosine of 0 it is -log(2) / 2 in any dimension
    assert [round(value) for value in log_weights.tolist()] == [73, 44, 10, 0, 10, 56]


@pytest.mark.parametrize("dim", [3, 512, 1024])
def test_extreme_scores_stay_finite(dim: int) -> None:
    scores = torch.tensor([[1.0, -1.0, 0.0, 1.0000001], [-1.0, -1.0, -1.0, -1.0]])
    for farthest in (None, 1.7):
        weights = distance_weights(scores, torch.ones(2, 4, dtype=torch.bool), dim=dim, farthest=farthest)
        assert weights.isfinite().all()
        assert weights[0].sum().item() == pytest.approx(1)
    assert not weights[1].any(), "everything lies beyond the cut-off"


def test_draws_follow_the_weights_and_never_take_a_zero() -> None:
    weights = torch.tensor([[0.0, 0.2, 0.0, 0.8, 0.0], [0.5, 0.25, 0.25, 0.0, 0.0]])
    uniform = torch.rand(2, 20_000, generator=torch.Generator().manual_seed(0))
    drawn = draw(weights, uniform)
    for row in range(2):
        counts = torch.bincount(drawn[row], minlength=5) / 20_000
        torch.testing.assert_close(counts, weights[row], atol=0.01, rtol=0)
        assert not counts[weights[row] == 0].any()
    edge = draw(weights, torch.tensor([[0.0, 1.0 - 2**-24], [0.0, 1.0 - 2**-24]]))
    assert edge.tolist() == [[1, 3], [0, 2]]


def triplet_by_loops(scores: Tensor, positive: Tensor, uniform: Tensor, dim: int, farthest: float) -> list[float]:
    weights = weights_by_loops(scores, ~positive, dim, 0.5, farthest)
    costs = []
    for row in range(len(scores)):
        cost = 0.0
        for p in range(scores.shape[1]):
            if positive[row, p] and sum(weights[row]):
                point, negative = float(uniform[row, p]), 0
                while point >= weights[row][negative]:
                    point -= weights[row][negative]
                    negative += 1
                cost += max(0.0, 0.2 + float(scores[row, negative]) - float(scores[row, p]))
        costs.append(cost)
    return costs


@given(seed=st.integers(0, 199))
@settings(max_examples=60, deadline=None)
def test_costs_equal_loops_over_positive_pairs(seed: int) -> None:
    """Groups of several make several positives an anchor, each with a draw of its own; some rows have no candidate."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 4, (6,), generator=generator)
    scores = torch.rand(6, 6, generator=generator, dtype=torch.float64) * 1.8 - 0.9
    uniform = torch.rand(6, 6, generator=generator, dtype=torch.float64)
    positive = groups[:, None] == groups
    costs, without = sampled_triplet(scores, positive, uniform, dim=8, farthest=1.0)
    expected = triplet_by_loops(scores, positive, uniform, 8, 1.0)
    torch.testing.assert_close(costs, torch.tensor(expected, dtype=torch.float64))
    candidates = ~positive & ((2 - 2 * scores).sqrt() < 1.0)
    assert torch.equal(without, ~candidates.any(dim=1))


def test_rows_without_candidates_cost_nothing_and_are_told() -> None:
    scores = torch.full((3, 3), 0.5, requires_grad=True)
    costs, without = sampled_triplet(scores, torch.ones(3, 3, dtype=torch.bool), torch.rand(3, 3), dim=8)
    assert not costs.any()
    assert without.all()
    costs.sum().backward()
    assert scores.grad is not None
    assert not scores.grad.any()


def test_gradients_go_to_the_positive_and_to_the_one_drawn() -> None:
    scores = torch.tensor([[0.5, 0.45, 0.4], [0.1, 0.9, 0.2], [0.3, 0.2, 0.4]], requires_grad=True)
    costs, _ = sampled_triplet(scores, torch.eye(3, dtype=torch.bool), torch.full((3, 3), 0.5), dim=64)
    costs[0].backward()
    assert scores.grad is not None
    assert scores.grad[0].tolist() == [-1.0, 1.0, 0.0], "one positive, one negative: the hard one, nearly for sure"
    assert not scores.grad[1:].any()


@pytest.mark.parametrize("wrong", [{"dim": 2}, {"dim": 8, "nearest": 0.0}, {"dim": 8, "nearest": 1.8}])
def test_impossible_cut_offs_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"dimensions|between 0 and 2"):
        distance_weights(torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool), **wrong)  # type: ignore[arg-type]
