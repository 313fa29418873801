from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.layers.pooling import GPO, create_pooling, masked_max, masked_mean, masked_topk_mean, rank_codes

POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": masked_mean,
    "max": masked_max,
    "top 1": lambda x, mask: masked_topk_mean(x, mask, 1),
    "top 2": lambda x, mask: masked_topk_mean(x, mask, 2),
    "top 9": lambda x, mask: masked_topk_mean(x, mask, 9),
}


def new_gpo() -> GPO:
    torch.manual_seed(0)
    return GPO().double()


def plain(name: str, values: list[float]) -> float:
    if name == "mean":
        return sum(values) / len(values)
    if name == "max":
        return max(values)
    best = sorted(values, reverse=True)[: int(name.split()[1])]
    return sum(best) / len(best)


def plain_gpo(gpo: GPO, values: list[float]) -> Tensor:
    """One channel of one item: VSE-infinity step by step, the GRU over one unpadded sequence."""
    count, dim = len(values), gpo.position_dim
    codes = torch.zeros(1, count, dim, dtype=torch.float64)
    for rank in range(count):
        for channel in range(dim):
            angle = (rank + 1) / 10_000 ** (2 * (channel // 2) / dim)
            codes[0, rank, channel] = math.cos(angle) if channel % 2 else math.sin(angle)
    states, _ = gpo.gru(codes)
    mean = (states[0, :, : gpo.hidden] + states[0, :, gpo.hidden :]) / 2
    weights = torch.softmax(mean @ gpo.linear.weight[0] / 0.1, dim=0)
    return (weights * torch.tensor(sorted(values, reverse=True), dtype=torch.float64)).sum()


def batch(lengths: list[int], length: int, dim: int) -> tuple[Tensor, Tensor]:
    """Real fragments at random places; the padding is rubbish."""
    fragments = torch.randn(len(lengths), length, dim, dtype=torch.float64)
    mask = torch.zeros(len(lengths), length, dtype=torch.bool)
    for row, count in enumerate(lengths):
        mask[row, torch.randperm(length)[:count]] = True
    fragments[~mask] = math.nan
    return fragments, mask


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(6, 8), st.sampled_from(sorted(POOLINGS)))
def test_the_same_as_a_loop(lengths: list[int], length: int, name: str) -> None:
    fragments, mask = batch(lengths, length, dim=3)
    pooled = POOLINGS[name](fragments, mask)
    for row in range(len(lengths)):
        for channel in range(3):
            assert float(pooled[row, channel]) == pytest.approx(
                plain(name, fragments[row, mask[row], channel].tolist()), abs=1e-12
            )


def test_gpo_is_the_same_as_a_loop() -> None:
    gpo = new_gpo()
    fragments, mask = batch([3, 7, 1, 3], length=7, dim=5)
    pooled = gpo(fragments, mask)
    for row in range(4):
        for channel in range(5):
            expected = plain_gpo(gpo, fragments[row, mask[row], channel].tolist())
            torch.testing.assert_close(pooled[row, channel], expected, atol=1e-12, rtol=0)


def test_gpo_weights_sum_to_one_and_stop_at_the_count() -> None:
    weights = new_gpo().weights(torch.tensor([1, 4, 2]), length=5)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert weights[0].tolist() == [1, 0, 0, 0, 0]
    assert (weights[1, :4] > 0).all()
    assert weights[1, 4] == 0


def test_gpo_can_be_a_maximum_or_a_mean() -> None:
    gpo = new_gpo()
    fragments, mask = batch([4, 2], length=5, dim=6)
    torch.nn.init.zeros_(gpo.linear.weight)  # equal weights
    torch.testing.assert_close(gpo(fragments, mask), masked_mean(fragments, mask))


@pytest.mark.parametrize("name", [*POOLINGS, "gpo"])
def test_padding_and_neighbours_change_nothing(name: str) -> None:
    pool = POOLINGS.get(name) or new_gpo()
    fragments, mask = batch([4, 2, 5], length=5, dim=6)
    together = pool(fragments, mask)
    longer = torch.cat([fragments, torch.full((3, 4, 6), 1e9, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(pool(longer, torch.nn.functional.pad(mask, (0, 4))), together, atol=1e-12, rtol=0)
    for row in range(3):
        alone = pool(fragments[row, mask[row]][None], torch.ones(1, int(mask[row].sum()), dtype=torch.bool))
        torch.testing.assert_close(alone[0], together[row], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", [*POOLINGS, "gpo"])
def test_gradients_reach_real_fragments_only(name: str) -> None:
    pool = POOLINGS.get(name) or new_gpo()
    fragments, mask = batch([4, 2], length=5, dim=6)
    fragments = fragments.nan_to_num(7.0).requires_grad_()
    pool(fragments, mask).square().sum().backward()
    assert fragments.grad is not None
    assert fragments.grad.isfinite().all()
    assert (fragments.grad[~mask] == 0).all()
    assert (fragments.grad.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("name", [*POOLINGS, "gpo"])
def test_an_item_without_fragments_is_zero(name: str) -> None:
    pool = POOLINGS.get(name) or new_gpo()
    fragments, mask = batch([3, 0], length=4, dim=2)
    pooled = pool(fragments, mask)
    assert pooled[1].tolist() == [0, 0]
    assert pooled[0].isfinite().all()
    assert pool(fragments[:0], mask[:0]).shape == (0, 2)


def test_gpo_learns() -> None:
    gpo = new_gpo()
    fragments, mask = batch([4, 2], length=5, dim=6)
    gpo(fragments, mask).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in gpo.parameters())


def test_gpo_in_half_precision() -> None:
    gpo = GPO()
    fragments, mask = torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = gpo(fragments.bfloat16(), mask)
    assert pooled.isfinite().all()
    torch.testing.assert_close(pooled.float(), gpo(fragments, mask), atol=0.1, rtol=0.1)


def test_rank_codes_do_not_depend_on_the_length() -> None:
    assert rank_codes(9, 8)[:4].equal(rank_codes(4, 8))


def test_names() -> None:
    fragments, mask = batch([2, 3], length=4, dim=2)
    assert create_pooling("mean")(fragments, mask).equal(masked_mean(fragments, mask))
    assert create_pooling("max")(fragments, mask).equal(masked_max(fragments, mask))
    assert isinstance(create_pooling("gpo"), GPO)
    assert "masked_max" in repr(create_pooling("max"))
    with pytest.raises(ValueError, match="mean, max, gpo"):
        create_pooling("median")
    with pytest.raises(ValueError, match="even"):
        GPO(position_dim=3)
    with pytest.raises(ValueError, match="at least 1"):
        masked_topk_mean(fragments, mask, 0)
