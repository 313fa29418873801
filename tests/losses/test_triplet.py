"""Triplet losses against plain loops over explicit triplets."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.losses.step import Progress, Step
from quintet.losses.triplet import TripletObjective, triplet


def plain_triplet(scores: Tensor, image_groups: list[int], text_groups: list[int], margin: float, choose: str) -> dict:
    """Equations 1 and 2 of the AOQ paper, one triplet at a time."""
    n = len(scores)
    found: dict[str, list[float]] = {"text": [], "image": []}
    for i in range(n):
        wrong_texts = [j for j in range(n) if text_groups[j] != image_groups[i]]
        wrong_images = [j for j in range(n) if image_groups[j] != text_groups[i]]
        for name, costs in (
            ("text", [max(0.0, margin - float(scores[i, i]) + float(scores[i, j])) for j in wrong_texts]),
            ("image", [max(0.0, margin - float(scores[i, i]) + float(scores[j, i])) for j in wrong_images]),
        ):
            if choose == "softmax":
                wrong = [float(scores[i, j]) for j in wrong_texts]
                if name == "image":
                    wrong = [float(scores[j, i]) for j in wrong_images]
                gaps = [math.exp((score - float(scores[i, i])) / (margin / 4)) for score in wrong]
                found[name].append(margin / 4 * math.log(1 + sum(gaps)))
                continue
            violations = [cost for cost in costs if cost > 0]
            if choose == "hardest":
                found[name].append(max(costs, default=0.0))
            elif choose == "all":
                found[name].append(sum(costs))
            else:
                found[name].append(sum(violations) / max(len(violations), 1))
    return found


@pytest.mark.parametrize("choose", ["hardest", "all", "mean", "softmax"])
@settings(max_examples=30, deadline=None)
@given(groups=st.lists(st.integers(0, 4), min_size=1, max_size=9), seed=st.integers(0, 10_000))
def test_equals_plain_loops(choose: str, groups: list[int], seed: int) -> None:
    scores = torch.rand(len(groups), len(groups), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    codes = torch.tensor(groups)
    costs = triplet(scores, codes[:, None] != codes[None, :], margin=0.2, choose=choose)
    expected = plain_triplet(scores, groups, groups, 0.2, choose)
    for name in ("text", "image"):
        torch.testing.assert_close(costs[name], torch.tensor(expected[name], dtype=torch.float64))


def test_hand_computed() -> None:
    scores = torch.tensor([[0.5, 0.4, 0.6], [0.1, 0.5, 0.2], [0.3, 0.35, 0.9]])
    costs = triplet(scores, ~torch.eye(3, dtype=torch.bool), margin=0.2)
    torch.testing.assert_close(costs["text"], torch.tensor([0.3, 0.0, 0.0]))  # 0.2 - 0.5 + 0.6
    torch.testing.assert_close(costs["image"], torch.tensor([0.0, 0.1, 0.0]))  # 0.2 - 0.5 + 0.4


@pytest.mark.parametrize("choose", ["hardest", "all", "mean", "softmax"])
def test_gradients_are_right(choose: str) -> None:
    scores = torch.rand(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    negative = ~torch.eye(5, dtype=torch.bool)
    assert torch.autograd.gradcheck(
        lambda values: tuple(triplet(values, negative, margin=0.2, choose=choose).values()),  # type: ignore[arg-type]
        scores,
    )


@pytest.mark.parametrize("choose", ["hardest", "all", "mean", "softmax"])
def test_a_batch_of_one_group_costs_nothing_and_has_finite_gradients(choose: str) -> None:
    scores = torch.zeros(3, 3, requires_grad=True)
    costs = triplet(scores, torch.zeros(3, 3, dtype=torch.bool), choose=choose)  # type: ignore[arg-type]
    assert not costs["text"].any()
    (costs["text"].sum() + costs["image"].sum()).backward()
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.zeros(3, 3))


def test_a_cold_softmax_is_the_hardest_without_its_margin() -> None:
    scores = torch.rand(6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    negative = ~torch.eye(6, dtype=torch.bool)
    cold, hardest = (
        triplet(scores, negative, margin=margin, choose=choose)  # type: ignore[arg-type]
        for margin, choose in ((1e-4, "softmax"), (0.0, "hardest"))
    )
    for name in ("text", "image"):
        torch.testing.assert_close(cold[name], hardest[name], rtol=0, atol=1e-4)


class GivenScores:
    """A matcher whose scores are known."""

    image_input = "fragments"

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def encode_images(self, images: ImageBatch) -> Codes:
        return Codes(embedding=self.scores)

    def encode_texts(self, texts: TextBatch) -> Codes:
        return Codes(embedding=torch.eye(len(texts)))

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        assert image_codes.embedding is not None
        assert text_codes.embedding is not None
        return image_codes.embedding @ text_codes.embedding.T

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return self.score(image_codes, text_codes).diagonal()


def step_of(scores: Tensor, groups: list[int], epoch: float = 0.0) -> Step:
    n = len(scores)
    codes = torch.tensor(groups)
    batch = PairBatch(
        images=ImageBatch(fragments=torch.zeros(n, 1, 1)),
        texts=TextBatch(torch.ones(n, 1, dtype=torch.int64), torch.ones(n, dtype=torch.int64)),
        image_groups=codes,
        text_groups=codes,
        image_rows=torch.arange(n),
        text_rows=torch.arange(n),
    )
    return Step(GivenScores(scores), batch, Progress(epoch=epoch))


def test_captions_of_one_image_are_negatives_only_on_request() -> None:
    scores = torch.tensor([[0.5, 0.9, 0.1], [0.9, 0.5, 0.1], [0.1, 0.1, 0.5]])
    groups = [7, 7, 8]
    ignored = TripletObjective()(step_of(scores, groups))
    assert float(ignored["text"].values.sum()) == 0.0
    as_released = TripletObjective(same_group="negative")(step_of(scores, groups))
    torch.testing.assert_close(as_released["text"].values, torch.tensor([0.6, 0.6, 0.0]))


def test_the_warm_up_averages_and_then_takes_the_hardest() -> None:
    scores = torch.tensor([[0.5, 0.4, 0.6], [0.1, 0.5, 0.2], [0.3, 0.35, 0.9]])
    objective = TripletObjective(warmup_epochs=2)
    early = objective(step_of(scores, [0, 1, 2], epoch=1.9))["text"].values
    late = objective(step_of(scores, [0, 1, 2], epoch=2.0))["text"].values
    torch.testing.assert_close(early, torch.tensor([(0.1 + 0.3) / 2, 0.0, 0.0]))
    torch.testing.assert_close(late, torch.tensor([0.3, 0.0, 0.0]))


def test_the_warm_up_may_be_a_softmax_which_has_no_flat_value() -> None:
    step = step_of(torch.tensor([[0.5, 0.4, 0.6], [0.1, 0.5, 0.2], [0.3, 0.35, 0.9]]), [0, 1, 2])
    terms = TripletObjective(warmup_epochs=2, warmup="softmax")(step)
    expected = triplet(step.scores, ~step.diagonal, choose="softmax")
    torch.testing.assert_close(terms["image"].values, expected["image"])
    assert terms["image"].collapse_value is None


def test_equal_scores_sit_at_the_flat_value() -> None:
    term = TripletObjective(margin=0.3)(step_of(torch.full((4, 4), 0.7), [0, 1, 2, 3]))["image"]
    assert term.collapse_value is not None
    torch.testing.assert_close(term.values, torch.full((4,), term.collapse_value))


def test_misspelt_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="hardest or all"):
        TripletObjective(negatives="hardset")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="warmup_epochs"):
        TripletObjective(negatives="all", warmup_epochs=1)
    with pytest.raises(ValueError, match="mean, softmax"):
        TripletObjective(warmup_epochs=1, warmup="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="temperature from the margin"):
        TripletObjective(warmup_epochs=1, warmup="softmax", margin=0.0)
    with pytest.raises(ValueError, match="ignored or negative"):
        TripletObjective(same_group="positive")  # type: ignore[arg-type]
