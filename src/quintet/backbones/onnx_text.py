"""`OnnxText`: MiniLM (`minilm.py`) as a frozen text encoder of a matcher."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.backbones.minilm import DIM, MAX_LENGTH, NAME, VOCABULARY, MiniLM
from quintet.errors import QuintetError


class OnnxText(nn.Module):
    """Word features of the last layer. It has no parameters here and is never trained.

    Texts run one by one: nothing is computed for padding, and the features of a text are the same bits
    whatever else is in the batch.
    """

    dim, max_length, vocabulary_size = DIM, MAX_LENGTH, VOCABULARY
    frozen = repeatable = True
    name = NAME

    def __init__(self) -> None:
        super().__init__()
        self._model = MiniLM()
        # The weights are not in the state; their checksum is, so that codes of other weights are distinguished.
        self.register_buffer("checksum", torch.tensor(list(self._model.digest), dtype=torch.uint8))
        self.path = self._model.path

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids, (n,) lengths -> (n, L, 384), zero at padding."""
        if tokens.shape[1] > MAX_LENGTH:
            raise QuintetError(f"a text has {tokens.shape[1]} tokens, {self.name} takes {MAX_LENGTH}; cut it")
        words = torch.zeros((*tokens.shape, DIM))
        for row, (ids, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
            words[row, :length] = torch.from_numpy(self._model.words(ids[:length]))
        return words.to(tokens.device)
