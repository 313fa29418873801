"""How far back a new GRU remembers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quintet.models.vsrn import set_memory


def shares(gru: nn.GRU, length: int) -> Tensor:
    """(length,): how much of the last state hangs on each place, as lengths of gradients, summing to 1."""
    places = torch.randn(64, length, gru.input_size, generator=torch.Generator().manual_seed(0)) / 10
    places.requires_grad_()
    states, _ = gru(places)
    states[:, -1].square().sum().backward()
    assert places.grad is not None
    lengths = places.grad.norm(dim=2).mean(dim=0)  # (length,)
    return lengths / lengths.sum()


def test_a_plain_gru_ends_with_the_last_places_and_one_with_a_memory_with_all() -> None:
    torch.manual_seed(0)
    gru = nn.GRU(16, 32, batch_first=True)
    assert shares(gru, 36)[:-6].sum() < 0.1
    set_memory(gru, 36)
    assert shares(gru, 36)[:-6].sum() > 0.4
    assert shares(gru, 36)[:6].sum() > 0.05


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_spans_are_spread_evenly_in_every_direction(bidirectional: bool) -> None:
    gru = nn.GRU(3, 9, bidirectional=bidirectional)
    set_memory(gru, positions=10)
    for end in ("", "_reverse") if bidirectional else ("",):
        bias = getattr(gru, f"bias_ih_l0{end}") + getattr(gru, f"bias_hh_l0{end}")
        kept = bias[9:18].sigmoid()  # the update gate
        torch.testing.assert_close(1 / (1 - kept), torch.arange(2.0, 11.0))


def test_nothing_but_the_update_gates_biases_changes() -> None:
    gru = nn.GRU(3, 4)
    before = {name: value.clone() for name, value in gru.state_dict().items()}
    set_memory(gru, positions=5)
    for name, value in gru.state_dict().items():
        rest = torch.ones(len(value), dtype=torch.bool)
        if name.startswith("bias"):
            rest[4:8] = False
        assert torch.equal(value[rest], before[name][rest])


def test_a_memory_of_less_than_two_places_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 positions, got 1"):
        set_memory(nn.GRU(3, 4), positions=1)
