"""The lists of several processes as one."""

from __future__ import annotations

import numpy as np
import torch

from quintet import distributed
from quintet.mining.exact import Direction
from quintet.mining.toplists import ENTRY_BYTES, TopLists


def gather_rows(arrays: list[np.ndarray], device: torch.device, memory: int) -> None:
    """In place: every row is somebody's, and zero everywhere else."""
    if distributed.world_size() == 1:
        return
    for array in arrays:
        step = max(1, memory // 4 // max(1, array[:1].nbytes))
        for start in range(0, len(array), step):
            part = torch.from_numpy(array[start : start + step])
            part.copy_(distributed.all_reduce_sum(part.to(device)))


def gather_lists(direction: Direction, memory: int) -> None:
    """In place: for each line the best of what all processes have found."""
    everyone = distributed.world_size()
    if everyone == 1:
        return
    lists = direction.lists
    step = max(1, memory // 2 // (ENTRY_BYTES * lists.keep * everyone))
    for start in range(0, len(lists), step):
        part = lists.part(slice(start, min(start + step, len(lists))))
        total = len(part) * everyone
        rows = distributed.gather_rows(part.rows.contiguous(), total)  # (processes x lines, keep)
        scores = distributed.gather_rows(part.scores.contiguous(), total)
        real = rows >= 0
        line = torch.arange(total, device=rows.device)[:, None].expand_as(rows)[real] % len(part)
        merged = TopLists(len(part), lists.keep, rows.device)
        merged.merge(line, rows[real], scores[real])
        part.rows.copy_(merged.rows)
        part.scores.copy_(merged.scores)
    if direction.above is not None:
        direction.above.copy_(distributed.all_reduce_sum(direction.above))
