from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quintet.layers.text import BiGRUEncoder, LastStateGRU, gru_final, gru_states, unpacked, word_embedding

LENGTHS = [2, 5, 1, 5, 3]
BOTH = pytest.mark.parametrize("bidirectional", [False, True])


def texts(padding: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(1, 20, (len(LENGTHS), max(LENGTHS) + padding))
    lengths = torch.tensor(LENGTHS)
    tokens[torch.arange(tokens.shape[1]) >= lengths[:, None]] = 0
    return tokens, lengths


@BOTH
def test_words_are_those_of_each_text_alone(bidirectional: bool) -> None:
    encoder = BiGRUEncoder(20, word_dim=4, dim=6, bidirectional=bidirectional).double()
    tokens, lengths = texts(padding=3)
    words, mask = encoder(tokens, lengths)
    assert words.shape == (5, 8, 6)
    assert mask.sum(dim=1).tolist() == LENGTHS
    assert (words[~mask] == 0).all()
    for row, length in enumerate(LENGTHS):
        states, _ = encoder.rnn(encoder.embed(tokens[row : row + 1, :length]))  # one text, not packed
        expected = (states[0, :, :6] + states[0, :, 6:]) / 2 if bidirectional else states[0]
        torch.testing.assert_close(words[row, :length], expected)


@BOTH
def test_last_state_is_that_of_each_text_alone(bidirectional: bool) -> None:
    encoder = LastStateGRU(20, word_dim=4, dim=6, bidirectional=bidirectional).double()
    tokens, lengths = texts(padding=3)
    vectors = encoder(tokens, lengths)
    for row, length in enumerate(LENGTHS):
        states, _ = encoder.rnn(encoder.embed(tokens[row : row + 1, :length]))
        expected = (states[0, -1, :6] + states[0, 0, 6:]) / 2 if bidirectional else states[0, -1]
        torch.testing.assert_close(vectors[row], expected)


@BOTH
def test_several_layers_are_the_same_with_and_without_packing(bidirectional: bool) -> None:
    gru = nn.GRU(4, 6, 3, batch_first=True, bidirectional=bidirectional).double()
    inputs, lengths = torch.randn(5, 5, 4).double(), torch.tensor(LENGTHS)
    packed = gru_states(gru, inputs, lengths), gru_final(gru, inputs, lengths)
    with unpacked():
        found = gru_states(gru, inputs, lengths), gru_final(gru, inputs, lengths)
    torch.testing.assert_close(found, packed)
    for row, length in enumerate(LENGTHS):  # alone
        torch.testing.assert_close(packed[0][row, :length], gru(inputs[row : row + 1, :length])[0][0])


@pytest.mark.parametrize("kind", [BiGRUEncoder, LastStateGRU])
def test_order_and_padding_change_nothing(kind: type) -> None:
    encoder = kind(20, word_dim=4, dim=6).double()
    tokens, lengths = texts()

    def vectors(tokens: Tensor, lengths: Tensor) -> Tensor:
        out = encoder(tokens, lengths)
        return out if isinstance(out, Tensor) else out[0].sum(dim=1)

    expected = vectors(tokens, lengths)
    order = torch.tensor([3, 0, 4, 2, 1])
    torch.testing.assert_close(vectors(tokens[order], lengths[order]), expected[order])
    rubbish = torch.cat([tokens, torch.full((5, 4), 7)], dim=1)
    rubbish[0, 2:] = 13
    torch.testing.assert_close(vectors(rubbish, lengths), expected)


@pytest.mark.parametrize("kind", [BiGRUEncoder, LastStateGRU])
def test_gradients_reach_every_parameter(kind: type) -> None:
    encoder = kind(20, word_dim=4, dim=6)
    out = encoder(*texts())
    (out if isinstance(out, Tensor) else out[0]).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


@pytest.mark.parametrize("kind", [BiGRUEncoder, LastStateGRU])
def test_names_are_those_of_the_authors(kind: type) -> None:
    encoder = kind(20, word_dim=4, dim=6, bidirectional=True)
    expected = {"embed.weight"} | {
        f"rnn.{kind}_l0{side}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") for side in ("", "_reverse")
    }
    assert set(encoder.state_dict()) == expected


@pytest.mark.parametrize("kind", [BiGRUEncoder, LastStateGRU])
def test_no_text_at_all(kind: type) -> None:
    out = kind(20, word_dim=4, dim=6)(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert out.shape == (0, 6) if isinstance(out, Tensor) else out[0].shape == (0, 3, 6)


@pytest.mark.parametrize("kind", [BiGRUEncoder, LastStateGRU])
def test_half_precision_by_autocast(kind: type) -> None:
    encoder = kind(20, word_dim=4, dim=6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = encoder(*texts())
    assert (out if isinstance(out, Tensor) else out[0]).isfinite().all()


def test_dropout_acts_in_training_only() -> None:
    encoder = LastStateGRU(20, word_dim=4, dim=6, dropout=0.5)
    tokens, lengths = texts()
    assert not encoder(tokens, lengths).equal(encoder(tokens, lengths))
    encoder.eval()
    assert encoder(tokens, lengths).equal(encoder(tokens, lengths))


def test_the_first_word_vectors() -> None:
    table = word_embedding(1000, 10)
    assert table.padding_idx is None
    assert 0.09 < float(table.weight.detach().abs().max()) <= 0.1
    given = torch.randn(20, 4)
    encoder = BiGRUEncoder(20, word_dim=4, dim=6, embedding=given)
    assert encoder.embed.weight.equal(given)
    assert encoder.embed.weight.requires_grad
    given.zero_()
    assert encoder.embed.weight.abs().sum() > 0  # a copy
    with pytest.raises(ValueError, match=r"\(20, 5\).*\(20, 4\)"):
        LastStateGRU(20, word_dim=4, dim=6, embedding=torch.zeros(20, 5))


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
