"""Sentences through a GRU: features of every word, or one vector a sentence.

Parameters carry the names of the authors' checkpoints (`embed.weight`, `rnn.*`). Both encoders take tokens padded at
the end in any order of length; the result of a sentence does not depend on its neighbours or on the padding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.layers.padded_gru import gru_final, gru_states


class BiGRUEncoder(nn.Module):
    """Word features: embedding, one GRU layer in both directions, mean of the directions (SCAN, BFAN).

    Not normalised: that is the matcher's business.

    >>> encoder = BiGRUEncoder(vocabulary_size=10, word_dim=4, dim=6)
    >>> words, mask = encoder(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2]))
    >>> words.shape, mask.tolist()
    (torch.Size([2, 3, 6]), [[True, True, True], [True, True, False]])
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int = 300,
        dim: int = 1024,
        bidirectional: bool = True,
        embedding: Tensor | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.embed = word_embedding(vocabulary_size, word_dim, embedding)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(word_dim, dim, batch_first=True, bidirectional=bidirectional)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(n, L) ids and (n,) lengths -> (n, L, d) word features, zero at padding, and their (n, L) mask."""
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]  # (n, L)
        if not len(tokens):
            return self.embed.weight.new_zeros((*tokens.shape, self.dim)), mask
        words = gru_states(self.rnn, self.dropout(self.embed(tokens)), lengths)  # (n, L, d or 2 d)
        if self.rnn.bidirectional:
            words = (words[..., : self.dim] + words[..., self.dim :]) / 2  # (n, L, d)
        return words, mask


class LastStateGRU(nn.Module):
    """One vector a sentence: the state of a GRU after its last real token (VSE++, VSRN).

    With `bidirectional`, the mean of both directions' final states. Not normalised.

    >>> encoder = LastStateGRU(vocabulary_size=10, word_dim=4, dim=6)
    >>> encoder(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2])).shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int = 300,
        dim: int = 1024,
        bidirectional: bool = False,
        embedding: Tensor | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.embed = word_embedding(vocabulary_size, word_dim, embedding)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(word_dim, dim, batch_first=True, bidirectional=bidirectional)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids and (n,) lengths -> (n, d)."""
        if not len(tokens):
            return self.embed.weight.new_zeros((0, self.dim))
        final = gru_final(self.rnn, self.dropout(self.embed(tokens)), lengths)  # (directions, n, d)
        return final.mean(dim=0)  # (n, d)


def word_embedding(vocabulary_size: int, word_dim: int, initial: Tensor | None = None) -> nn.Embedding:
    """A trainable table, uniform(-0.1, 0.1) or a copy of `initial`. The padding row is an ordinary one."""
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
