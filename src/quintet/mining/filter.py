"""From a block of scores to the few of them that reach their line's floor."""

from __future__ import annotations

import torch
from torch import Tensor

Found = tuple[Tensor, Tensor, Tensor]  # place of the image in the stripe, row of the text, score: (p,) each


class Collector:
    """Gathers from the blocks of a stripe every score that reaches its row's floor or its column's.

    It holds `capacity` candidates. A stripe with more of them (a matcher that scores half the corpus alike) is refused
    as a whole: `take` returns None.
    """

    def __init__(self, capacity: int, device: torch.device, kernels: bool) -> None:
        self.capacity, self.device, self.kernels = capacity, device, kernels
        self._parts: list[Found] = []
        self._size = 0
        if kernels:
            self._rows, self._columns = torch.empty(2, capacity, dtype=torch.int32, device=device)
            self._values = torch.empty(capacity, device=device)
            self._counter = torch.zeros(1, dtype=torch.int64, device=device)

    def start(self) -> None:
        """Forget everything, for a new stripe."""
        self._parts, self._size = [], 0
        if self.kernels:
            self._counter.zero_()

    def add(self, scores: Tensor, row_floor: Tensor, column_floor: Tensor, first_column: int) -> None:
        """`scores` (a, b), with floors (a,) and (b,) of its type; its first column is text `first_column`."""
        if self.kernels:
            from quintet.mining.kernels import collect

            collect(
                scores, row_floor, column_floor, first_column, self._rows, self._columns, self._values, self._counter
            )
        elif self._size <= self.capacity:
            reached = scores >= row_floor[:, None]
            reached |= scores >= column_floor
            found = int(reached.count_nonzero())
            self._size += found
            if found and self._size <= self.capacity:
                row, column = reached.nonzero(as_tuple=True)
                self._parts.append((row, column + first_column, scores[row, column].float()))

    def take(self) -> Found | None:
        """What was gathered since `start`; None where it was too much."""
        if self.kernels:
            self._size = int(self._counter)
        if self._size > self.capacity:
            return None
        if self.kernels:
            kept = slice(0, self._size)
            return self._rows[kept].long(), self._columns[kept].long(), self._values[kept]
        if not self._parts:
            nothing = torch.empty(0, dtype=torch.int64, device=self.device)
            return nothing, nothing, nothing.float()
        row, column, value = (torch.cat(parts) for parts in zip(*self._parts, strict=True))
        return row, column, value
