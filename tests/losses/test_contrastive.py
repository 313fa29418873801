"""The contrastive loss against torch's cross-entropy and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.losses.contrastive import ContrastiveObjective, SigmoidObjective, contrastive
from quintet.losses.step import Progress, Step


def test_distinct_pairs_are_an_ordinary_classification() -> None:
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    costs = contrastive(scores, ~torch.eye(6, dtype=torch.bool), scale=7.0)
    own = torch.arange(6)
    torch.testing.assert_close(costs["text"], F.cross_entropy(7 * scores, own, reduction="none"))
    torch.testing.assert_close(costs["image"], F.cross_entropy(7 * scores.T, own, reduction="none"))


@settings(max_examples=30, deadline=None)
@given(groups=st.lists(st.integers(0, 4), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_own_group_is_no_negative(groups: list[int], seed: int) -> None:
    n = len(groups)
    scores = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    codes = torch.tensor(groups)
    costs = contrastive(scores, codes[:, None] != codes[None, :], scale=3.0)
    for i in range(n):
        others = [j for j in range(n) if groups[j] != groups[i]]
        for name, row in (("text", scores[i]), ("image", scores[:, i])):
            total = sum(math.exp(3 * row[j].item()) for j in [i, *others])
            assert costs[name][i].item() == pytest.approx(math.log(total) - 3 * row[i].item())


class Products(torch.nn.Module):
    def encode_images(self, images: ImageBatch) -> Codes:
        assert images.fragments is not None
        return Codes(embedding=images.fragments[:, 0])

    def encode_texts(self, texts: TextBatch) -> Codes:
        return Codes(embedding=F.one_hot(texts.tokens[:, 0], 3).float())

    def score(self, images: Codes, texts: Codes) -> torch.Tensor:
        assert images.embedding is not None
        assert texts.embedding is not None
        return images.embedding @ texts.embedding.T


def test_the_temperature_is_learned_and_bounded() -> None:
    objective = ContrastiveObjective(temperature=0.5)
    rows = torch.arange(3)
    batch = PairBatch(
        ImageBatch(fragments=torch.eye(3)[:, None]), TextBatch.from_ids([[0], [1], [2]]), rows, rows, rows, rows
    )
    terms = objective(Step(Products(), batch, Progress()))  # type: ignore[arg-type]
    expected = math.log(math.exp(2) + 2) - 2
    assert terms["text"].values.tolist() == pytest.approx([expected] * 3)
    assert terms["text"].collapse_value == pytest.approx(math.log(3))
    terms["text"].values.sum().backward()
    assert objective.log_scale.grad is not None
    assert objective.log_scale.grad.item() < 0  # right answers win: a sharper softmax costs less
    with torch.no_grad():
        objective.log_scale.fill_(50.0)
    sharp = objective(Step(Products(), batch, Progress()))  # type: ignore[arg-type]
    assert torch.isfinite(sharp["image"].values).all()
    with pytest.raises(ValueError, match="at least"):
        ContrastiveObjective(temperature=0.0)


def step_of(n: int = 5, seed: int = 0) -> tuple[Step, torch.Tensor, torch.Tensor]:
    """A step whose scores are given, and those of the offline negatives."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, n, generator=random, dtype=torch.float64)
    off = torch.rand(2, n, generator=random, dtype=torch.float64)
    groups = torch.tensor([0, 1, 1, 2, 3])[:n]
    rows = torch.arange(n)
    batch = PairBatch(
        ImageBatch(fragments=torch.zeros(n, 1, 1)), TextBatch.from_ids([[0]] * n), groups, groups, rows, rows
    )
    step = Step(Products(), batch, Progress())  # type: ignore[arg-type]
    step.__dict__ |= {"scores": scores, "off_text": off[0], "off_image": off[1], "image_codes": None}
    return step, scores, off


def logistic(logit: float) -> float:
    return -math.log(1 / (1 + math.exp(-logit)))


@pytest.mark.parametrize("offline", [False, True])
def test_contrastive_against_a_loop(offline: bool) -> None:
    step, scores, off = step_of()
    costs = ContrastiveObjective(temperature=0.25, offline=offline)(step)
    same = step.same_group
    for i in range(5):
        for name, row, wrong in (("text", scores[i], off[0]), ("image", scores[:, i], off[1])):
            logits = [4 * row[j].item() for j in range(5) if j == i or not same[i, j]]
            logits += [4 * wrong[i].item()] if offline else []
            expected = math.log(sum(map(math.exp, logits))) - 4 * row[i].item()
            assert costs[name].values[i].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("offline", [False, True])
def test_sigmoid_against_a_loop(offline: bool) -> None:
    step, scores, off = step_of(seed=1)
    costs = SigmoidObjective(temperature=0.25, bias=-2, offline=offline)(step)["pairs"].values
    for i in range(5):
        expected = logistic(4 * scores[i, i].item() - 2)
        expected += sum(logistic(-(4 * scores[i, j].item() - 2)) for j in range(5) if not step.same_group[i, j])
        if offline:
            expected += sum(logistic(-(4 * wrong[i].item() - 2)) for wrong in off)
        assert costs[i].item() == pytest.approx(expected, rel=1e-6)


class Scaled(Products):
    """Has a logit scale and bias of its own."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.tensor(scale))
        self.logit_bias = torch.nn.Parameter(torch.tensor(-1.0))


@pytest.mark.parametrize("loss", [ContrastiveObjective, SigmoidObjective])
def test_the_scale_of_the_matcher_is_trained_on_and_clipped(
    loss: type[ContrastiveObjective | SigmoidObjective],
) -> None:
    objective = loss(temperature="matcher", has_logit_scale=True)
    assert list(objective.parameters()) == []
    step, _, _ = step_of()
    step.matcher = Scaled(4.0)  # type: ignore[assignment]
    found = objective(step)
    plain = loss(temperature=0.25, **({"bias": -1.0} if loss is SigmoidObjective else {}))(step)
    for name, term in found.items():
        torch.testing.assert_close(term.values, plain[name].values)
    sum(term.values.sum() for term in found.values()).backward()  # type: ignore[union-attr]
    assert step.matcher.logit_scale.grad is not None  # type: ignore[attr-defined]
    step.matcher = Scaled(1e6)  # type: ignore[assignment]
    sharp = loss(temperature=0.01, **({"bias": -1.0} if loss is SigmoidObjective else {}))(step)
    for name, term in objective(step).items():
        torch.testing.assert_close(term.values, sharp[name].values)
    with pytest.raises(ValueError, match="logit scale"):
        loss(temperature="matcher")
