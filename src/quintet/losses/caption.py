"""The caption loss of VSRN: a sentence must be told from the regions that match it (VSRN Eq. 10)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import RecipeError
from quintet.layers.captioner import Captioner
from quintet.layers.normalize import HALF
from quintet.losses.step import Step, Term


def caption_targets(
    tokens: Tensor, lengths: Tensor, *, longest: int | None = None, learn_pad: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """What the generator sees, what it should say, and where that counts: three times (n, T).

    Token t is seen, token t + 1 wanted, up to the last token of the sentence, its end mark. T follows from the longest
    sentence of the batch. With `longest`, a sentence with more tokens is cut to so many and keeps its end mark. With
    `learn_pad`, the first padding after the end mark is wanted too, as in the released code, where there is room for it
    below `longest`.

    >>> seen, wanted, counts = caption_targets(torch.tensor([[1, 7, 2], [1, 2, 0]]), torch.tensor([3, 2]))
    >>> seen.tolist(), wanted.tolist(), counts.tolist()
    ([[1, 7], [1, 2]], [[7, 2], [2, 0]], [[True, True], [True, False]])
    """
    place = torch.arange(tokens.shape[1], device=tokens.device)  # (L,)
    end = tokens.gather(1, lengths[:, None] - 1)  # (n, 1): the end mark, whatever its id
    tokens = tokens.masked_fill(place >= lengths[:, None], 0)
    if longest is not None and tokens.shape[1] > longest:
        tokens = torch.where((lengths[:, None] > longest) & (place == longest - 1), end, tokens)[:, :longest]
        lengths = lengths.clamp(max=longest)
    if learn_pad and (longest is None or tokens.shape[1] < longest):
        tokens = F.pad(tokens, (0, 1))  # (n, L + 1)
    wanted = tokens[:, 1:]  # (n, T)
    place = torch.arange(1, tokens.shape[1], device=tokens.device)  # (T,)
    return tokens[:, :-1], wanted, place < lengths[:, None] + int(learn_pad)


def caption_cost(scores: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """(n,): minus the log-probability of each sentence, from word scores (n, T, V)."""
    scores = scores.float() if scores.dtype in HALF else scores  # a sum over words is too much for half precision
    costs = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="none")  # (n T,)
    return (costs.view_as(wanted) * counts).sum(dim=1)


class CaptionObjective(nn.Module):
    """The caption generator and its loss: the mean over the batch of minus the log-probability of the sentence.

    Requirements: a matcher whose picture Codes carry regions in training (VSRN). The generator belongs to the
    objective: it is trained and checkpointed with the matcher and absent at inference.

    - `weight`: of the loss beside the ranking loss, which is a *sum* over the batch (1 in the released code).
    - `longest`: sentences with more tokens are cut (60 in the released code).
    - `learn_pad`: also learn to say the first padding after the end mark, as the released code does.
    """

    def __init__(
        self,
        vocabulary_size: int,
        region_dim: int = 2048,
        hidden: int = 512,
        word_dim: int = 300,
        dropout: float = 0.2,
        longest: int | None = 60,
        learn_pad: bool = False,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.captioner = Captioner(vocabulary_size, region_dim, hidden, word_dim, dropout)
        self.longest = longest
        self.learn_pad = learn_pad
        self.weight = weight

    def forward(self, step: Step) -> dict[str, Term]:
        codes, texts = step.image_codes, step.batch.texts
        if codes.fragments is None:
            raise RecipeError(
                "the caption loss reads the regions of a picture, and this matcher keeps none in training; "
                "use it with vsrn, or leave it out of the recipe"
            )
        seen, wanted, counts = caption_targets(
            texts.tokens, texts.lengths, longest=self.longest, learn_pad=self.learn_pad
        )
        if not seen.shape[1]:  # one-token sentences only: nothing to say
            return {"caption": Term(codes.fragments.new_zeros(len(seen)), self.weight)}
        costs = caption_cost(self.captioner(codes.fragments, seen, codes.mask), wanted, counts)  # (n,)
        return {"caption": Term(costs / step.total, self.weight)}
