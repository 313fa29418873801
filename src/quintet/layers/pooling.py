"""From a set of fragments to one vector. Every pooling reads the fragments inside the mask and no others.

n counts items, L fragments (padding included), d channels. An item without real fragments pools to zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from quintet.layers.normalize import widen
from quintet.layers.text import gru_states

TEMPERATURE = 0.1  # of the softmax over positions in GPO


def masked_mean(fragments: Tensor, mask: Tensor) -> Tensor:
    """(n, L, d), (n, L) -> (n, d).

    >>> masked_mean(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[3.]])
    """
    # masked_fill, not a product: padding may hold NaN.
    total = fragments.masked_fill(~mask[..., None], 0).sum(dim=1)  # (n, d)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1).to(total.dtype)


def masked_max(fragments: Tensor, mask: Tensor) -> Tensor:
    """(n, L, d), (n, L) -> (n, d): the largest real value of every channel."""
    highest = fragments.masked_fill(~mask[..., None], -math.inf).amax(dim=1)  # (n, d)
    return highest.masked_fill(~mask.any(dim=1, keepdim=True), 0)


def masked_topk_mean(fragments: Tensor, mask: Tensor, k: int) -> Tensor:
    """(n, L, d), (n, L) -> (n, d): the mean of the k largest real values of every channel, or of all where fewer are.

    >>> masked_topk_mean(torch.tensor([[[1.0], [5.0], [3.0], [9.0]]]), torch.tensor([[True, True, True, False]]), k=2)
    tensor([[4.]])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    highest = fragments.masked_fill(~mask[..., None], -math.inf).topk(min(k, fragments.shape[1]), dim=1).values
    counted = mask.sum(dim=1, keepdim=True).clamp(max=k)  # (n, 1)
    within = torch.arange(highest.shape[1], device=mask.device) < counted  # (n, min(k, L))
    total = highest.masked_fill(~within[..., None], 0).sum(dim=1)  # (n, d)
    return total / counted.clamp(min=1).to(total.dtype)


class GPO(nn.Module):
    """Generalized pooling operator of VSE-infinity: a learned weighted sum of the sorted values of every channel.

    The weight of rank k among n values comes from k and n alone (a bi-GRU over sinusoidal codes of the ranks 1..n,
    then a linear map and a softmax), so the operator can become a mean, a maximum or a mean of the top k. The released
    code counts ranks from 0: `first_rank=0`.

    >>> pool = GPO()
    >>> pool(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 8])
    """

    def __init__(self, position_dim: int = 32, hidden: int = 32, first_rank: int = 1) -> None:
        super().__init__()
        if position_dim % 2:
            raise ValueError(f"position_dim must be even (sine and cosine), got {position_dim}")
        self.position_dim = position_dim
        self.hidden = hidden
        self.first_rank = first_rank
        self.gru = nn.GRU(position_dim, hidden, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(hidden, 1, bias=False)

    def forward(self, fragments: Tensor, mask: Tensor) -> Tensor:
        """(n, L, d), (n, L) -> (n, d)."""
        counts = mask.sum(dim=1)  # (n,)
        if not mask.numel():
            return fragments.sum(dim=1)  # nothing to sort
        distinct, which = _distinct(counts.clamp(min=1), fragments.shape[1])
        weights = self.weights(distinct, fragments.shape[1])[which]  # (n, L)
        ranked = fragments.masked_fill(~mask[..., None], -math.inf).sort(dim=1, descending=True).values  # (n, L, d)
        within = torch.arange(fragments.shape[1], device=mask.device) < counts[:, None]  # (n, L)
        ranked = ranked.masked_fill(~within[..., None], 0)
        return torch.einsum("nl,nld->nd", weights.to(ranked.dtype), ranked)

    def weights(self, counts: Tensor, length: int) -> Tensor:
        """(n,) counts from 1 to `length` -> (n, length) weights of the ranks, zero beyond the count, summing to 1."""
        codes = rank_codes(length, self.position_dim, self.first_rank, counts.device).to(self.linear.weight)  # (L, p)
        codes = codes.expand(counts.shape[0], -1, -1)  # (n, L, p)
        states = gru_states(self.gru, codes, counts)  # (n, L, 2 h)
        states = (states[..., : self.hidden] + states[..., self.hidden :]) / 2  # (n, L, h)
        logits = self.linear(states).squeeze(-1)  # (n, L)
        logits = widen(logits)  # the division by 0.1 costs three bits
        beyond = torch.arange(length, device=counts.device) >= counts[:, None]  # (n, L)
        return (logits / TEMPERATURE).masked_fill(beyond, -math.inf).softmax(dim=1)


def _distinct(counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The distinct counts, each at most `most`, and (n,) the index of each count among them.

    GPO's weights depend on the count alone, so the GRU runs once for each distinct count, often only one. On a GPU it
    runs for every possible count, because reading the distinct ones would wait for the GPU.
    """
    if counts.is_cuda:
        return torch.arange(1, most + 1, device=counts.device), counts - 1
    return counts.unique(return_inverse=True)


def rank_codes(length: int, dim: int, first: int = 1, device: torch.device | None = None) -> Tensor:
    """(length, dim) sinusoidal codes of the ranks from `first` on: sine in even channels, cosine in odd ones."""
    rank = torch.arange(first, first + length, dtype=torch.float64, device=device)[:, None]  # (L, 1)
    frequency = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)  # (dim / 2,)
    return torch.stack([(rank * frequency).sin(), (rank * frequency).cos()], dim=-1).flatten(1)  # (L, dim)


Pooling = Callable[[Tensor, Tensor], Tensor]


class Pool(nn.Module):
    """A pooling without parameters as a module."""

    def __init__(self, function: Pooling) -> None:
        super().__init__()
        self.function = function

    def forward(self, fragments: Tensor, mask: Tensor) -> Tensor:
        return self.function(fragments, mask)

    def extra_repr(self) -> str:
        return self.function.__name__


def create_pooling(name: str, first_rank: int = 1) -> nn.Module:
    """`mean`, `max` or `gpo` (with ranks counted from `first_rank`)."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "mean": lambda: Pool(masked_mean),
        "max": lambda: Pool(masked_max),
        "gpo": lambda: GPO(first_rank=first_rank),
    }
    if name not in makers:
        raise ValueError(f"there is no pooling {name!r}; choose one of: {', '.join(makers)}")
    return makers[name]()
