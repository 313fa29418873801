from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quintet.layers.text import gru_final, gru_states, unpacked


@pytest.mark.parametrize("bidirectional", [False, True])
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_without_packing_the_states_are_the_same(bidirectional: bool, lengths: list[int]) -> None:
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=bidirectional).double()
    inputs, count = torch.randn(len(lengths), 7, 3, dtype=torch.float64), torch.tensor(lengths)
    states, final = gru_states(gru, inputs, count), gru_final(gru, inputs, count)
    with unpacked():
        torch.testing.assert_close(gru_states(gru, inputs, count), states)
        torch.testing.assert_close(gru_final(gru, inputs, count), final)
    assert (states[torch.arange(7)[None] >= count[:, None]] == 0).all()


def test_without_packing_the_gradients_are_the_same() -> None:
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=True).double().train()
    inputs, count = torch.randn(3, 7, 3, dtype=torch.float64, requires_grad=True), torch.tensor([7, 1, 4])
    found = []
    for work in (gru_states, gru_final):
        packed = torch.autograd.grad(work(gru, inputs, count).square().sum(), [inputs, *gru.parameters()])
        with unpacked():
            plain = torch.autograd.grad(work(gru, inputs, count).square().sum(), [inputs, *gru.parameters()])
        found += zip(packed, plain, strict=True)
    for one, other in found:
        torch.testing.assert_close(one, other)


def test_packing_is_back_after_an_error() -> None:
    from quintet.layers import text as padded_gru

    with pytest.raises(ZeroDivisionError), unpacked():
        raise ZeroDivisionError
    assert not padded_gru._UNPACKED.get()
