"""One side of a block of pairs: items in order of length, cut into groups of about one length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quintet.codes import Codes

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
    """The fragments of n items, and the order in which they are taken."""

    fragments: Tensor  # (n, L, d)
    mask: Tensor | None  # (n, L)
    lengths: Tensor  # (n,) int64 on the CPU: the place of the last real fragment, in the order taken
    whole: Tensor  # (n,) bool on the CPU: no padding before that place
    order: Tensor | None  # (n,) int64 on the device of the fragments; None: as they stand

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
    def longest(self) -> int:
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
    """(n,) the place of the last real fragment of every item, counted from one; (n,) whether all before it are real."""
    n, longest = fragments_of(codes).shape[:2]
    lengths, whole = torch.full((n,), longest, dtype=torch.int64), torch.ones(n, dtype=torch.bool)
    if codes.mask is not None and n and longest:
        places = torch.arange(1, longest + 1, device=codes.mask.device)
        last = (codes.mask * places).amax(dim=1)  # (n,)
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
    for place in range(start + 1, min(start + most, len(lengths))):
        real += lengths[place]
        if lengths[place] * (place + 1 - start) > padding * real:
            return place
    return min(start + most, len(lengths))
