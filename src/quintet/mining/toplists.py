"""The best candidates of every line while blocks of scores go by, and the order of a finished list.

A finished list has one order: higher score first, then lower row. The candidates have none: which of several equal
scores stay at the edge of a list is left to `torch.topk`, and the sweep checks the edge afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quintet import distributed

ENTRY_BYTES = 32  # what merging one entry needs at once: scores, rows, positions and copies
ROOM = 32  # candidates of a block that may be above the cap before its line is masked and selected from again
_NO_ROW = 2**31 - 1


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
