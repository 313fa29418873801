"""Texts through a GRU: features of every word, or one vector a text.

Parameters carry the names of the authors' checkpoints (`embed.weight`, `rnn.*`). Both encoders take tokens padded at
the end in any order of length; the result of a text does not depend on its neighbours or on the padding.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

# cuDNN needs the weights of a GRU in one block of memory; for one direction of two it makes a small copy and warns.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
_UNPACKED = ContextVar("unpacked", default=False)


@contextmanager
def unpacked() -> Iterator[None]:
    """Compute GRU states without packing in this context: slower, but with operations that ONNX has."""
    token = _UNPACKED.set(True)
    try:
        yield
    finally:
        _UNPACKED.reset(token)


def gru_states(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    """(n, L, in), (n,) -> (n, L, d or 2 d): the state at every position, zero at padding."""
    if _UNPACKED.get() or inputs.is_cuda:
        return _unpacked(gru, inputs, lengths)[0]
    packed, _ = gru(_pack(inputs, lengths))
    states, _ = pad_packed_sequence(packed, batch_first=True, total_length=inputs.shape[1])
    return states


def gru_final(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    """(n, L, in), (n,) -> (directions, n, d): the last layer's state of each direction after its last real position."""
    if _UNPACKED.get() or inputs.is_cuda:
        return _unpacked(gru, inputs, lengths)[1]
    _, final = gru(_pack(inputs, lengths))  # (layers x directions, n, d)
    return final[-2 if gru.bidirectional else -1 :]


def _pack(inputs: Tensor, lengths: Tensor) -> PackedSequence:
    # torch wants the lengths on the CPU; it sorts and unsorts by itself.
    return pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)


def _unpacked(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Without packing. The backward direction reads a copy whose real positions are reversed, so that it does not begin
    at the padding."""
    position = torch.arange(inputs.shape[1], device=inputs.device)  # (L,)
    real = position < lengths[:, None]  # (n, L)
    reverse = torch.where(real, lengths[:, None] - 1 - position, position)  # (n, L)
    last = (lengths - 1)[:, None, None].expand(-1, 1, gru.hidden_size)  # (n, 1, d)
    final: list[Tensor] = []
    for layer in range(gru.num_layers):  # each reads the states of both directions of the one before
        states, final = [], []
        for direction in ("", "_reverse") if gru.bidirectional else ("",):
            given = _reordered(inputs, reverse) if direction else inputs
            along = _one_way(gru, given, f"_l{layer}{direction}")  # (n, L, d)
            final.append(along.gather(1, last)[:, 0])  # (n, d)
            along = _reordered(along, reverse) if direction else along
            states.append(along.masked_fill(~real[..., None], 0))
        inputs = torch.cat(states, dim=-1)
    return inputs, torch.stack(final)


def _one_way(gru: nn.GRU, inputs: Tensor, which: str) -> Tensor:
    """(n, L, in) -> (n, L, d): one layer in one direction, from the first position to the last."""
    weights = [getattr(gru, name + which) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    start = inputs.new_zeros((1, inputs.shape[0], gru.hidden_size))
    return torch.gru(inputs, start, weights, True, 1, 0.0, gru.training, False, True)[0]


def _reordered(sequences: Tensor, order: Tensor) -> Tensor:
    """(n, L, d) whose position i is position order[i] of the input."""
    return sequences.gather(1, order[..., None].expand(-1, -1, sequences.shape[2]))


class _WordGRU(nn.Module):
    """Embedded words, and a GRU in one direction or both; it has one layer, as every published one."""

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int = 300,
        dim: int = 1024,
        bidirectional: bool = True,
        embedding: Tensor | None = None,
        dropout: float = 0.0,
        layers: int = 1,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"a GRU has at least one layer, got {layers}")
        self.dim = dim
        self.embed = word_embedding(vocabulary_size, word_dim, embedding)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(word_dim, dim, layers, batch_first=True, bidirectional=bidirectional)


class BiGRUEncoder(_WordGRU):
    """Word features: embedding, a GRU in both directions, mean of the directions (SCAN, BFAN).

    Not normalised; the matcher does that.

    >>> encoder = BiGRUEncoder(vocabulary_size=10, word_dim=4, dim=6)
    >>> words, mask = encoder(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2]))
    >>> words.shape, mask.tolist()
    (torch.Size([2, 3, 6]), [[True, True, True], [True, True, False]])
    """

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(n, L) ids and (n,) lengths -> (n, L, d) word features, zero at padding, and their (n, L) mask."""
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]  # (n, L)
        if not len(tokens):
            return self.embed.weight.new_zeros((*tokens.shape, self.dim)), mask
        words = gru_states(self.rnn, self.dropout(self.embed(tokens)), lengths)  # (n, L, d or 2 d)
        if self.rnn.bidirectional:
            words = (words[..., : self.dim] + words[..., self.dim :]) / 2  # (n, L, d)
        return words, mask


class WordFeatures(nn.Module):
    """Words that come with the batch as features of another encoder (`TextBatch.features`), mapped to `dim` channels.

    >>> WordFeatures(8, 4)(torch.zeros(2, 3, 8)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, text_dim: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.linear = nn.Linear(text_dim, dim)

    def forward(self, features: Tensor | None) -> Tensor:
        """(n, L, text_dim) -> (n, L, dim)."""
        if features is None:
            raise ValueError("this matcher reads features of words, and the batch holds token ids alone")
        return self.linear(features)


class GivenWords(nn.Module):
    """Stands for a text encoder of `dim` channels whose features come with the batch (`TextBatch.features`)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        raise ValueError("this matcher reads features of words, and the batch holds token ids alone")


class LastStateGRU(_WordGRU):
    """One vector a text: the state of a GRU after its last real token (VSE++, VSRN).

    Where it has two directions, the mean of both final states. Not normalised.

    >>> encoder = LastStateGRU(vocabulary_size=10, word_dim=4, dim=6)
    >>> encoder(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2])).shape
    torch.Size([2, 6])
    """

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids and (n,) lengths -> (n, d)."""
        if not len(tokens):
            return self.embed.weight.new_zeros((0, self.dim))
        final = gru_final(self.rnn, self.dropout(self.embed(tokens)), lengths)  # (directions, n, d)
        return final.mean(dim=0)  # (n, d)

    def with_words(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same (n, d), the state at every word (n, L, d), mean of the directions, and their mask (n, L)."""
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]  # (n, L)
        states = gru_states(self.rnn, self.dropout(self.embed(tokens)), lengths)  # (n, L, d or 2 d)
        ways = states.split(self.dim, dim=-1)
        ends = [ways[0][torch.arange(len(tokens), device=tokens.device), lengths - 1], *(way[:, 0] for way in ways[1:])]
        return torch.stack(ends).mean(dim=0), torch.stack(ways).mean(dim=0), mask


def word_embedding(vocabulary_size: int, word_dim: int, initial: Tensor | None = None) -> nn.Embedding:
    """A trainable table, uniform(-0.1, 0.1) or a copy of `initial`. The padding row is trained like the others."""
    table = nn.Embedding(vocabulary_size, word_dim)
    if initial is None:
        nn.init.uniform_(table.weight, -0.1, 0.1)
        return table
    if initial.shape != table.weight.shape:
        raise ValueError(
            f"the word vectors are {tuple(initial.shape)}, but vocabulary_size and word_dim ask for "
            f"{(vocabulary_size, word_dim)}"
        )
    with torch.no_grad():
        table.weight.copy_(initial)
    return table
