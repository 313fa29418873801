"""The ranking loss written out pair by pair, its draws, and two processes against one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.losses.dual_path_batch import (
    GROUPS,
    POOL_GROUPS,
    TOTAL,
    assert_two_processes_train_as_one,
    batch,
    matcher,
)
from torch import Tensor

from quintet import distributed
from quintet.codes import Codes
from quintet.data.batches import TextBatch
from quintet.errors import RecipeError
from quintet.losses.ranking import RankingObjective, random_columns
from quintet.losses.step import Progress, Step
from quintet.models.dual_path import DualPath, ReleasedHead
from quintet.protocols import evaluation_mode


def terms_of(module: RankingObjective, model: Any = None, seed: int = 2, **options: Any) -> dict[str, Any]:
    model = model or matcher()
    torch.manual_seed(seed)
    return module(Step(model, batch(**options), Progress()))


def test_eq_4_with_the_negatives_that_are_drawn() -> None:
    model, module = matcher(), RankingObjective(margin=0.7, weight=2.0)
    terms = terms_of(module, model)
    images, texts = model.encode_images(batch().images).embedding, model.encode_texts(batch().texts).embedding
    assert images is not None
    assert texts is not None
    torch.manual_seed(2)
    chances = torch.rand(2, TOTAL, TOTAL, generator=distributed.shared_generator(torch.device("cpu")))

    def cosine(i: int, t: int) -> torch.Tensor:
        return torch.nn.functional.cosine_similarity(images[i], texts[t], dim=0)

    for anchor in range(TOTAL):
        allowed = [other for other in range(TOTAL) if GROUPS[other] != GROUPS[anchor]]
        wrong_text = max(allowed, key=lambda other: chances[0, anchor, other].item())
        wrong_image = max(allowed, key=lambda other: chances[1, anchor, other].item())
        text = (0.7 - (cosine(anchor, anchor) - cosine(anchor, wrong_text))).clamp(min=0)
        image = (0.7 - (cosine(anchor, anchor) - cosine(wrong_image, anchor))).clamp(min=0)
        torch.testing.assert_close(terms["text"].values[anchor], text)
        torch.testing.assert_close(terms["image"].values[anchor], image)
    assert {term.weight for term in terms.values()} == {2.0}
    assert {term.collapse_value for term in terms.values()} == {0.7}, "what a collapsed matcher costs"


def test_negatives_are_uniform_over_other_groups() -> None:
    allowed = torch.tensor([[False, True, True, False, True]]).expand(30_000, 5)
    columns, has_one = random_columns(allowed, torch.rand(30_000, 5, generator=torch.Generator().manual_seed(0)))
    counts = torch.bincount(columns, minlength=5).tolist()
    assert counts[0] == counts[3] == 0
    assert all(abs(count - 10_000) < 350 for count in (counts[1], counts[2], counts[4]))
    assert has_one.all()


def test_draws_follow_the_checkpointed_stream() -> None:
    module = RankingObjective()
    first, again = terms_of(module)["text"].values, terms_of(module)["text"].values
    assert torch.equal(first, again)
    assert not torch.equal(terms_of(module, seed=5)["text"].values, first)


def test_a_batch_of_one_group_costs_nothing() -> None:
    step = Step(matcher(), batch(), Progress())
    step.__dict__["same_group"] = torch.ones(TOTAL, TOTAL, dtype=torch.bool)
    assert not any(term.values.any() for term in RankingObjective()(step).values())


def plain_pool(model: DualPath, texts: TextBatch) -> Tensor:
    """The pool's features text by text: its words from the random shift on, BatchNorms with running statistics."""
    found = []
    norms = [part for part in model.modules() if isinstance(part, torch.nn.BatchNorm1d)]
    for row, length in enumerate(texts.lengths.tolist()):
        assert texts.position_noise is not None
        start = int(texts.position_noise[row] * (8 - length + 1))
        words = torch.zeros(1, 8, dtype=torch.long)
        words[0, start : start + length] = texts.tokens[row, :length]
        for norm in norms:
            norm.eval()
        head, features = model.text_encoder.head, model.text_encoder.cnn(words)
        if isinstance(head, ReleasedHead):
            (linear,), (norm,) = head.linear, head.norm
            found.append(F.relu(norm(linear(features))))
        else:
            found.append(head(features))
    for norm in norms:
        norm.train()
    return torch.cat(found).detach()


RELEASED = {"head": "released", "test_positions": "all"}


@pytest.mark.parametrize("options", [{}, RELEASED])
def test_the_hardest_text_of_the_pool(options: dict[str, Any]) -> None:
    """Found at the shifts of training, with running statistics; texts of the image's own group are left out."""
    model, module = matcher(**options), RankingObjective(margin=1.0, negatives="hardest")
    pairs = batch()
    assert pairs.pool is not None
    assert module.pool_size == 256
    terms = terms_of(module, model)
    twin = matcher(**options)
    images = twin.encode_images(pairs.images)
    positive = twin.score_pairs(images, twin.encode_texts(pairs.texts))
    scores = twin.score(images, Codes(embedding=plain_pool(twin, pairs.pool.texts)))
    hardest = [
        max((p for p in range(len(POOL_GROUPS)) if POOL_GROUPS[p] != group), key=lambda p, i=i: scores[i, p].item())
        for i, group in enumerate(GROUPS)
    ]
    assert len(set(hardest)) > 1
    with evaluation_mode(twin):  # what the authors do not compare
        assert not torch.allclose(scores, twin.score(images, twin.encode_texts(pairs.pool.texts)))
    wrong = twin.score_pairs(images, twin.encode_texts(pairs.pool.texts.take(torch.tensor(hardest))))
    torch.testing.assert_close(terms["text"].values, (1.0 - (positive - wrong)).clamp(min=0))
    torch.testing.assert_close(terms["image"].values, terms_of(RankingObjective(), matcher(**options))["image"].values)
    assert model.training
    sum(term.values.sum() for term in terms.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="random or hardest"):
        RankingObjective(negatives="all")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="this batch has none"):
        terms_of(RankingObjective(negatives="hardest"), pool=False)


def random_negatives() -> RankingObjective:
    return RankingObjective()


def hardest_negatives() -> RankingObjective:
    return RankingObjective(negatives="hardest")


@pytest.mark.slow
@pytest.mark.parametrize("make", [random_negatives, hardest_negatives])
def test_two_processes_train_as_one(make: Any, tmp_path: Path) -> None:
    assert_two_processes_train_as_one(make, tmp_path)
