from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.scores.attention import focal_gates


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
