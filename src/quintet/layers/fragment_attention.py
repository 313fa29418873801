"""From fragments to one vector: self-attention among the fragments of an item, and a mix of maximum and mean."""

from __future__ import annotations

import math

from torch import Tensor, nn

from quintet.layers.pooling import masked_max, masked_mean, masked_topk_mean


def attention_heads(dim: int, wanted: int | None = None) -> int:
    """How many heads share `dim` channels: `wanted`, or 16 as in the released HREM, or the most below that divides.

    >>> attention_heads(1024), attention_heads(24), attention_heads(1024, 4)
    (16, 8, 4)
    """
    heads = math.gcd(16, dim) if wanted is None else wanted
    if heads < 1 or dim % heads:
        raise ValueError(f"{dim} channels cannot be shared by {heads} attention heads")
    return heads


def transformer_layer(dim: int, heads: int | None = None, hidden: int | None = None, dropout: float = 0.1) -> nn.Module:
    """One post-norm Transformer layer; `hidden` (of its feed-forward part) is `dim` where it is not given."""
    return nn.TransformerEncoderLayer(dim, attention_heads(dim, heads), hidden or dim, dropout, batch_first=True)


class FragmentAggregation(nn.Module):
    """The embedding of an item from its fragments (HREM Eq. 2 and 3):

        v = beta MaxPool(R) + (1 - beta) AvgPool(R^V),    R^V = the fragments after one Transformer layer

    - `top`: 1 is the paper's maximum; 2 is the mean of the two largest values of a channel, as the released code has.
    - `relation=False` leaves the layer out (the paper's ablation): the mean is then over the fragments as they are.

    Padding takes no part. An item without fragments becomes zeros.

    >>> import torch
    >>> FragmentAggregation(8)(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        dim: int,
        beta: float = 0.8,
        top: int = 1,
        heads: int | None = None,
        hidden: int | None = None,
        dropout: float = 0.1,
        relation: bool = True,
    ) -> None:
        super().__init__()
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        self.beta = beta
        self.top = top
        self.layer = transformer_layer(dim, heads, hidden, dropout) if relation else None

    def forward(self, fragments: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L, d) and a mask (n, L), True where a fragment is real -> (n, d)."""
        real = fragments.new_ones(fragments.shape[:2]).bool() if mask is None else mask
        strongest = masked_max(fragments, real) if self.top == 1 else masked_topk_mean(fragments, real, self.top)
        related = self._relate(fragments, mask)  # (n, L, d)
        return self.beta * strongest + (1 - self.beta) * masked_mean(related, real)

    def _relate(self, fragments: Tensor, mask: Tensor | None) -> Tensor:
        if self.layer is None or not fragments.numel():
            return fragments
        # An item of padding alone would be a softmax over nothing: let it attend, its mean is zero anyway.
        padding = None if mask is None else ~mask & mask.any(dim=1, keepdim=True)  # (n, L)
        return self.layer(fragments, src_key_padding_mask=padding)
