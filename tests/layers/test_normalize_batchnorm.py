"""Weighing rows is the same as picking them out: values, gradients and kept statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quintet.layers.normalize import SharedBatchNorm, masked_batchnorm


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


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_torchs_own(group_of_one: None, dtype: torch.dtype, affine: bool) -> None:
    """Also in bfloat16, which cannot even count to 257."""
    x = (3 + torch.randn(257, 4, generator=torch.Generator().manual_seed(0))).to(dtype)
    plain, shared = nn.BatchNorm1d(4, affine=affine), SharedBatchNorm(nn.BatchNorm1d(4, affine=affine))
    assert shared.state_dict().keys() == plain.state_dict().keys()
    expected, got = plain(x), shared(x)
    assert got.dtype == expected.dtype == dtype
    torch.testing.assert_close(got, expected, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=1e-5)
    torch.testing.assert_close(shared.running_mean, plain.running_mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(shared.running_var, plain.running_var, atol=1e-5, rtol=1e-4)
    plain.eval()
    shared.eval()
    torch.testing.assert_close(shared(x), plain(x), atol=1e-5 if dtype == torch.float32 else 0.02, rtol=1e-4)
