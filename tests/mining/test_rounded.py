"""The proof behind half precision: no score is ever further from its approximation than `Products.error` says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.errors import QuintetError
from quintet.mining.rounded import Embeddings, Products, floor_in


def make(seed: int, dtype: torch.dtype, size: float, dim: int, resident: bool = True) -> Products:
    generator = torch.Generator().manual_seed(seed)
    sides = [
        torch.randn(20, dim, generator=generator).pow(3) * size * torch.rand(20, 1, generator=generator)
        for _ in range(2)
    ]
    left, right = (Embeddings(side, dtype, torch.device("cpu"), resident) for side in sides)
    return Products(left, right, kernels=False)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    size=st.sampled_from([1e-6, 0.03, 1.0, 1e4]),
    dim=st.sampled_from([1, 7, 64]),
)
def test_rounding_stays_within_the_bound(seed: int, dtype: torch.dtype, size: float, dim: int) -> None:
    products = make(seed, dtype, size, dim)
    everything = slice(0, 20)
    rough = products.block(products.images.rounded(everything), products.texts.rounded(everything)) / products.scale
    pairs = torch.cartesian_prod(torch.arange(20), torch.arange(20))
    decided = products.pairs(pairs[:, 0], pairs[:, 1]).view(20, 20)
    exact = products.images.source.double() @ products.texts.source.double().T
    assert ((rough - decided).abs() <= products.error(decided)).all()
    assert ((decided - exact).abs() <= 2.0**-22 * products.images.norm * products.texts.norm).all()


def test_the_bound_is_not_idle() -> None:
    """Within two orders of magnitude of what happens: a looser one would let everything pass."""
    products = make(0, torch.bfloat16, 1.0, 64)
    rough = products.block(products.images.rounded(slice(0, 20)), products.texts.rounded(slice(0, 20))) / products.scale
    exact = products.images.source.double() @ products.texts.source.double().T
    assert (rough - exact).abs().max() > products.error(exact.float()).max() / 100


def test_rows_that_are_moved_when_asked_for_are_the_same() -> None:
    one, other = (make(3, torch.float16, 1.0, 16, resident) for resident in (True, False))
    rows = torch.tensor([4, 0, 19])
    assert torch.equal(one.images.rounded(rows), other.images.rounded(rows))
    assert torch.equal(one.pairs(rows, rows), other.pairs(rows, rows))


@given(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=20), st.sampled_from([torch.float16, torch.bfloat16]))
def test_floors_are_rounded_down_and_not_far(values: list[float], dtype: torch.dtype) -> None:
    floor = torch.tensor(values, dtype=torch.float32)
    coarse = floor_in(dtype, floor).float()
    assert (coarse <= floor).all()
    assert (coarse >= floor - floor.abs() / 50 - 1e-6).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_embeddings_must_be_finite(value: float) -> None:
    with pytest.raises(QuintetError, match="not finite"):
        Embeddings(torch.tensor([[value, 1.0]]), torch.float16, torch.device("cpu"), True)
    assert Embeddings(torch.zeros(2, 3), torch.float16, torch.device("cpu"), True).scale == 1.0
