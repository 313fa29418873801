"""MMCA's second score, i1 . c1 of every pair: joint attention (Eq. 11 to 14), the rest of the unit, and pooling.

The attention of a fragment is split into its own item (computed once, `JointTokens`) and the other item (computed for
each pair). Pairs are scored block by block, so memory follows the budget and not the number of pairs. With gradients
and more than one block, blocks are computed again in the backward pass.

Letters in shapes: I images of k regions, T texts of m words, n pairs, d channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from quintet.codes import Codes
from quintet.layers.normalize import l2norm, widen
from quintet.layers.text_cnn import TextCNN
from quintet.layers.transformer_unit import FAR, TransformerUnit, split_heads
from quintet.scores.attention import Precision
from quintet.scores.blocks import Group, Side, fragments_of
from quintet.scores.cross_attention import AttentionMap

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
    """(n, L, d), (n, L) -> what depends on the item alone, in float32 or wider."""
    with torch.autocast(x.device.type, enabled=False):
        x = widen(x)
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


@torch.no_grad()
def word_region_weights(image_code: Codes, text_code: Codes, unit: TransformerUnit) -> tuple[Tensor, Tensor]:
    """The two parts of every word's softmax (lower row of Eq. 12): weights on the regions, and the sum of the rest.

    One image and one text -> (h, words, regions) and (h, words), real fragments only; together they sum to one.
    """
    if len(image_code) != 1 or len(text_code) != 1:
        raise ValueError(f"attention is of one image and one text, got {len(image_code)} and {len(text_code)}")
    regions, words = (
        JointTokens.unpacked(widen(fragments_of(code)[:, code.real()[0]]), unit.dim, unit.heads)
        for code in (image_code, text_code)
    )
    query, key = split_heads(words.query, unit.heads)[0], split_heads(regions.key, unit.heads)[0]  # (h, L, d / h)
    own = words.weight[0].T[..., None]  # (h, words, 1)
    weights = torch.cat([query @ key.mT, own], dim=-1).softmax(dim=-1)  # (h, words, regions + 1)
    return weights[..., :-1], weights[..., -1]


@torch.no_grad()
def joint_weights(image_code: Codes, text_code: Codes, unit: TransformerUnit) -> Tensor:
    """(h, k + m, k + m): Eq. 12 of one pair, every region and word over all of both, real ones only, regions first."""
    if len(image_code) != 1 or len(text_code) != 1:
        raise ValueError(f"attention is of one image and one text, got {len(image_code)} and {len(text_code)}")
    tokens = [
        JointTokens.unpacked(widen(fragments_of(code)[:, code.real()[0]]), unit.dim, unit.heads)
        for code in (image_code, text_code)
    ]
    query, key = (
        split_heads(torch.cat([getattr(one, name) for one in tokens], dim=1), unit.heads)[0]
        for name in ("query", "key")
    )  # (h, k + m, d / h)
    return (query @ key.mT).softmax(dim=-1)


def joint_attention_map(image_code: Codes, text_code: Codes, unit: TransformerUnit) -> AttentionMap:
    """Mean over the heads, as shares of what a word gives to regions at all, so that every word's row sums to one."""
    weights = word_region_weights(image_code, text_code, unit)[0].mean(dim=0)  # (words, regions)
    boxes = None if image_code.boxes is None else image_code.boxes[0, image_code.real()[0]]
    return AttentionMap(weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-30), boxes, "t2i")


# Bytes for the working tensors of one block, by device and by whether gradients are wanted.
_BUDGETS = {("cpu", False): 64 << 20, ("cpu", True): 256 << 20, ("cuda", False): 2 << 30, ("cuda", True): 2 << 30}

_OF_ONE_LENGTH = 32  # texts of a length, on average, that are worth a group of their own


@dataclass(frozen=True)
class JointScorer:
    """What the cross-attention module computes with: its unit, its text CNN, and how.

    `precision`: "bfloat16" does the work of a pair in half precision (sums and the last products stay in float32).
    `budget` bounds the bytes of a block's working tensors and changes no score. `recompute=False` keeps all blocks for
    the backward pass: faster, for those who have the memory.
    """

    unit: TransformerUnit
    pool: TextCNN
    precision: Precision = "float32"
    budget: int | None = None
    recompute: bool = True

    def __call__(self, image_codes: Codes, text_codes: Codes, *, paired: bool = False) -> Tensor:
        """(I, T): i1 . c1 of every pair; with `paired`, (n,): of row i and row i."""
        images, texts = fragments_of(image_codes), fragments_of(text_codes)
        if paired and len(images) != len(texts):
            raise ValueError(f"pairs need as many images as texts, got {len(images)} and {len(texts)}")
        if not len(images) or not len(texts):
            return widen(images).new_zeros(len(images) if paired else (len(images), len(texts)))
        with torch.autocast(images.device.type, enabled=False):
            work = _Work(self, _dtype(images, self.precision), self._wants_grad(images, texts), paired)
            return (_row_blocks if paired else _all_blocks)(work, image_codes, text_codes)

    def _wants_grad(self, *fragments: Tensor) -> bool:
        learned = (*self.unit.rest.parameters(), *self.pool.parameters())
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*fragments, *learned))


class _Work:
    """One call of the scorer: weights in the type of the work, and a block's score from its fragments."""

    def __init__(self, scorer: JointScorer, dtype: torch.dtype, wants_grad: bool, paired: bool) -> None:
        self.scorer, self.dtype, self.wants_grad, self.paired = scorer, dtype, wants_grad, paired
        self.recompute = False
        self.rest = _cast(scorer.unit.rest, dtype)
        self.pool = _cast(scorer.pool, dtype)
        self.keeps_random = any(
            isinstance(part, nn.Dropout) and part.p > 0 and part.training for part in scorer.unit.modules()
        )

    def expect(self, blocks: int) -> None:
        """So many blocks will follow; a single one fits the budget with all that the backward pass wants."""
        self.recompute = self.wants_grad and self.scorer.recompute and blocks > 1

    def pairs_in_budget(self, fragments: Tensor, regions: int, words: int) -> int:
        """How many pairs of so many regions and words a block may have."""
        budget = self.scorer.budget
        if budget is None:
            budget = _BUDGETS["cpu" if fragments.device.type == "cpu" else "cuda", self.wants_grad]
        if budget < 1:
            raise ValueError(f"the memory budget must be positive, got {budget} bytes")
        return max(1, budget // (self.pair_elements(regions, words) * self.dtype.itemsize))

    def pair_elements(self, regions: int, words: int) -> int:
        """Numbers that live at once for one pair, about: all of a block where gradients are wanted."""
        unit, pool = self.scorer.unit, self.scorer.pool
        inner = unit.rest.ffn_in.out_features
        spans = max(pool.windows) + 1
        if self.wants_grad:
            return (regions + words) * (12 * unit.dim + 3 * inner) + words * (spans * unit.dim + 9 * pool.filters)
        return (regions + words) * (4 * unit.dim + inner) + words * (spans * unit.dim + 2 * pool.filters)

    def block(self, images: Tensor, image_real: Tensor | None, texts: Tensor, text_real: Tensor | None) -> Tensor:
        """Fragments and masks of a block -> (I, T), or (n,) where paired."""
        if not self.recompute:
            return self._block(images, image_real, texts, text_real)
        return checkpoint(
            self._block,
            images,
            image_real,
            texts,
            text_real,
            use_reentrant=False,
            preserve_rng_state=self.keeps_random,
        )

    def _block(self, images: Tensor, image_real: Tensor | None, texts: Tensor, text_real: Tensor | None) -> Tensor:
        regions, words = self._tokens(images), self._tokens(texts)
        heads = self.scorer.unit.heads
        # (T, I, k, d), or (n, 1, k, d) where paired
        seen = mix(regions, words, text_real, heads=heads, paired=self.paired)
        image = _mean(self.rest(self._spread(regions.x), seen), self._spread(image_real))  # (T, I, d)
        del seen
        # (I, T, m, d), or (n, 1, m, d)
        read = mix(words, regions, image_real, heads=heads, paired=self.paired)
        text = widen(self.pool(self.rest(self._spread(words.x), read), self._spread(text_real)))  # (I, T, d)
        image = image if self.paired else image.transpose(0, 1)  # (I, T, d)
        scores = (l2norm(image, eps=0) * l2norm(text, eps=0)).sum(dim=-1)
        return scores[:, 0] if self.paired else scores

    def _tokens(self, fragments: Tensor) -> JointTokens:
        unit = self.scorer.unit
        tokens = JointTokens.unpacked(fragments, unit.dim, unit.heads)
        parts = {name: getattr(tokens, name).to(self.dtype) for name in ("x", "query", "key", "value", "own")}
        return replace(tokens, **parts)  # z stays as precise as it is

    def _spread(self, tensor: Any) -> Any:
        """(n, L, ...) in a shape that goes with what `mix` gives: (n, 1, L, ...) where paired, else as it is."""
        return tensor[:, None] if self.paired and tensor is not None else tensor


def _all_blocks(work: _Work, image_codes: Codes, text_codes: Codes) -> Tensor:
    image_side, text_side = Side.of(image_codes), Side.of(text_codes)
    plan = list(_plan(work, image_side, text_side))
    work.expect(sum(len(image_groups) for _, image_groups in plan))
    columns = []
    for text_group, image_groups in plan:
        texts = text_side.take(text_group)
        columns.append(torch.cat([work.block(*image_side.take(group), *texts) for group in image_groups]))
    scores = torch.cat(columns, dim=1)  # (I, T), in the sides' order
    return text_side.restore(image_side.restore(scores, dim=0), dim=1)


def _plan(work: _Work, image_side: Side, text_side: Side) -> Iterator[tuple[Group, list[Group]]]:
    """Groups of texts, each with the groups of images it meets."""
    pairs = work.pairs_in_budget(image_side.fragments, image_side.max_length, text_side.max_length)
    texts = max(math.isqrt(pairs), pairs // len(image_side))
    # With many texts of every length, groups of one length are large enough, and need neither padding nor masks.
    many = len(text_side) >= _OF_ONE_LENGTH * len(text_side.lengths.unique())
    for text_group in text_side.groups(texts, padding=1.0) if many else text_side.groups(texts):
        most = work.pairs_in_budget(image_side.fragments, image_side.max_length, text_group.length) // len(text_group)
        yield text_group, image_side.groups(most)


def _row_blocks(work: _Work, image_codes: Codes, text_codes: Codes) -> Tensor:
    text_side = Side.of(text_codes)
    same_order = torch.arange(len(text_codes)) if text_side.order is None else text_side.order.cpu()
    image_side = Side.of(image_codes, order=same_order)
    # Here the gathered fragments weigh as much as half a block's tensors do.
    most = work.pairs_in_budget(image_side.fragments, image_side.max_length, text_side.max_length) // 2
    groups = text_side.groups(most)
    work.expect(len(groups))
    parts = [
        work.block(*image_side.take(image_side.group(group.start, group.stop)), *text_side.take(group))
        for group in groups
    ]
    return text_side.restore(torch.cat(parts), dim=0)  # (n,)


def _cast(module: nn.Module, dtype: torch.dtype) -> Callable[..., Tensor]:
    """The module with its weights in `dtype`, cast once for all blocks; gradients reach the weights themselves."""
    weights = {name: parameter.to(dtype) for name, parameter in module.named_parameters()}
    return lambda *inputs: functional_call(module, weights, inputs)


def _mean(regions: Tensor, real: Tensor | None) -> Tensor:
    """(..., k, d), (..., k) -> (..., d) over real regions, summed in float32 or wider (Eq. 5)."""
    wide = widen(regions[..., :0, :0]).dtype
    if real is None:
        return regions.mean(dim=-2, dtype=wide)
    total = regions.masked_fill(~real[..., None], 0).sum(dim=-2, dtype=wide)
    return total / real.sum(dim=-1, keepdim=True).clamp(min=1).to(wide)


def _dtype(fragments: Tensor, precision: Precision) -> torch.dtype:
    return torch.bfloat16 if precision == "bfloat16" else widen(fragments[:0]).dtype
