"""A training step on a GPU against the same step on a CPU: scores, and the gradient of every parameter."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from quintet.data.batches import ImageBatch, TextBatch
from quintet.losses.triplet import triplet
from quintet.models import create_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MATCHERS = {
    "vse++": ("vse++", {"embed_dim": 64, "text_pooling": "max"}),
    "vse-gpo": ("vse++", {"embed_dim": 64, "pooling": "gpo", "text_pooling": "gpo", "projection": "mlp"}),
    "scan-t2i": ("scan", {"embed_dim": 64, "aggregation": "mean", "relu_slope": 0.1}),
    "scan-i2t": ("scan", {"embed_dim": 64, "direction": "i2t", "lambda_softmax": 4}),
    "scan-blocks": ("scan", {"embed_dim": 64, "budget": 1 << 20}),
    "bfan": ("bfan", {"embed_dim": 64}),
    "vsrn": ("vsrn", {"embed_dim": 64}),
    "hrem": ("hrem", {"embed_dim": 64, "dropout": 0.0}),
    "mmca": ("mmca", {"embed_dim": 64, "heads": 4, "text_dim": 32}),
}


def batches(n: int = 24) -> tuple[ImageBatch, TextBatch]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 31, (n,), generator=generator)
    regions = torch.randint(20, 37, (n,), generator=generator)
    mask = torch.arange(36) < regions[:, None]
    fragments = torch.rand(n, 36, 48, generator=generator)
    texts = [torch.randint(4, 100, (int(length),), generator=generator).tolist() for length in lengths]
    return ImageBatch(fragments=fragments, mask=mask), TextBatch.from_ids(texts)


def step(matcher: nn.Module, images: ImageBatch, texts: TextBatch) -> tuple[Tensor, dict[str, Tensor]]:
    scores = matcher.score(matcher.encode_images(images), matcher.encode_texts(texts))
    negative = ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    costs = triplet(scores, negative, choose="mean")
    (costs["text"].sum() + costs["image"].sum()).backward()
    return scores.detach().cpu(), {
        name: value.grad.detach().cpu() for name, value in matcher.named_parameters() if value.grad is not None
    }


@pytest.mark.parametrize("kind", MATCHERS)
@pytest.mark.parametrize("ragged", [True, False])
def test_a_step_is_the_same_as_on_a_cpu(kind: str, ragged: bool) -> None:
    torch.manual_seed(0)
    name, arguments = MATCHERS[kind]
    there = create_model(name, image_dim=48, vocabulary_size=100, **arguments).train()
    here = copy.deepcopy(there).double()
    there = there.to("cuda")
    images, texts = batches()
    if not ragged:
        images = ImageBatch(fragments=images.fragments)
    exact = ImageBatch(fragments=images.fragments.double(), mask=images.mask)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found, gradients = step(there, images.to("cuda"), texts.to("cuda"))
    expected, wanted = step(here, exact, texts)
    off = (found - expected).abs()
    if kind == "bfan":  # rounding decides whether a fragment at the threshold of a focal gate is kept
        assert off.quantile(0.95) < 1e-4
        assert off.max() < 5e-3
    else:
        assert off.max() < 1e-4
    assert set(gradients) == set(wanted)
    whole = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    for parameter, gradient in wanted.items():
        scale = torch.maximum(gradient.norm(), 1e-3 * whole)  # a bias before a BatchNorm has nothing but rounding
        assert (gradients[parameter] - gradient).norm() / scale < 5e-3, parameter
