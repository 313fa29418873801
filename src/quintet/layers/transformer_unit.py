"""The Transformer unit of MMCA: multi-head attention, then a position-wise network, each added to its input and
normalised afterwards.

Letters in shapes: n items, L fragments, d channels, h heads of d / h channels.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Scale = Literal["sqrt_dk", "sqrt_d"]
Activation = Literal["relu", "gelu"]

FAR = -1e4  # a logit whose exponential is zero in every type, and which itself fits every type


class TransformerUnit(nn.Module):
    """Eq. 1 to 4 of MMCA (Figure 3).

    - `scale`: what the products are divided by, "sqrt_dk" (the width of a head, Eq. 1) or "sqrt_d" (the whole width, as
      Eq. 11 writes it);
    - `ffn_dim`: the inner width of the position-wise network, d itself where none is given (Eq. 4);
    - `bias`: whether the projections of queries, keys, values and output have one (in Eq. 1 to 3 they have none);
    - `dropout` is on what each of the two parts adds to its input, never on attention weights.

    >>> unit = TransformerUnit(8, heads=2)
    >>> unit(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        ffn_dim: int | None = None,
        activation: Activation = "relu",
        scale: Scale = "sqrt_dk",
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"{dim} channels cannot be divided among {heads} heads")
        if scale not in get_args(Scale):
            raise ValueError(f"scale must be one of {get_args(Scale)}, got {scale!r}")
        self.dim = dim
        self.heads = heads
        self.scale = 1 / math.sqrt(dim // heads if scale == "sqrt_dk" else dim)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.rest = AfterAttention(dim, ffn_dim or dim, activation, bias, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L, d), (n, L) -> (n, L, d); every fragment attends to the real ones of its item."""
        query, key, value = (split_heads(part, self.heads) for part in self.project(x))  # (n, h, L, d / h)
        allowed = None if mask is None else mask[:, None, None, :]  # (n, 1, 1, L)
        if allowed is not None:  # an item without real fragments attends to all: a softmax over none is NaN
            allowed = allowed | ~allowed.any(dim=-1, keepdim=True)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=1.0)
        return self.rest(x, join_heads(mixed))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(..., d) -> queries, keys and values (..., d) of all heads (Eq. 8 to 10); the scale is in the queries."""
        return self.query(x) * self.scale, self.key(x), self.value(x)

    def attend_own(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attention within an item, and its weight against fragments of another item.

        (n, L, d) each, (n, L) -> mixed values (n, L, d) and the logarithm of the softmax's denominator (n, L, h).
        """
        query, key, value = (split_heads(part, self.heads) for part in (query, key, value))  # (n, h, L, d / h)
        logits = query @ key.mT  # (n, h, L, L)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], FAR)
        total = logits.logsumexp(dim=-1, keepdim=True)  # (n, h, L, 1)
        mixed = (logits - total).exp() @ value  # (n, h, L, d / h)
        return join_heads(mixed), total.squeeze(-1).transpose(1, 2)


class AfterAttention(nn.Module):
    """The rest of the unit, fragment by fragment: W^O (Eq. 3) and the network of Eq. 4, both with residual and norm."""

    def __init__(self, dim: int, ffn_dim: int, activation: Activation, bias: bool, dropout: float) -> None:
        super().__init__()
        if activation not in get_args(Activation):
            raise ValueError(f"activation must be one of {get_args(Activation)}, got {activation!r}")
        self.output = nn.Linear(dim, dim, bias=bias)
        self.norm_attention = nn.LayerNorm(dim)
        self.ffn_in = nn.Linear(dim, ffn_dim)
        self.ffn_out = nn.Linear(ffn_dim, dim)
        self.norm_ffn = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.activation = torch.relu if activation == "relu" else F.gelu

    def forward(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The unit's input and its attention's output, (..., d) each and broadcast against each other -> (..., d)."""
        attended = self.norm_attention(x + self.dropout(by_rows(self.output, mixed)))
        inner = self.activation(by_rows(self.ffn_in, attended))  # (..., ffn_dim)
        return self.norm_ffn(attended + self.dropout(by_rows(self.ffn_out, inner)))


def by_rows(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer on (..., d) as on one matrix: with more dimensions torch would add the bias in a second pass."""
    return layer(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(n, L, d) -> (n, h, L, d / h)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(n, h, L, d / h) -> (n, L, d)."""
    return x.transpose(1, 2).flatten(2)
