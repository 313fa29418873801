"""The best h of every line, kept while candidates stream by.

One total order decides everything: higher score first, then lower row. It does not depend on the order in which
candidates arrive, on block sizes or on how many processes find them.
"""

from __future__ import annotations

import torch
from torch import Tensor

ENTRY_BYTES = 64  # what ordering one candidate needs at once: keys, permutations and copies
_ROW_BITS, _ROW_MASK = 31, 2**31 - 1


def rising(scores: Tensor) -> Tensor:
    """Float32 as int64 in the same order; -0.0 counts as 0.0."""
    bits = (scores + 0.0).view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()


def line_key(lines: Tensor, scores: Tensor) -> Tensor:
    """int64 that ascends with the line, and within a line with falling scores."""
    return (lines.long() << 32) + (0x7FFFFFFF - rising(scores))


def best_first(lines: Tensor, others: Tensor, scores: Tensor) -> Tensor:
    """(p,): the order by line, then falling score, then rising row."""
    by_row = torch.argsort(others, stable=True)
    return by_row[torch.argsort(line_key(lines[by_row], scores[by_row]), stable=True)]


def best_of_block(scores: Tensor, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `keep` of each line of a block (a, b), as line, place in it and score; -inf is never among them."""
    keep = min(keep, scores.shape[1])
    places = torch.arange(scores.shape[1], device=scores.device)
    keys = (rising(scores) << _ROW_BITS) + (_ROW_MASK - places)  # unique, so topk has no tie to decide
    chosen = _ROW_MASK - (keys.topk(keep, dim=1).values & _ROW_MASK)  # (a, keep)
    values = scores.gather(1, chosen)
    line, column = torch.isfinite(values).nonzero(as_tuple=True)
    return line, chosen[line, column], values[line, column]


class TopLists:
    """(lines, keep) rows and scores, best first; -1 and -inf where there are fewer."""

    def __init__(self, lines: int, keep: int, device: torch.device | str = "cpu") -> None:
        self.rows = torch.full((lines, keep), -1, dtype=torch.int32, device=device)
        self.scores = torch.full((lines, keep), -torch.inf, device=device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keep(self) -> int:
        return self.rows.shape[1]

    @property
    def last(self) -> Tensor:
        """(lines,): the score a candidate has to beat; -inf while the list is not full."""
        return self.scores[:, -1]

    def part(self, lines: slice) -> TopLists:
        """Some of the lines; what is merged into the part is in the whole."""
        view = TopLists.__new__(TopLists)
        view.rows, view.scores = self.rows[lines], self.scores[lines]
        return view

    def merge(self, lines: Tensor, rows: Tensor, scores: Tensor, entries: int = 2**62) -> None:
        """Take in candidates (line, row, score), none of which is in the lists already.

        At most about `entries` candidates are ordered at a time.
        """
        if not len(lines):
            return
        if len(lines) + len(self) * self.keep > entries and len(self) > 1:
            self._merge_in_parts(lines, rows, scores, entries)
            return
        touched = torch.bincount(lines, minlength=len(self)) > 0
        active = touched.nonzero().squeeze(1)
        place = touched.cumsum(0) - 1  # line -> place among the active
        held_rows, held_scores = self.rows[active], self.scores[active]
        held = held_rows >= 0
        line = torch.cat([held.nonzero()[:, 0], place[lines]])
        row = torch.cat([held_rows[held], rows.to(held_rows.dtype)])
        score = torch.cat([held_scores[held], scores.float()])
        order = best_first(line, row, score)
        line, row, score = line[order], row[order], score[order]
        counts = torch.bincount(line, minlength=len(active))
        within = torch.arange(len(line), device=line.device) - (counts.cumsum(0) - counts)[line]
        kept = within < self.keep
        new_rows, new_scores = torch.full_like(held_rows, -1), torch.full_like(held_scores, -torch.inf)
        new_rows[line[kept], within[kept]] = row[kept]
        new_scores[line[kept], within[kept]] = score[kept]
        self.rows[active], self.scores[active] = new_rows, new_scores

    def _merge_in_parts(self, lines: Tensor, rows: Tensor, scores: Tensor, entries: int) -> None:
        order = torch.argsort(lines, stable=True)
        lines, rows, scores = lines[order], rows[order], scores[order]
        size = max(1, min(entries // (2 * self.keep), len(self) // 2))
        starts = range(0, len(self), size)
        edges = torch.tensor([*starts, len(self)], device=lines.device, dtype=lines.dtype)
        cuts = torch.searchsorted(lines, edges).tolist()
        for start, low, high in zip(starts, cuts, cuts[1:], strict=False):
            part = self.part(slice(start, min(start + size, len(self))))
            part.merge(lines[low:high] - start, rows[low:high], scores[low:high])
