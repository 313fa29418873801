"""Float32 blocks of any matcher's scores, each looked at once for both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quintet.mining.exclude import Exclusions
from quintet.mining.source import Rows, Source, count, numbers, part
from quintet.mining.toplists import ENTRY_BYTES, TopLists, best_of_block

SCORE_BYTES = 32  # what one score of a block needs at once: itself, masks, and keys where a block is dense
MOST_IMAGES = 4096  # of a stripe: what is lost at most when mining is killed


class Blocks(Protocol):
    """Where float32 scores come from: `Source`, or the embeddings themselves."""

    @property
    def device(self) -> torch.device: ...

    def blocks(self, images: Rows, texts: Rows, width: int) -> Iterator[tuple[slice, Tensor]]: ...


Final = Callable[[Tensor, Tensor, Tensor], Tensor]  # (image rows, text rows, scores) -> the scores that decide


@dataclass(frozen=True)
class Caps:
    """Highest score a negative may have, for each image and each text (float32); more, and it counts as a positive."""

    images: Tensor  # (n_images,)
    texts: Tensor  # (n_texts,)


@dataclass
class Direction:
    """The lists of one direction, the scores above which a candidate is left out, and how many were."""

    lists: TopLists
    caps: Tensor | None = None  # (lines,)
    above: Tensor | None = None  # (lines,) int64

    @staticmethod
    def make(lines: int, keep: int, device: torch.device, caps: Tensor | None) -> Direction:
        above = None if caps is None else torch.zeros(lines, dtype=torch.int64, device=device)
        return Direction(TopLists(lines, keep, device), None if caps is None else caps.to(device), above)

    def part(self, lines: slice) -> Direction:
        cut = [None if tensor is None else tensor[lines] for tensor in (self.caps, self.above)]
        return Direction(self.lists.part(lines), *cut)

    def count_above(self, more: Tensor | None) -> None:
        """Add counts that were made elsewhere."""
        if self.above is not None and more is not None:
            self.above += more.to(self.above.device)

    def replace(self, lines: Tensor, again: Direction) -> None:
        """Put in the lists and counts of these lines what a second look found."""
        self.lists.rows[lines], self.lists.scores[lines] = again.lists.rows, again.lists.scores
        if self.above is not None and again.above is not None:
            self.above[lines] = again.above

    def caps_of(self, lines: slice | Tensor) -> Tensor | None:
        return None if self.caps is None else self.caps[lines]

    def drop_above(self, lines: Tensor, scores: Tensor) -> Tensor | None:
        """(p,) bool: which candidates stay, the others counted; None: all stay."""
        if self.caps is None or self.above is None:
            return None
        stays = scores <= self.caps[lines]
        self.above += torch.bincount(lines[~stays], minlength=len(self.above))
        return stays


def block_shape(source: Source, memory: int, top_texts: int, images: int, texts: int) -> tuple[int, int]:
    """Images of a stripe and texts of a block, in whole tiles, within `memory` bytes."""
    height, width = source.tile
    by_lists = memory // 4 // (ENTRY_BYTES * min(2 * top_texts, texts + 1))
    rows = _tiles(min(by_lists, MOST_IMAGES, images, memory // 2 // (SCORE_BYTES * width)), height)
    columns = _tiles(min(memory // 2 // (SCORE_BYTES * rows), texts), width)
    return rows, columns


def _tiles(length: int, tile: int) -> int:
    return max(1, length // tile) * tile if length >= tile else tile


class ExactSweep:
    """Scores images against texts, block by block, and merges what is better than what the lists hold.

    `final` replaces the scores of the few candidates that come that far (by default they are what they are).
    """

    def __init__(
        self, source: Blocks, exclusions: Exclusions, shape: tuple[int, int], entries: int, final: Final | None = None
    ) -> None:
        self.source, self.exclusions, self.shape, self.entries, self.final = source, exclusions, shape, entries, final

    def run(
        self,
        images: Rows,
        texts: Rows,
        of_images: Direction | None,
        of_texts: Direction | None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`of_images` has a line for each of `images` (in order), `of_texts` one for each of `texts`."""
        for start in range(0, count(images), self.shape[0]):
            stop = min(start + self.shape[0], count(images))
            lines = None if of_images is None else of_images.part(slice(start, stop))
            self._stripe(part(images, start, stop), texts, lines, of_texts, progress)

    def _stripe(
        self,
        images: Rows,
        texts: Rows,
        of_images: Direction | None,
        of_texts: Direction | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        image_rows = numbers(images)
        for where, scores in self.source.blocks(images, texts, self.shape[1]):
            text_rows = numbers(part(texts, where.start, where.stop))
            row, column = self.exclusions.inside(image_rows, text_rows)
            scores[torch.from_numpy(row).to(scores.device), torch.from_numpy(column).to(scores.device)] = -torch.inf
            rows_on, columns_on = (torch.from_numpy(rows).to(scores.device) for rows in (image_rows, text_rows))
            if of_images is not None:
                self._select(scores, of_images, rows_on, columns_on, flipped=False)
            if of_texts is not None:
                self._select(scores.T, of_texts.part(where), rows_on, columns_on, flipped=True)
            if progress is not None:
                progress(count(images) * len(text_rows))

    def _select(self, scores: Tensor, into: Direction, images: Tensor, texts: Tensor, flipped: bool) -> None:
        """`scores` (lines, candidates); lines are texts where `flipped`."""
        lists = into.lists
        if into.caps is not None and into.above is not None:
            above = scores > into.caps[:, None]
            into.above += above.sum(dim=1)
            scores = scores.masked_fill(above, -torch.inf)
        # A candidate that ties with the last of a full list may still have the lower row.
        floor = torch.nextafter(lists.last, torch.full_like(lists.last, -torch.inf))
        passing = scores > floor[:, None]
        if int(passing.sum()) > passing.numel() // 8:
            step = max(1, self.entries // scores.shape[1])
            found = [best_of_block(scores[at : at + step], lists.keep) for at in range(0, len(scores), step)]
            line = torch.cat([part[0] + at for part, at in zip(found, range(0, len(scores), step), strict=True)])
            candidate, score = (torch.cat([part[which] for part in found]) for which in (1, 2))
        else:
            line, candidate = passing.nonzero(as_tuple=True)
            score = scores[line, candidate]
        others = images if flipped else texts
        if self.final is not None:
            pair = (others[candidate], texts[line]) if flipped else (images[line], others[candidate])
            score = self.final(*pair, score)
        lists.merge(line, others[candidate], score, self.entries)
