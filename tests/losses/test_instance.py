"""The instance loss against a plain softmax of both modalities, and two processes against one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.losses.dual_path_batch import CLASSES, DIM, GROUPS, TOTAL, assert_two_processes_train_as_one, batch, matcher
from torch import Tensor

from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.errors import RecipeError
from quintet.losses.instance import InstanceObjective
from quintet.losses.step import Progress, Step
from quintet.models.scan import build_scan
from quintet.models.vse import build_vse


def objective(**options: Any) -> InstanceObjective:
    torch.manual_seed(1)
    return InstanceObjective(CLASSES, DIM, **options).double()


def terms_of(module: InstanceObjective, model: Any = None, seed: int = 2) -> dict[str, Any]:
    model = model or matcher()
    torch.manual_seed(seed)
    return module(Step(model, batch(), Progress()))


def plain(features: Tensor, weight: Tensor) -> Tensor:
    """Eq. 5 and 6 (7 and 8), item by item."""
    costs = []
    for row, group in zip(features, GROUPS.tolist(), strict=True):
        probabilities = (weight @ row).softmax(dim=0)
        costs.append(-probabilities[group].log())
    return torch.stack(costs)


def test_one_classifier_for_both_modalities() -> None:
    model, module = matcher(), objective(dropout=0.0, image_weight=0.5, text_weight=2.0)
    terms = terms_of(module, model)
    for name, codes in (
        ("image", model.encode_images(batch().images)),
        ("text", model.encode_texts(batch().texts)),
    ):
        assert codes.embedding is not None
        torch.testing.assert_close(terms[name].values, plain(codes.embedding, module.classifier.weight))
        logits = codes.embedding @ module.classifier.weight.T
        wrong = (logits >= logits.gather(1, GROUPS[:, None])).sum(dim=1) > 1
        assert terms[f"{name}_error"].values.tolist() == wrong.double().tolist()
    assert [terms[name].weight for name in ("image", "text", "image_error", "text_error")] == [0.5, 2.0, 0, 0]
    assert [name for name, _ in module.named_parameters()] == ["classifier.weight"], "Eq. 5 has no bias"


def test_gradients_are_those_of_the_plain_softmax() -> None:
    model, module = matcher(), objective(dropout=0.0)
    sum(term.weight * term.values.sum() for term in terms_of(module, model).values()).backward()
    twin, weight = matcher(), module.classifier.weight.detach().clone().requires_grad_()
    images, texts = twin.encode_images(batch().images), twin.encode_texts(batch().texts)
    assert images.embedding is not None
    assert texts.embedding is not None
    (plain(images.embedding, weight) + plain(texts.embedding, weight)).sum().backward()
    torch.testing.assert_close(module.classifier.weight.grad, weight.grad)
    for got, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)


def test_dropout_scales_what_it_keeps_and_sleeps_when_measured() -> None:
    module = objective(dropout=0.75)
    kept = module._dropped(torch.ones(200, 200, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert set(kept.unique().tolist()) == {0.0, 4.0}
    assert (kept > 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    dropped, again = terms_of(module)["image"].values, terms_of(module)["image"].values
    assert torch.equal(dropped, again), "drawn from the checkpointed stream"
    assert not torch.equal(terms_of(module, seed=9)["image"].values, dropped)
    torch.testing.assert_close(
        terms_of(module.eval())["image"].values, terms_of(objective(dropout=0.0))["image"].values
    )


def test_sampling_all_classes_is_the_whole_softmax_and_a_few_are_fewer() -> None:
    whole = terms_of(objective(dropout=0.0))["text"].values
    for sampled in (2, CLASSES):  # the batch is of six of the eight classes
        torch.testing.assert_close(terms_of(objective(dropout=0.0, sampled=sampled))["text"].values, whole)
    fewer = terms_of(objective(dropout=0.0, sampled=1))["text"].values
    assert not torch.isclose(fewer, whole).any(), "one of the two others stands for both"
    targets = torch.tensor([0, 3, 3])
    others = objective(sampled=2)._others(targets, torch.Generator().manual_seed(0))
    assert others is not None
    assert len(others) == 2
    assert not set(others.tolist()) & {0, 3}


def test_pseudo_categories_replace_groups() -> None:
    module = objective(dropout=0.0, categories=3)
    assert module.classifier.classes == 3
    with pytest.raises(RecipeError, match="no pseudo-categories yet"):
        terms_of(module)
    classes = torch.tensor([2, 0, 1, 1, 0, 2, 0, 1])
    module.assign(classes)
    terms, model = terms_of(module), matcher()
    codes = model.encode_images(batch().images).embedding
    assert codes is not None
    logits = codes @ module.classifier.weight.T
    expected = torch.nn.functional.cross_entropy(logits, classes[GROUPS], reduction="none")
    torch.testing.assert_close(terms["image"].values, expected)
    assert "class_of_group" in module.state_dict(), "a resumed run has them"


def test_unit_vectors_are_scaled_and_matchers_without_one_refused() -> None:
    images = ImageBatch(fragments=torch.randn(TOTAL, 3, 4))
    texts = TextBatch.from_ids([[1, 2]] * TOTAL)
    pairs = PairBatch(images, texts, GROUPS, GROUPS, GROUPS, GROUPS)
    unit = build_vse(vocabulary_size=9, image_dim=4, embed_dim=DIM, word_dim=3)
    module = objective(dropout=0.0, scale=20.0).float()
    costs = module(Step(unit, pairs, Progress()))["image"].values
    codes = unit.encode_images(images).embedding
    assert codes is not None
    torch.testing.assert_close(costs, plain(20 * codes, module.classifier.weight))
    with pytest.raises(RecipeError, match="use dual-path"):
        module(Step(build_scan(vocabulary_size=9, image_dim=4, embed_dim=DIM, word_dim=3), pairs, Progress()))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dropout": 1.0}, "dropout"), ({"sampled": 0}, "1 or more"), ({"categories": 99}, "2 to 8")],
)
def test_impossible_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**options)


def with_everything() -> InstanceObjective:
    return objective(dropout=0.5, sampled=3, bias=True)


def as_published() -> InstanceObjective:
    return objective(dropout=0.75)


@pytest.mark.slow
@pytest.mark.parametrize("make", [as_published, with_everything])
def test_two_processes_train_as_one(make: Any, tmp_path: Path) -> None:
    """Classes shared out, dropout and samples drawn alike, BatchNorms over both: every gradient is the same."""
    assert_two_processes_train_as_one(make, tmp_path)
