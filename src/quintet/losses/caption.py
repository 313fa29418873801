"""The caption loss of VSRN: a decoder generates the text from the regions of its image (VSRN Eq. 10).

Li, Zhang, Li, Li, Fu: Visual Semantic Reasoning for Image-Text Matching, ICCV 2019.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import RecipeError
from quintet.layers.normalize import widen
from quintet.losses.step import Progress, Step, Term


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
        at = (mask.sum(dim=1) - 1).clamp(min=0)  # (n,): real regions come before padded ones
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

    The initial state is the last state of the region encoder. Each step reads the previous word and the attended
    regions; a linear layer gives the word scores. Only the recurrence runs step by step: the encoder's half of the
    attention, the word embeddings and the word scores are one matrix product each.

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


def caption_targets(
    tokens: Tensor, lengths: Tensor, *, max_length: int | None = None, learn_pad: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The decoder's input, its targets, and the mask of targets that count: (n, T) each.

    The input is token t, the target token t + 1, up to the last token of the text, its end token. T follows from the
    longest text of the batch. `max_length` cuts longer texts, which keep their end token. `learn_pad` makes the first
    padding after the end token a target, as in the released code, if `max_length` leaves room for it.

    >>> seen, target, counts = caption_targets(torch.tensor([[1, 7, 2], [1, 2, 0]]), torch.tensor([3, 2]))
    >>> seen.tolist(), target.tolist(), counts.tolist()
    ([[1, 7], [1, 2]], [[7, 2], [2, 0]], [[True, True], [True, False]])
    """
    position = torch.arange(tokens.shape[1], device=tokens.device)  # (L,)
    end = tokens.gather(1, lengths[:, None] - 1)  # (n, 1): the end token, whatever its id
    tokens = tokens.masked_fill(position >= lengths[:, None], 0)
    if max_length is not None and tokens.shape[1] > max_length:
        cut = (lengths[:, None] > max_length) & (position == max_length - 1)  # (n, L): where the end token goes
        tokens = torch.where(cut, end, tokens)[:, :max_length]
        lengths = lengths.clamp(max=max_length)
    if learn_pad and (max_length is None or tokens.shape[1] < max_length):
        tokens = F.pad(tokens, (0, 1))  # (n, L + 1)
    position = torch.arange(1, tokens.shape[1], device=tokens.device)  # (T,)
    return tokens[:, :-1], tokens[:, 1:], position < lengths[:, None] + int(learn_pad)


def caption_cost(scores: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """(n,): minus the log-probability of each text, from word scores (n, T, V)."""
    costs = F.cross_entropy(widen(scores).flatten(0, 1), target.flatten(), reduction="none")  # (n T,)
    return (costs.view_as(target) * counts).sum(dim=1)


class CaptionObjective(nn.Module):
    """The caption generator and its loss: the mean over the batch of minus the log-probability of the text.

    Requirements: a matcher whose image Codes keep regions in training (VSRN). The generator belongs to the loss: it is
    trained and checkpointed with the matcher and absent at inference.

    - `weight`: of this loss; the ranking loss beside it is a *sum* over the batch (1 in the released code).
    - `max_length`: texts with more tokens are cut (60 in the released code).
    - `learn_pad`: also predict the first padding after the end token, as the released code does.
    """

    def __init__(
        self,
        vocabulary_size: int,
        region_dim: int = 2048,
        hidden: int = 512,
        word_dim: int = 300,
        dropout: float = 0.2,
        max_length: int | None = 60,
        learn_pad: bool = False,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.captioner = Captioner(vocabulary_size, region_dim, hidden, word_dim, dropout)
        self.max_length = max_length
        self.learn_pad = learn_pad
        self.weight = weight

    def phase(self, progress: Progress) -> None:
        """The computation never changes."""

    def forward(self, step: Step) -> dict[str, Term]:
        codes, texts = step.image_codes, step.batch.texts
        if codes.fragments is None:
            raise RecipeError(
                "the caption loss reads the regions of an image, and this matcher keeps none in training; "
                "use it with vsrn, or leave it out of the recipe"
            )
        seen, target, counts = caption_targets(
            texts.tokens, texts.lengths, max_length=self.max_length, learn_pad=self.learn_pad
        )
        if not seen.shape[1]:  # texts of one token have no target
            return {"caption": Term(codes.fragments.new_zeros(len(seen)), self.weight / step.total)}
        costs = caption_cost(self.captioner(codes.fragments, seen, codes.mask), target, counts)  # (n,)
        return {"caption": Term(costs, self.weight / step.total)}  # the sum over anchors is a mean over the batch
