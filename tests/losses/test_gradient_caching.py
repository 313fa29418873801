"""Steps that encode in chunks against plain ones: values, gradients, random states, memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.losses import OBJECTIVES
from quintet.losses import step as steps
from quintet.losses.step import Progress, Step, Term
from quintet.models import create_model
from quintet.protocols import Matcher, module_of

SIZE, REGIONS, DIM, WORDS = 7, 3, 5, 12
MATCHERS: dict[str, dict[str, Any]] = {
    "vse++": {"embed_dim": 6, "word_dim": 4},
    "scan": {"embed_dim": 6, "word_dim": 4},
    "bfan": {"embed_dim": 6, "word_dim": 4},
}
LOSSES: dict[str, dict[str, Any]] = {
    "triplet": {"negatives": "hardest"},
    "contrastive": {"offline": True},
    "sigmoid": {},
    "quintuplet": {"variant": "adaptive"},
}


def images(seed: int, size: int = SIZE) -> ImageBatch:
    random = torch.Generator().manual_seed(seed)
    return ImageBatch(fragments=torch.randn(size, REGIONS, DIM, generator=random, dtype=torch.float64))


def texts(seed: int, size: int = SIZE) -> TextBatch:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 6, (size,), generator=random).tolist()
    return TextBatch.from_ids([torch.randint(4, WORDS, (n,), generator=random).tolist() for n in lengths])


def batch() -> PairBatch:
    groups = torch.tensor([0, 1, 2, 3, 3, 4, 5])
    offline = OfflineBatch(texts(1), images(2), images(3), texts(4))
    return PairBatch(images(0), texts(0), groups, groups, torch.arange(SIZE), torch.arange(SIZE), offline)


def make(matcher: str, **more: Any) -> Matcher:
    torch.manual_seed(0)
    made = create_model(matcher, vocabulary_size=WORDS, image_dim=DIM, **MATCHERS[matcher], **more)
    module_of(made).double().train()
    return made


def outcome(matcher: Matcher, loss: str, chunk: int | None) -> tuple[dict[str, Term], dict[str, torch.Tensor]]:
    """The terms of a loss, and the gradients of the matcher and of what the loss has learned."""
    torch.manual_seed(1)
    module = nn.ModuleDict({"matcher": module_of(matcher), "loss": OBJECTIVES.create(loss, **LOSSES[loss]).double()})
    module.zero_grad()
    terms = module["loss"](Step(matcher, batch(), Progress(epoch=5.0), chunk=chunk))
    torch.stack([term.values.sum() for term in terms.values()]).sum().backward()
    return terms, {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MATCHERS)
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_change_neither_loss_nor_gradient(name: str, loss: str, chunk: int) -> None:
    matcher = make(name)
    plain, gradients = outcome(matcher, loss, None)
    cached, again = outcome(matcher, loss, chunk)
    for term in plain:
        torch.testing.assert_close(cached[term].values, plain[term].values, rtol=0, atol=1e-12)
    assert again.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(again[parameter], gradient, rtol=0, atol=1e-11)
    assert any(gradient.abs().max() > 1e-6 for gradient in gradients.values())


def test_dropout_is_the_same_when_a_chunk_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    dropping: Any = Dropping(make("vse++"))
    _, cached = outcome(dropping, "triplet", 3)
    with monkeypatch.context() as patch:  # the same chunks, kept instead of encoded again
        patch.setattr(steps, "checkpoint", lambda function, *inputs, **_: function(*inputs))
        _, kept = outcome(dropping, "triplet", 3)
    for parameter, gradient in kept.items():
        torch.testing.assert_close(cached[parameter], gradient, rtol=0, atol=1e-12)
    _, without = outcome(make("vse++"), "triplet", 3)
    assert any(not torch.allclose(without[name.replace("inner.", "")], kept[name]) for name in kept), "dropout is on"


class Dropping(nn.Module):
    """A matcher behind dropout."""

    image_input = "fragments"

    def __init__(self, inner: Matcher) -> None:
        super().__init__()
        self.inner: Any = inner
        self.dropout = nn.Dropout(0.5)

    def encode_images(self, images: ImageBatch) -> Codes:
        codes = self.inner.encode_images(images)
        return Codes(embedding=self.dropout(codes.embedding))

    def encode_texts(self, texts: TextBatch) -> Codes:
        codes = self.inner.encode_texts(texts)
        return Codes(embedding=self.dropout(codes.embedding))

    def score(self, images: Codes, texts: Codes) -> torch.Tensor:
        return self.inner.score(images, texts)

    def score_pairs(self, images: Codes, texts: Codes) -> torch.Tensor:
        return self.inner.score_pairs(images, texts)


def kept_for_backward(compute: Callable[[], object]) -> int:
    """Elements that autograd keeps of a forward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outcome = compute()
    assert outcome is not None
    return sum(kept.values())


@pytest.mark.parametrize("name", ["vse++", "scan"])
def test_memory_holds_codes_instead_of_activations(name: str) -> None:
    matcher = make(name)
    plain = kept_for_backward(lambda: Step(matcher, batch(), Progress()).scores)
    cached = kept_for_backward(lambda: Step(matcher, batch(), Progress(), chunk=2).scores)
    assert cached < plain / 2
