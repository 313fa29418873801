from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.scores import attention as gram
from quintet.scores.attention import focal_gates


def test_cosine_without_the_context_is_the_cosine_with_it() -> None:
    torch.manual_seed(0)
    context, queries = torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(4, 6, 8, dtype=torch.float64)
    weights = torch.rand(3, 5, 4, 6, dtype=torch.float64)
    products = gram.fragment_products(context, queries, paired=False)
    squares = gram.squared_lengths(queries)[None]
    ours = gram.gram_cosines(weights, products, gram.gram_matrices(context), squares, mass=None)
    attended = torch.einsum("ciqw,cid->cqwd", weights, context)
    torch.testing.assert_close(ours, F.cosine_similarity(attended, queries[None].expand_as(attended), dim=-1))
    scaled = gram.gram_cosines(weights, products, gram.gram_matrices(context), squares, mass=weights.sum(dim=1))
    torch.testing.assert_close(scaled, ours)


def test_a_context_of_zeros_gives_zero_and_a_finite_gradient() -> None:
    context = torch.zeros(1, 3, 4, requires_grad=True)
    queries = torch.randn(1, 2, 4, requires_grad=True)
    weights = torch.full((1, 3, 1, 2), 1 / 3)
    products = gram.fragment_products(context, queries, paired=False)
    cosines = gram.gram_cosines(
        weights, products, gram.gram_matrices(context), gram.squared_lengths(queries)[None], mass=None
    )
    assert (cosines == 0).all()
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(cosines.sum(), [context, queries]))


def test_paired_products_are_the_diagonal_of_all() -> None:
    a, b = torch.randn(3, 5, 8), torch.randn(3, 2, 8)
    every = gram.fragment_products(a, b, paired=False)  # (3, 5, 3, 2)
    paired = gram.fragment_products(a, b, paired=True)  # (3, 5, 1, 2)
    for row in range(3):
        torch.testing.assert_close(paired[row, :, 0], every[row, :, row])


@pytest.mark.parametrize("dim", [256, 1024])
def test_three_bfloat16_products_are_as_good_as_float32(dim: int) -> None:
    torch.manual_seed(1)
    a, b = F.normalize(torch.randn(50, dim), dim=-1), F.normalize(torch.randn(40, dim), dim=-1)
    exact = a.double() @ b.double().T
    split = gram._narrow_product(gram._split(a, low_last=True), gram._split(b, low_last=False))
    once = gram.fragment_products(a[:, None], b[:, None], paired=False, precision="bfloat16")[:, 0, :, 0]
    assert (split - exact).abs().max() < 2e-6
    assert (once - exact).abs().max() > 100 * (split - exact).abs().max()


def test_gradients_of_the_product_in_bfloat16_are_those_of_float32() -> None:
    a, b = torch.randn(2, 3, 8, requires_grad=True), torch.randn(2, 4, 8, requires_grad=True)
    grads = [
        torch.autograd.grad(gram.fragment_products(a, b, paired=False, precision=precision).sum(), [a, b])
        for precision in ("float32", "bfloat16")
    ]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def by_definition(x: list[float], focal: str) -> list[float]:
    """Keep i where sum_j (x_i - x_j) g(x_j) > 0, with g = 1 or g = sqrt."""
    weights = [1.0 if focal == "equal" else value**0.5 for value in x]
    gained = [sum((a - b) * g for b, g in zip(x, weights, strict=True)) for a in x]
    kept = [float(value > 0) for value in gained]
    return kept if any(kept) else [1.0] * len(x)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=9, unique=True),
    st.integers(0, 3),
    st.sampled_from(["equal", "prob"]),
)
def test_closed_forms_are_the_definition_over_real_fragments(parts: list[int], padding: int, focal: str) -> None:
    x = [part / sum(parts) for part in parts]
    weights = torch.tensor(x + [0.0] * padding, dtype=torch.float64).view(1, -1, 1, 1)
    mask = (torch.arange(len(x) + padding) < len(x))[None]
    gates = focal_gates(weights, mask if padding else None, focal)
    expected = by_definition(x, focal)
    for i, (kept, should) in enumerate(zip(gates.flatten().tolist(), expected, strict=False)):
        mean = sum(x) / len(x) if focal == "equal" else sum(v**1.5 for v in x) / sum(v**0.5 for v in x)
        if abs(x[i] - mean) > 1e-9:  # on the edge itself rounding decides
            assert kept == should


@pytest.mark.parametrize("focal", ["equal", "prob"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 36])
def test_uniform_weights_are_all_kept(focal: str, length: int) -> None:
    weights = torch.softmax(torch.zeros(2, length, 3, 4), dim=1)
    assert (focal_gates(weights, None, focal) == 1).all()


def test_no_gradient_passes_the_gate() -> None:
    weights = torch.softmax(torch.randn(1, 4, 1, 2), dim=1).requires_grad_()
    assert not focal_gates(weights, None, "prob").requires_grad
