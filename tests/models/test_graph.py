"""Region relation reasoning."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.models.vsrn import RegionRelation


def awake(dim: int) -> RegionRelation:
    """A block whose normalisation has left its zero start, in float64."""
    torch.manual_seed(0)
    block = RegionRelation(dim).double()
    with torch.no_grad():
        block.norm.weight.uniform_(0.5, 1.5)
        block.norm.bias.uniform_(-0.5, 0.5)
        block.norm.running_mean.uniform_(-0.1, 0.1)
        block.norm.running_var.uniform_(0.5, 1.5)
    return block


def plain(block: RegionRelation, regions: Tensor) -> Tensor:
    """One image, region by region."""
    out = []
    for i in range(len(regions)):
        message = torch.zeros(regions.shape[1], dtype=regions.dtype)
        for j in range(len(regions)):
            affinity = block.theta(regions[i]) @ block.phi(regions[j]) / len(regions)
            message = message + affinity * block.g(regions[j])
        change = block.project(message)
        change = (change - block.norm.running_mean) / torch.sqrt(block.norm.running_var + block.norm.eps)
        out.append(regions[i] + change * block.norm.weight + block.norm.bias)
    return torch.stack(out)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_padded_batch_equals_each_image_by_itself(lengths: list[int], seed: int) -> None:
    block = awake(5).eval()
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    regions = torch.randn(*mask.shape, 5, generator=generator, dtype=torch.float64)  # rubbish in the padding
    related = block(regions, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(related[row, :length], plain(block, regions[row, :length]))
    assert not related[~mask].any()


def test_training_statistics_are_those_of_real_regions() -> None:
    regions = torch.randn(3, 4, 5, dtype=torch.float64)
    short, long = awake(5), awake(5)
    expected = short(regions)
    padded = torch.cat([regions, torch.full((3, 2, 5), 7.0, dtype=torch.float64)], dim=1)
    mask = torch.tensor([True] * 4 + [False] * 2).expand(3, 6)
    torch.testing.assert_close(long(padded, mask)[:, :4], expected)
    torch.testing.assert_close(long.norm.running_mean, short.norm.running_mean)
    torch.testing.assert_close(long.norm.running_var, short.norm.running_var)


def test_new_block_is_the_identity_but_learns() -> None:
    block = RegionRelation(5)
    regions = torch.randn(2, 4, 5)
    related = block(regions)
    assert torch.equal(related, regions)
    (related * torch.randn(2, 4, 5)).sum().backward()
    assert block.norm.weight.grad is not None
    assert block.norm.weight.grad.abs().sum() > 0
