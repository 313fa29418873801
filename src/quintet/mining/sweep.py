"""One pass over the score matrix for both directions: `topk` of every block, the best h + slack of every anchor kept,
float32 scores of these, and a check that nothing outside of them can be among the best h.

The check. A candidate outside an anchor's list has a block score of at most `least`, the lowest in the list. So its
float32 score is at most `at_most(least)`, which adds the rounding error. When the h-th float32 score of the list is
above that, the best h are proven, ties included. The few anchors that fail are scored again, in float32, against
everything.

A finished list has one order: higher score first, then lower row. The candidates have none: which of several equal
scores stay at the edge of a list is left to `torch.topk`, and the check looks at the edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quintet import distributed
from quintet.errors import QuintetError
from quintet.mining.block_scores import SLACK, Side, TileScores
from quintet.mining.exclude import Exclusions

ENTRY_BYTES = 32  # what merging one entry needs at once: scores, rows, positions and copies
ROOM = 32  # candidates of a block that may be above the cap before its line is masked and selected from again
_NO_ROW = 2**31 - 1
SCORE_BYTES = 16  # what one score of a block needs at once: itself, a mask, and copies for topk
MOST_IMAGES = 4096  # of a stripe: what is lost at most when mining is killed


class TopLists:
    """(lines, keep) rows and scores of the best candidates so far, in no order; -inf where there are fewer."""

    def __init__(self, lines: int, keep: int, device: torch.device | str = "cpu") -> None:
        self.rows = torch.full((lines, keep), -1, dtype=torch.int32, device=device)
        self.scores = torch.full((lines, keep), -torch.inf, device=device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keep(self) -> int:
        return self.rows.shape[1]

    def add_block(self, lines: slice, scores: Tensor, caps: Tensor, first: int, unit: float = 1.0) -> Tensor:
        """Take in a block (lines, b) whose first column is row `first`; its scores count in multiples of `unit`.

        Scores above `caps` (lines,) are left out. Returns how many these were, (lines,). Only selected scores are
        compared with the caps: the best `keep + ROOM` hold the best `keep` that remain when up to `ROOM` are left out.
        """
        wanted = min(self.keep + ROOM, scores.shape[1])
        best, column = scores.topk(wanted, dim=1, sorted=False)  # (lines, wanted)
        over = best > caps[:, None]
        best.masked_fill_(over, -torch.inf)
        above = over.sum(dim=1)
        crowded = (above > ROOM).nonzero().squeeze(1)
        if len(crowded):
            part = scores[crowded]
            over = part > caps[crowded, None]
            above[crowded] = over.sum(dim=1)
            best[crowded], column[crowded] = part.masked_fill_(over, -torch.inf).topk(wanted, dim=1, sorted=False)
        self._merge(lines, (column + first).int(), best.float() * unit)
        return above

    def add_entries(self, lines: Tensor, rows: Tensor, scores: Tensor) -> None:
        """Take in single candidates (p,), at most `keep` of each line, with `lines` ascending."""
        counts = torch.bincount(lines, minlength=len(self))  # (n,)
        within = torch.arange(len(lines), device=lines.device) - (counts.cumsum(0) - counts)[lines]
        step = max(1, 2**24 // self.keep)
        for start in range(0, len(self), step):
            part = slice(start, min(start + step, len(self)))
            low, high = (int(counts[:edge].sum()) for edge in (part.start, part.stop))
            at = lines[low:high] - start, within[low:high]
            width = int(counts[part].max())
            new_rows = torch.full((part.stop - start, width), -1, dtype=torch.int32, device=rows.device)
            new_scores = torch.full(new_rows.shape, -torch.inf, device=rows.device)
            new_rows[at], new_scores[at] = rows[low:high].int(), scores[low:high]
            self._merge(part, new_rows, new_scores)

    def _merge(self, lines: slice, rows: Tensor, scores: Tensor) -> None:
        scores = torch.cat([self.scores[lines], scores], dim=1)  # (n, keep + more)
        rows = torch.cat([self.rows[lines], rows], dim=1)
        self.scores[lines], chosen = scores.topk(self.keep, dim=1, sorted=False)
        self.rows[lines] = rows.gather(1, chosen)

    def gather(self, memory: int) -> None:
        """In place: for each line the best of what all processes have found."""
        processes = distributed.world_size()
        if processes == 1:
            return
        step = max(1, memory // (ENTRY_BYTES * self.keep * processes))
        for start in range(0, len(self), step):
            part = slice(start, min(start + step, len(self)))
            total = (part.stop - start) * processes
            rows, scores = (
                distributed.gather_rows(own[part].contiguous(), total)  # (processes * n, keep)
                .unflatten(0, (processes, -1))
                .transpose(0, 1)
                .flatten(1)  # (n, processes * keep)
                for own in (self.rows, self.scores)
            )
            self.scores[part], chosen = scores.topk(self.keep, dim=1, sorted=False)
            self.rows[part] = rows.gather(1, chosen)


def ordered(rows: Tensor, scores: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(n, length) int32 rows and scores, best first, from candidates (n, k); -1 and -inf where there are fewer.

    >>> rows, scores = ordered(torch.tensor([[4, 2, 7]]), torch.tensor([[0.5, 0.5, -torch.inf]]), 4)
    >>> rows.tolist(), scores.tolist()
    ([[2, 4, -1, -1]], [[0.5, 0.5, -inf, -inf]])
    """
    scores = scores + 0.0  # -0.0 and 0.0 are the same score
    by_row, order = rows.masked_fill(scores == -torch.inf, _NO_ROW).sort(dim=1)
    scores, by_score = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    rows, scores = by_row.gather(1, by_score)[:, :length].int(), scores[:, :length]
    missing = length - rows.shape[1]
    rows = torch.nn.functional.pad(rows.masked_fill(scores == -torch.inf, -1), (0, missing), value=-1)
    return rows, torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)


def caps_of(anchors: np.ndarray, positives: np.ndarray, size: int, margin: float | None) -> Tensor:
    """(size,): the best positive score of each anchor plus the margin, in float32; inf where one of them is missing."""
    best = np.full(size, -np.inf, np.float32)
    if margin is not None:
        np.maximum.at(best, anchors, positives)
        best += np.float32(margin)
    return torch.from_numpy(np.where(best == -np.inf, np.float32(np.inf), best))


@dataclass
class Direction:
    """Consecutive anchors of one side, their candidates so far, and how many scored above their cap."""

    side: Side
    first: int  # row of the first anchor
    length: int  # h: entries of a finished list
    lists: TopLists  # h + slack candidates
    caps: Tensor  # (lines,) the highest float32 score a negative may have
    above: Tensor  # (lines,) int32

    def anchors(self, lines: slice) -> slice:
        return slice(self.first + lines.start, self.first + lines.stop)


class Sweep:
    """Stripe after stripe of images against all texts; `of_texts` fills up as they go by.

    `redone` counts the anchors, of images and of texts, that failed the check and were scored again.
    """

    def __init__(
        self,
        scores: TileScores,
        exclusions: Exclusions,
        lengths: tuple[int, int],
        caps: tuple[Tensor, Tensor],
        memory: int,
        progress: Callable[[int], None],
    ) -> None:
        self.scores, self.exclusions, self.lengths, self.progress = scores, exclusions, lengths, progress
        self.caps = caps[0].to(scores.device), caps[1].to(scores.device)
        self.memory = memory
        self.height, self.width = block_shape(scores, memory, lengths[0])
        self.redone = [0, 0]
        self.of_texts = self._direction("texts", slice(0, scores.sizes[1]))

    def _direction(self, side: Side, rows: slice) -> Direction:
        number = int(side == "texts")
        keep = min(self.lengths[number] + SLACK[self.scores.precision], self.scores.sizes[1 - number])
        lists = TopLists(rows.stop - rows.start, keep, self.scores.device)
        above = torch.zeros(len(lists), dtype=torch.int32, device=self.scores.device)
        return Direction(side, rows.start, self.lengths[number], lists, self.caps[number][rows], above)

    def stripe(self, images: slice) -> tuple[Tensor, Tensor, Tensor]:
        """The finished lists of these images: rows and scores (n, h), and how many texts were above the caps."""
        of_images = self._direction("images", images)
        for texts in _slices(self.scores.sizes[1], self.width):
            block = self.scores.block(images, texts)  # (a, b)
            self._exclude(block, images, texts)
            self._add(of_images, slice(0, len(block)), block, texts.start)
            self._add(self.of_texts, texts, block.T, images.start)
            self.progress(block.numel())
        rows, scores = self.finish(of_images, slice(0, images.stop - images.start))
        return rows, scores, of_images.above

    def _exclude(self, block: Tensor, images: slice | Tensor, texts: slice | Tensor) -> None:
        """In place: -inf for the pairs of the block (images, texts) that may be in no list."""
        rows = (
            np.arange(part.start, part.stop) if isinstance(part, slice) else part.numpy() for part in (images, texts)
        )
        image, text = (torch.from_numpy(at).to(block.device) for at in self.exclusions.inside(*rows))
        block[image, text] = -torch.inf

    def _add(self, into: Direction, lines: slice, block: Tensor, first: int) -> None:
        """`block` (lines, others), its first column row `first` of the other side."""
        caps = self.scores.surely_above(into.caps[lines])
        into.above[lines] += into.lists.add_block(lines, block, caps, first, self.scores.unit)

    def finish(self, direction: Direction, lines: slice) -> tuple[Tensor, Tensor]:
        """Rows and scores (n, h) of the finished lists of these lines."""
        step = max(1, self.memory // (4 * ENTRY_BYTES * direction.lists.keep))
        parts = [
            self._finish(direction, slice(start, min(start + step, lines.stop)))
            for start in range(lines.start, lines.stop, step)
        ]
        if not parts:
            return torch.empty(0, direction.length, dtype=torch.int32), torch.empty(0, direction.length)
        rows, scores = zip(*parts, strict=True)
        return torch.cat(rows), torch.cat(scores)

    def _finish(self, direction: Direction, lines: slice) -> tuple[Tensor, Tensor]:
        rows, rough = direction.lists.rows[lines], direction.lists.scores[lines]  # (n, keep)
        least = rough.amin(dim=1)  # (n,) -inf: every candidate is in the list
        exact = self.scores.rescore(direction.side, direction.anchors(lines), rows.clamp(min=0).long(), rough)
        exact = exact.masked_fill(rough == -torch.inf, -torch.inf)
        over = exact > direction.caps[lines, None]
        direction.above[lines] += over.sum(dim=1)
        exact = exact.masked_fill(over, -torch.inf)
        everything = self.scores.sizes[direction.side == "images"]
        rows, exact = ordered(rows, exact, direction.length)
        weak = (least > -torch.inf) & ~(exact[:, -1] > self.scores.at_most(least))
        if direction.lists.keep < everything and bool(weak.any()):
            again = weak.nonzero().squeeze(1)
            rows[again], exact[again] = self._redo(direction, again + lines.start)
        return rows, exact

    def _redo(self, direction: Direction, lines: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and scores of these lines from float32 scores of every candidate."""
        side, number = direction.side, int(direction.side == "texts")
        self.redone[number] += len(lines)
        parts = []
        for group in self.scores.groups(side, (lines + direction.first).cpu()):
            own = (group - direction.first).to(lines.device)
            rows = torch.empty(len(group), 0, dtype=torch.int32, device=lines.device)
            best = torch.empty(len(group), 0, device=lines.device)
            direction.above[own] = 0
            for others in self._others(1 - number):
                block = self.scores.exact(side, group, others) + 0.0  # (n, b), with -0.0 as 0.0
                if side == "images":
                    self._exclude(block, group, others)
                else:
                    self._exclude(block.T, others, group)
                over = block > direction.caps[own, None]
                direction.above[own] += over.sum(dim=1).int()
                block.masked_fill_(over, -torch.inf)
                # Rows ascend from block to block, and a stable sort keeps the lower of equal ones in front.
                number_of = torch.arange(others.start, others.stop, dtype=torch.int32, device=lines.device)
                rows = torch.cat([rows, number_of.expand(len(group), -1)], dim=1)
                best, order = torch.cat([best, block], dim=1).sort(dim=1, descending=True, stable=True)
                best, rows = best[:, : direction.length], rows.gather(1, order[:, : direction.length])
            parts.append(ordered(rows, best, direction.length))
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _others(self, number: int) -> Iterator[slice]:
        """Blocks of the side that is not the anchors', small enough to be sorted whole beside a tile of anchors."""
        tile = self.scores.tile
        size = self.memory // (4 * SCORE_BYTES * tile[1 - number]) // tile[number] * tile[number]
        return _slices(self.scores.sizes[number], max(size, tile[number]))


def block_shape(scores: TileScores, memory: int, top_texts: int) -> tuple[int, int]:
    """Images of a stripe and texts of a block, in whole tiles, within `memory` bytes."""
    (height, width), (images, texts) = scores.tile, scores.sizes
    if memory < least_memory(scores):
        raise QuintetError(
            f"mining on {scores.device.type} needs at least {least_memory(scores)} bytes of working memory, "
            f"{memory} were allowed"
        )
    by_lists = memory // 4 // (ENTRY_BYTES * min(2 * top_texts, texts + 1))
    rows = _tiles(min(by_lists, MOST_IMAGES, images, memory // 2 // (SCORE_BYTES * width)), height)
    return rows, _tiles(min(memory // 2 // (SCORE_BYTES * rows), texts), width)


def least_memory(scores: TileScores) -> int:
    return 2 * SCORE_BYTES * scores.tile[0] * scores.tile[1]


def _tiles(length: int, tile: int) -> int:
    return max(1, length // tile) * tile


def _slices(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))
