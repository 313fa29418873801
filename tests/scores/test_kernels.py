"""The fused kernel against its plain twin; without a GPU by `TRITON_INTERPRET=1 pytest -m gpu`, if Triton is there."""

from __future__ import annotations

import os
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.scores.attention import Norm, attended_cosines

pytest.importorskip("triton")
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
if not torch.cuda.is_available() and not interpreted:
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from quintet.scores.kernels.cosines import fits, fused_cosines  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICE = "cpu" if interpreted else "cuda"


def block(sizes: tuple[int, int, int, int], masked: bool, paired: bool) -> list[Tensor | None]:
    contexts, context_length, queries, query_length = sizes
    generator = torch.Generator().manual_seed(0)

    def side(n: int, length: int) -> tuple[Tensor, Tensor | None]:
        values = F.normalize(torch.randn(n, length, 32, generator=generator), dim=-1)
        mask = torch.rand(n, length, generator=generator) > 0.3
        mask[:, 0] = True
        return (values * mask[..., None], mask) if masked else (values * 1.2, None)

    context, context_mask = side(contexts, context_length)
    query, query_mask = side(queries, query_length)
    axis = 1 if paired else 0
    products = (context @ query.mT)[:, :, None] if paired else torch.einsum("cid,qwd->ciqw", context, query)
    squares = query.square().sum(dim=-1).unsqueeze(axis)
    rest = [context_mask, None if query_mask is None else query_mask.unsqueeze(axis)]
    return [
        tensor if tensor is None else tensor.to(DEVICE) for tensor in (products, context @ context.mT, squares, *rest)
    ]


def compare(sizes: tuple[int, int, int, int], masked: bool = True, paired: bool = False, **settings: Any) -> None:
    arguments = {"norm": "clipped_l2norm", "relu_slope": 0.1, "temperature": 9.0, "focal": None, **settings}
    tensors = block(sizes, masked, paired)
    query_mask = tensors[4]
    found = []
    for function in (attended_cosines, fused_cosines):
        # The twin in float64 decides.
        wide = torch.float64 if function is attended_cosines else torch.float32
        inputs = [tensor.to(wide).requires_grad_() for tensor in tensors[:3] if tensor is not None]
        cosines = function(*inputs, *tensors[3:], **arguments)
        if query_mask is not None:
            cosines = cosines * query_mask
        upstream = torch.linspace(-1, 1, cosines.numel(), device=DEVICE).view_as(cosines)
        found.append([cosines, *torch.autograd.grad((cosines * upstream).sum(), inputs)])
    for plain, fused in zip(*found, strict=True):
        scale = plain.abs().max().item()
        torch.testing.assert_close(fused.double(), plain, rtol=0, atol=2e-5 * max(1.0, scale))


@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("norm", get_args(Norm))
def test_every_normalisation(norm: Norm, slope: float) -> None:
    compare((3, 36, 5, 7), norm=norm, relu_slope=slope)


@pytest.mark.parametrize("focal", [None, "equal", "prob"])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_masks_pairs_and_gates(focal: str | None, paired: bool, masked: bool) -> None:
    compare((4, 6, 4, 20), masked, paired, focal=focal)


@pytest.mark.parametrize("sizes", [(2, 36, 9, 16), (3, 16, 40, 36), (1, 1, 1, 1), (2, 30, 3, 36), (2, 100, 2, 20)])
def test_sizes(sizes: tuple[int, int, int, int]) -> None:
    compare(sizes)


def test_what_does_not_fit_is_refused() -> None:
    products = torch.zeros(1, 200, 1, 4, device=DEVICE)
    assert not fits(products)
    assert not fits(torch.zeros(1, 4, 1, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="128 x 32"):
        fused_cosines(products, products, products, None, None, norm="none", relu_slope=0.0, temperature=1.0)
