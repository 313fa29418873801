"""Joint attention over the regions of a picture and the words of a sentence, split into what is of one item and what is
of a pair (MMCA, Eq. 8 to 14).

A fragment of the stacked Y = (R; E) attends to its own item's fragments and to the other's, under one softmax. Let z be
the logarithm of what the own ones add to the denominator, and o their mixed values: both are computed once per item.
To the other item's fragments the own ones then look like a single further key with the logit z and the value o, so

    attention over k + n keys = w o + attention over the other's keys,    w = the softmax weight of that further key,

which is exact, and leaves 2 k n instead of (k + n)^2 products to the pair. All fragments of a block that look at one
item share its keys and values, so a block is one call of fused attention with many queries and few keys.

Letters in shapes: C items that are looked at, with Lc fragments; Q items that look, with Lq; h heads; d channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from quintet.layers.transformer_unit import FAR, TransformerUnit, split_heads

_EXTRA = 3  # channels beside a head's own: z, the part of z that rounding took away, and the mark of padding
_ALIGN = 8  # fused attention wants the width of a head to be a multiple of this
# Those that take queries repeated without a copy; the first that can do the type and the device at hand is used.
_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class JointTokens:
    """The fragments of n items, ready to be mixed with those of others."""

    x: Tensor  # (n, L, d): R or the projected E, before the unit
    query: Tensor  # (n, L, d), scaled
    key: Tensor  # (n, L, d)
    value: Tensor  # (n, L, d)
    own: Tensor  # (n, L, d): o, what the item's own fragments give
    weight: Tensor  # (n, L, h): z, the logarithm of what they weigh

    def packed(self) -> Tensor:
        """(n, L, 5 d + h): as `Codes.fragments` carries them."""
        return torch.cat([self.x, self.query, self.key, self.value, self.own, self.weight], dim=-1)

    @staticmethod
    def unpacked(fragments: Tensor, dim: int, heads: int) -> JointTokens:
        if fragments.shape[-1] != 5 * dim + heads:
            raise ValueError(
                f"fragments of {fragments.shape[-1]} channels are not those of a joint unit with {dim} channels and "
                f"{heads} heads ({5 * dim + heads}); were the codes made by another matcher?"
            )
        return JointTokens(*fragments.split([dim] * 5 + [heads], dim=-1))


def joint_tokens(unit: TransformerUnit, x: Tensor, mask: Tensor | None) -> JointTokens:
    """(n, L, d), (n, L) -> everything about the items that is not about a pair, in float32 or wider."""
    with torch.autocast(x.device.type, enabled=False):
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        query, key, value = unit.project(x)
        own, weight = unit.attend_own(query, key, value, mask)
        return JointTokens(x, query, key, value, own, weight)


def mix(queries: JointTokens, others: JointTokens, real: Tensor | None, *, heads: int, paired: bool) -> Tensor:
    """Eq. 13 or 14 for every pair: each fragment's values under the joint softmax, all heads side by side.

    Q items of Lq fragments look at C items of Lc, whose real ones `real` (C, Lc) marks -> (C, Q, Lq, d). With `paired`
    item i looks at item i alone -> (n, 1, Lq, d). The type is that of `queries.query`.
    """
    asking = _asking(queries, heads)  # (Q, h, Lq, D)
    keys, values = _offering(others, real, heads)  # (C, h, Lc + 1, D)
    own = queries.own.unflatten(-1, (heads, -1))  # (Q, Lq, h, d / h)
    if not paired:  # one long row of queries, the same for every item they look at
        asking = asking.transpose(0, 1).flatten(1, 2).expand(len(keys), -1, -1, -1)  # (C, h, Q Lq, D)
        own = own.flatten(0, 1)  # (Q Lq, h, d / h)
    with sdpa_kernel(_FUSED):
        found = F.scaled_dot_product_attention(asking, keys, values, scale=1.0)  # (C, h, Q Lq, D)
    found = found.transpose(1, 2)  # (C, Q Lq, h, D)
    width = own.shape[-1]
    mixed = torch.addcmul(found[..., :width], found[..., width : width + 1], own)  # (C, Q Lq, h, d / h)
    return mixed.reshape(len(keys), -1, queries.own.shape[1], heads * width)  # (C, Q, Lq, d)


def _asking(tokens: JointTokens, heads: int) -> Tensor:
    """(Q, h, Lq, D): queries, then z in two parts that add up to it also in half precision, then a one."""
    query = split_heads(tokens.query, heads)  # (Q, h, Lq, d / h)
    z = tokens.weight.transpose(1, 2)[..., None]  # (Q, h, Lq, 1)
    high = z.to(query.dtype)
    low = (z - high.to(z.dtype)).to(query.dtype)
    return _widened([query, high, low, torch.ones_like(high)])


def _offering(tokens: JointTokens, real: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """(C, h, Lc + 1, D) keys and values; the last key stands for the fragments' own item.

    Its logit is z; its value is a one in a channel of its own, where the output then shows its weight. The key of
    padding gets a logit so low that it has none.
    """
    key, value = split_heads(tokens.key, heads), split_heads(tokens.value, heads)  # (C, h, Lc, d / h)
    nothing, one = torch.zeros_like(key[..., :1]), key.new_ones(())
    barred = nothing
    if real is not None:
        key = key.masked_fill(~real[:, None, :, None], 0)
        barred = nothing.masked_fill(~real[:, None, :, None], FAR)
    keys = _widened([key, nothing, nothing, barred])
    values = _widened([value, nothing])
    width = key.shape[-1]
    last = keys.new_zeros(2, keys.shape[-1])
    last[0, width : width + 2] = one  # meets both parts of z
    last[1, width] = one
    last = last[:, None, None, None, :].expand(-1, len(keys), heads, 1, -1)  # (2, C, h, 1, D)
    return torch.cat([keys, last[0]], dim=2), torch.cat([values, last[1]], dim=2)


def _widened(parts: list[Tensor]) -> Tensor:
    """Side by side, filled up with zeros to the width of all of them: D = d / h and the extra channels, aligned."""
    width = parts[0].shape[-1] + _EXTRA
    joined = torch.cat(parts, dim=-1)
    return F.pad(joined, (0, -(-width // _ALIGN) * _ALIGN - joined.shape[-1]))
