"""Where a sentence stands in the fixed length of a text CNN: left aligned, shifted at random, or everywhere in turn."""

from __future__ import annotations

import torch
from torch import Tensor


def shift_counts(lengths: Tensor, places: int) -> Tensor:
    """(n,): in how many ways sentences of these lengths fit; one that is cut fits in one way.

    >>> shift_counts(torch.tensor([1, 30, 40]), 32).tolist()
    [32, 3, 1]
    """
    return places - lengths.clamp(max=places) + 1


def random_starts(chances: Tensor, lengths: Tensor, places: int) -> Tensor:
    """(n,): uniform over all shifts, where `chances` (n,) are uniform in [0, 1).

    >>> random_starts(torch.tensor([0.0, 0.99, 0.5]), torch.tensor([10, 10, 40]), 32).tolist()
    [0, 22, 0]
    """
    counts = shift_counts(lengths, places)
    return torch.minimum((chances * counts).long(), counts - 1)  # float32 may round up to the count itself


def place_words(tokens: Tensor, lengths: Tensor, starts: Tensor, places: int) -> Tensor:
    """(n, L) ids, (n,), (n,) -> (n, places): each sentence from its start on, 0 elsewhere, its end cut off if too long.

    >>> place_words(torch.tensor([[7, 8, 9]]), torch.tensor([2]), torch.tensor([1]), 4).tolist()
    [[0, 7, 8, 0]]
    """
    source = torch.arange(places, device=tokens.device) - starts[:, None]  # (n, places): which word stands here
    real = (source >= 0) & (source < lengths[:, None])
    return tokens.gather(1, source.clamp(0, tokens.shape[1] - 1)).masked_fill(~real, 0)


def every_shift(lengths: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """(m,) rows and (m,) starts of all shifts of all sentences, m in all.

    >>> rows, starts = every_shift(torch.tensor([3, 4]), 4)
    >>> rows.tolist(), starts.tolist()
    ([0, 0, 1], [0, 1, 0])
    """
    counts = shift_counts(lengths, places)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), counts)
    first = counts.cumsum(0) - counts  # (n,): where the shifts of a sentence begin
    return rows, torch.arange(len(rows), device=lengths.device) - first[rows]
