"""Weighing rows is the same as picking them out: values, gradients and kept statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quintet.layers.batchnorm import masked_batchnorm


def picked(norm: nn.BatchNorm1d, rows: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The plain way: BatchNorm of the real rows, put back into place."""
    out = torch.zeros_like(rows)
    out[real] = norm(rows[real])
    return out


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), affine=st.booleans(), momentum=st.sampled_from([0.1, None, 0.0]))
def test_the_same_as_the_norm_of_the_real_rows(seed: int, affine: bool, momentum: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    ours = nn.BatchNorm1d(3, affine=affine, momentum=momentum).double()
    if affine:
        nn.init.normal_(ours.weight, generator=generator)
        nn.init.normal_(ours.bias, generator=generator)
    theirs = copy.deepcopy(ours)
    real = torch.rand(4, 5, generator=generator) < 0.6
    real[0, :2] = True  # a BatchNorm wants more than one row
    for _ in range(2):
        values = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
        weights = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
        gradients = []
        for norm, function in ((ours, masked_batchnorm), (theirs, picked)):
            rows = values.clone().requires_grad_()
            out = function(norm, rows, real)
            (out * weights).sum().backward()
            gradients.append((out.detach(), rows.grad))
        for found, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected)
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], expected)
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


def test_a_frozen_norm_uses_what_it_has_kept_and_keeps_nothing() -> None:
    norm = nn.BatchNorm1d(2).eval()
    norm.running_mean += 1.0  # type: ignore[operator]
    before = copy.deepcopy(norm.state_dict())
    rows, real = torch.randn(3, 2), torch.tensor([True, False, True])
    torch.testing.assert_close(masked_batchnorm(norm, rows, real), norm(rows) * real[:, None])
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_statistics_in_float32(dtype: torch.dtype) -> None:
    rows = (torch.arange(600, dtype=torch.float32)[:, None] / 600 + 8).to(dtype)
    real = torch.ones(600, dtype=torch.bool)
    norm = nn.BatchNorm1d(1)
    out = masked_batchnorm(norm, rows, real)
    assert out.dtype == dtype
    assert abs(float(norm.running_mean) - 0.1 * float(rows.float().mean())) < 1e-3  # type: ignore[arg-type]


def test_what_stands_at_padding_does_not_matter() -> None:
    rows, real = torch.randn(2, 3, 4), torch.tensor([[True, True, False], [True, False, False]])
    first = masked_batchnorm(nn.BatchNorm1d(4), rows, real)
    second = masked_batchnorm(nn.BatchNorm1d(4), rows.masked_fill(~real[..., None], 1e6), real)
    assert torch.equal(first, second)
    assert (first[~real] == 0).all()
