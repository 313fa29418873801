"""Scores of many pairs, block by block: memory follows the budget, not the number of pairs.

When gradients are wanted and there is more than one block, only the fragments are kept for the backward pass, and each
block is computed again there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from quintet.codes import Codes
from quintet.layers.normalize import widen

_MOST_PADDING = 1.25  # fragments of a group, padding included, over its real fragments
_EVEN = 32  # items: products whose rows are of an odd length take a GPU about twice as long


@dataclass(frozen=True)
class Group:
    """Items start..stop in order of length; `padded` when some are shorter than `length`."""

    start: int
    stop: int
    length: int
    padded: bool

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Side:
    """The fragments of n items, and the order in which they are processed."""

    fragments: Tensor  # (n, L, d)
    mask: Tensor | None  # (n, L)
    lengths: Tensor  # (n,) int64 on the CPU: the position of the last real fragment, in processing order
    whole: Tensor  # (n,) bool on the CPU: no padding before that position
    order: Tensor | None  # (n,) int64 on the device of the fragments; None: as given

    @staticmethod
    def of(codes: Codes, order: Tensor | None = None) -> Side:
        """The side of these Codes, by length or in the given order (rows, on the CPU)."""
        fragments = fragments_of(codes)
        lengths, whole = _lengths(codes)
        rows = lengths.argsort(stable=True) if order is None else order
        if bool((rows == torch.arange(len(rows))).all()):
            return Side(fragments, codes.mask, lengths, whole, None)
        return Side(fragments, codes.mask, lengths[rows], whole[rows], rows.to(fragments.device))

    def __len__(self) -> int:
        return len(self.fragments)

    @property
    def max_length(self) -> int:
        return int(self.lengths.max())

    def groups(self, most: int, padding: float = _MOST_PADDING) -> list[Group]:
        """At most `most` items each; cut earlier where a group would be padded too much. 1: no padding at all."""
        return [self.group(start, stop) for start, stop in _cuts(self.lengths.tolist(), max(1, most), padding)]

    def group(self, start: int, stop: int) -> Group:
        """These items as one group."""
        longest = int(self.lengths[start:stop].max())
        full = bool(((self.lengths[start:stop] == longest) & self.whole[start:stop]).all())
        return Group(start, stop, longest, padded=not full)

    def take(self, group: Group) -> tuple[Tensor, Tensor | None]:
        """The group's fragments, zero at padding, and their mask where there is padding."""
        taken = self._rows(self.fragments, group)
        if not group.padded or self.mask is None:
            return taken, None
        real = self._rows(self.mask, group)
        return taken.masked_fill(~real[:, :, None], 0.0), real

    def add_to(self, total: Tensor, group: Group, part: Tensor) -> None:
        """Add what belongs to the group's fragments to `total` (n, L, d), in place."""
        total = total[:, : group.length]
        if self.order is None:
            total[group.start : group.stop] += part
        else:
            total.index_add_(0, self.order[group.start : group.stop], part.to(total.dtype))

    def restore(self, scores: Tensor, dim: int) -> Tensor:
        """Scores in this side's order along `dim`, back in the order of its items."""
        return scores if self.order is None else scores.index_select(dim, self.order.argsort())

    def arrange(self, scores: Tensor, dim: int) -> Tensor:
        """The reverse of `restore`."""
        return scores if self.order is None else scores.index_select(dim, self.order)

    def over(self, fragments: Tensor) -> Side:
        """The same side with these fragments."""
        return replace(self, fragments=fragments)

    def _rows(self, tensor: Tensor, group: Group) -> Tensor:
        tensor = tensor[:, : group.length]
        if self.order is None:
            return tensor[group.start : group.stop]
        return tensor.index_select(0, self.order[group.start : group.stop])


def fragments_of(codes: Codes) -> Tensor:
    if codes.fragments is None:
        raise ValueError("these Codes hold no fragments; they were made by a matcher that scores embeddings")
    return codes.fragments


def _lengths(codes: Codes) -> tuple[Tensor, Tensor]:
    """(n,) the position of the last real fragment of an item, counted from 1; (n,) whether all before it are real."""
    n, longest = fragments_of(codes).shape[:2]
    lengths, whole = torch.full((n,), longest, dtype=torch.int64), torch.ones(n, dtype=torch.bool)
    if codes.mask is not None and n and longest:
        positions = torch.arange(1, longest + 1, device=codes.mask.device)
        last = (codes.mask * positions).amax(dim=1)  # (n,)
        lengths, counts = torch.stack([last, codes.mask.sum(dim=1)]).cpu()  # one wait for the device, not two
        whole = counts == lengths
    if n and int(lengths.min()) < 1:
        raise ValueError(f"item {int(lengths.argmin())} has no real fragment: its mask is empty")
    return lengths, whole


def _cuts(lengths: list[int], most: int, padding: float) -> Iterator[tuple[int, int]]:
    """Where one group ends and the next begins; what a whole number of `_EVEN` leaves over joins the next group."""
    start = 0
    while start < len(lengths):
        stop = _stop(lengths, start, most, padding)
        if padding > 1 and stop < len(lengths) and stop - start > _EVEN:
            stop -= (stop - start) % _EVEN
        yield start, stop
        start = stop


def _stop(lengths: list[int], start: int, most: int, padding: float) -> int:
    """The end of a group of at most `most` items that is not padded too much."""
    real = lengths[start]
    for position in range(start + 1, min(start + most, len(lengths))):
        real += lengths[position]
        if lengths[position] * (position + 1 - start) > padding * real:
            return position
    return min(start + most, len(lengths))


# (image fragments, their mask or None, text fragments, their mask or None) -> scores of the block
BlockScore = Callable[[Tensor, Tensor | None, Tensor, Tensor | None], Tensor]
Blocks = list[tuple[Group, Group]]

# Bytes for the working tensors of one block, by device and by whether gradients are wanted. Small on a CPU, where a
# block that stays in the cache is quicker; with gradients it decides the peak memory of a training step. On a GPU a
# batch of 128 captions of any usual length should be one block: more of them are cut by length, which waits for it.
_BUDGETS = {("cpu", False): 8 << 20, ("cpu", True): 32 << 20, ("cuda", False): 512 << 20, ("cuda", True): 512 << 20}

_ASPECT = 4  # texts per image in a block, about


def score_all(
    block_score: BlockScore,
    image_codes: Codes,
    text_codes: Codes,
    *,
    copies: tuple[int, int],
    budget: int | None = None,
) -> Tensor:
    """(n_images, n_texts): every pair.

    `copies` tensors of the size of a block's products live at once in a block, without and with gradients; `budget` is
    the bytes they may take together.
    """
    images, texts = fragments_of(image_codes), fragments_of(text_codes)
    if not len(images) or not len(texts):
        return widen(images).new_zeros(len(images), len(texts))
    wants_grad = torch.is_grad_enabled() and (images.requires_grad or texts.requires_grad)
    elements = _budget(images, budget, wants_grad) // (copies[wants_grad] * _bytes(images))
    if images.is_cuda and math.prod(images.shape[:2]) * math.prod(texts.shape[:2]) <= elements:
        return score_whole(block_score, image_codes, text_codes)
    image_side, text_side = Side.of(image_codes), Side.of(text_codes)
    blocks = _plan(image_side, text_side, elements)
    with torch.autocast(images.device.type, enabled=False):
        if not wants_grad or len(blocks) == 1:
            return _all_blocks(image_side, text_side, blocks, block_score)
        return _Recomputed.apply(images, texts, image_side, text_side, blocks, block_score)


def score_whole(block_score: BlockScore, image_codes: Codes, text_codes: Codes) -> Tensor:
    """All pairs as one block, padding included, without reading the lengths.

    For a GPU: reading the lengths waits for all work queued before, which costs more than the padding.
    """
    with torch.autocast(image_codes.device.type, enabled=False):
        return block_score(_zero_padded(image_codes), image_codes.mask, _zero_padded(text_codes), text_codes.mask)


def _zero_padded(codes: Codes) -> Tensor:
    fragments = fragments_of(codes)
    return fragments if codes.mask is None else fragments.masked_fill(~codes.mask[..., None], 0.0)


def score_rows(
    block_score: BlockScore,
    image_codes: Codes,
    text_codes: Codes,
    *,
    copies: tuple[int, int],
    budget: int | None = None,
) -> Tensor:
    """(n,): row i against row i, a block of rows at a time; other pairs are never formed."""
    images, texts = fragments_of(image_codes), fragments_of(text_codes)
    if len(images) != len(texts):
        raise ValueError(f"pairs need as many images as texts, got {len(images)} and {len(texts)}")
    if not len(images):
        return widen(images).new_zeros(0)
    wants_grad = torch.is_grad_enabled() and (images.requires_grad or texts.requires_grad)
    if images.is_cuda and _rows_at_once(images, texts.shape[1], copies, budget, wants_grad) >= len(images):
        return score_whole(block_score, image_codes, text_codes)
    text_side = Side.of(text_codes)
    same_order = torch.arange(len(texts)) if text_side.order is None else text_side.order.cpu()
    image_side = Side.of(image_codes, order=same_order)
    most = _rows_at_once(images, text_side.max_length, copies, budget, wants_grad)
    with torch.autocast(images.device.type, enabled=False):
        parts = [
            block_score(*image_side.take(image_side.group(group.start, group.stop)), *text_side.take(group))
            for group in text_side.groups(most)
        ]
    return text_side.restore(torch.cat(parts), dim=0)  # (n,)


def _rows_at_once(images: Tensor, words: int, copies: tuple[int, int], budget: int | None, wants_grad: bool) -> int:
    """How many pairs of images and texts of so many words fit the budget."""
    regions, channels = images.shape[1:]
    # The gathered fragments take as much memory as the products.
    each = copies[wants_grad] * regions * words + 2 * channels * (regions + words)
    return _budget(images, budget, wants_grad) // (each * _bytes(images))


def _budget(fragments: Tensor, budget: int | None, wants_grad: bool) -> int:
    if budget is None:
        return _BUDGETS["cpu" if fragments.device.type == "cpu" else "cuda", wants_grad]
    if budget < 1:
        raise ValueError(f"the memory budget must be positive, got {budget} bytes")
    return budget


def _bytes(fragments: Tensor) -> int:
    return max(4, fragments.element_size())  # products of half precision are float32


def _plan(image_side: Side, text_side: Side, elements: int) -> Blocks:
    """Blocks with at most `elements` products; texts change slowest.

    Wider in texts than in images: Gram matrices are made for every block, and those of images are the larger ones.
    """
    pairs = max(1, elements // (image_side.max_length * text_side.max_length))
    text_groups = text_side.groups(max(min(math.isqrt(_ASPECT * pairs), pairs), pairs // len(image_side)))
    blocks = []
    for text_group in text_groups:
        most = elements // (image_side.max_length * text_group.length * len(text_group))
        blocks += [(image_group, text_group) for image_group in image_side.groups(most)]
    return blocks


def _all_blocks(image_side: Side, text_side: Side, blocks: Blocks, block_score: BlockScore) -> Tensor:
    taken: tuple[Tensor, Tensor | None] | None = None
    last: Group | None = None
    columns: list[Tensor] = []
    column: list[Tensor] = []
    for image_group, text_group in blocks:
        if text_group is not last or taken is None:
            taken, last = text_side.take(text_group), text_group
        column.append(block_score(*image_side.take(image_group), *taken))
        if image_group.stop == len(image_side):
            columns.append(torch.cat(column) if len(column) > 1 else column[0])  # (n_images, texts of the group)
            column = []
    scores = torch.cat(columns, dim=1) if len(columns) > 1 else columns[0]  # (n_images, n_texts), in the sides' order
    return text_side.restore(image_side.restore(scores, dim=0), dim=1)


class _Recomputed(torch.autograd.Function):
    """`_all_blocks`, recomputing each block in the backward pass instead of keeping it."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        texts: Tensor,
        image_side: Side,
        text_side: Side,
        blocks: Blocks,
        block_score: BlockScore,
    ) -> Tensor:
        ctx.save_for_backward(images, texts)
        nothing = images.new_empty(0)  # the fragments are kept once, and freed with the saved tensors
        ctx.rest = (image_side.over(nothing), text_side.over(nothing), blocks, block_score)
        return _all_blocks(image_side, text_side, blocks, block_score)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, texts = (tensor.detach() for tensor in ctx.saved_tensors)
        image_side, text_side, blocks, block_score = ctx.rest
        image_side, text_side = image_side.over(images), text_side.over(texts)
        grad = text_side.arrange(image_side.arrange(grads[0], dim=0), dim=1)
        totals = [torch.zeros_like(widen(images)), torch.zeros_like(widen(texts))]
        for image_group, text_group in blocks:
            with torch.enable_grad(), torch.autocast(grad.device.type, enabled=False):
                image_part, image_real = image_side.take(image_group)
                text_part, text_real = text_side.take(text_group)
                parts = [image_part.detach().requires_grad_(), text_part.detach().requires_grad_()]
                scores = block_score(parts[0], image_real, parts[1], text_real)
            above = grad[image_group.start : image_group.stop, text_group.start : text_group.stop]
            for_images, for_texts = torch.autograd.grad(scores, parts, above)
            image_side.add_to(totals[0], image_group, for_images)
            text_side.add_to(totals[1], text_group, for_texts)
            del scores, image_part, text_part, parts, for_images, for_texts  # before the next block is made
        return totals[0].to(images.dtype), totals[1].to(texts.dtype), None, None, None, None
