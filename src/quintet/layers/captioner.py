"""The sentence generator that VSRN trains beside its matcher: regions in, words out, with attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RegionReader(nn.Module):
    """Encoder: regions, in stored order, through a GRU."""

    def __init__(self, region_dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(region_dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        nn.init.xavier_normal_(self.project.weight)

    def forward(self, regions: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(n, L, d) -> outputs (n, L, hidden) and the state after the last real region (n, hidden)."""
        outputs, last = self.rnn(self.dropout(self.project(regions)))  # (n, L, hidden), (1, n, hidden)
        if mask is None:
            return outputs, last[0]
        at = (mask.sum(dim=1) - 1).clamp(min=0)  # (n,): real regions stand before padded ones
        return outputs, outputs[torch.arange(len(outputs), device=at.device), at]


class Attention(nn.Module):
    """Additive attention of a decoder state over the encoder's outputs."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.joint = nn.Linear(2 * hidden, hidden)  # of [encoder output; decoder state]
        self.score = nn.Linear(hidden, 1, bias=False)

    def over(self, outputs: Tensor, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The attention over these outputs (n, L, hidden): a state (n, hidden) to their weighted mean (n, hidden).

        The encoder's half of the joint projection is the same at every step and computed once.
        """
        half = outputs.shape[2]
        for_outputs, for_state = self.joint.weight[:, :half], self.joint.weight[:, half:]
        prepared = F.linear(outputs, for_outputs, self.joint.bias)  # (n, L, hidden)
        padding = None if mask is None else ~mask

        def attend(state: Tensor) -> Tensor:
            scores = self.score(torch.tanh(prepared + F.linear(state, for_state)[:, None]))[..., 0]  # (n, L)
            if padding is not None:
                scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
            return (scores.softmax(dim=1)[:, None] @ outputs)[:, 0]

        return attend


class Captioner(nn.Module):
    """Words from regions with teacher forcing: S2VT with attention, as VSRN uses it (Section 3.3).

    The state starts where the reader of the regions ended; at each step the word before and the attended regions move
    it on; a linear layer makes word scores of it. Only the recurrence itself runs step by step: the reader's half of
    the attention, the word embeddings and the word scores are one product each.

    >>> captioner = Captioner(vocabulary_size=10, region_dim=8, hidden=6, word_dim=4)
    >>> captioner(torch.randn(2, 5, 8), torch.tensor([[1, 4, 5], [1, 6, 0]])).shape
    torch.Size([2, 3, 10])
    """

    def __init__(
        self, vocabulary_size: int, region_dim: int, hidden: int = 512, word_dim: int = 300, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.reader = RegionReader(region_dim, hidden, dropout)
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        self.attention = Attention(hidden)
        self.dropout = nn.Dropout(dropout)
        self.cell = nn.GRUCell(word_dim + hidden, hidden)
        self.out = nn.Linear(hidden, vocabulary_size)
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, regions: Tensor, words: Tensor, mask: Tensor | None = None) -> Tensor:
        """Regions (n, L, d), their mask (n, L) and the words so far (n, T) -> scores of the next word (n, T, V)."""
        outputs, state = self.reader(regions, mask)
        attend = self.attention.over(outputs, mask)
        embedded = self.embed(words)  # (n, T, word_dim)
        states = []
        for word in embedded.unbind(dim=1):
            state = self.cell(self.dropout(torch.cat([word, attend(state)], dim=1)), state)  # (n, hidden)
            states.append(state)
        return self.out(torch.stack(states, dim=1))  # (n, T, V)
