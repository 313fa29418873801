from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.layers.normalize import l2norm


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from([0, 1, -1]), st.sampled_from([0.0, 1e-8, 0.5]))
def test_the_same_as_a_loop(rows: int, columns: int, dim: int, eps: float) -> None:
    x = torch.randn(rows, columns, dtype=torch.float64)
    expected = torch.empty_like(x)
    vectors, outs = (x, expected) if dim in (1, -1) else (x.T, expected.T)
    for vector, out in zip(vectors, outs, strict=True):
        out[:] = vector / (math.sqrt(sum(float(value) ** 2 for value in vector)) + eps)
    torch.testing.assert_close(l2norm(x, dim, eps), expected)


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_zeros_stay_zero_with_a_finite_gradient(dtype: torch.dtype, eps: float) -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    out = l2norm(x, eps=eps)
    assert out.dtype == dtype
    assert out[0].tolist() == [0, 0]
    torch.testing.assert_close(out[1].float(), torch.tensor([0.6, 0.8]), atol=5e-3, rtol=0)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_gradient() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: l2norm(x, eps=0), x)
    assert torch.autograd.gradcheck(lambda x: l2norm(x, dim=0), x)
