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
from quintet.losses.step import Progress, Step
from quintet.losses.triplet import ContrastiveObjective, contrastive


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
