"""A softmax classifier whose classes are shared out among processes: exact, and no process holds all of its weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet import processes

ROWS = 1024  # of the weight drawn at a time


class ShardedClassifier(nn.Module):
    """W_share of Dual-Path Eq. 5 and 7; with P processes each holds the weights of its 1/P of the classes.

    All processes give the features of the whole batch. Each computes the logits of its classes; what is exchanged for
    an item are four numbers: the largest logit, the sum of exponentials, the logit of the right class and that of its
    best rival. The first weights are drawn block by block, so they are the same however many processes share them.
    """

    def __init__(self, dim: int, classes: int, bias: bool = False) -> None:
        super().__init__()
        if classes < processes.count():
            raise ValueError(f"{classes} classes cannot be shared out among {processes.count()} processes")
        self.classes = classes
        self.mine = processes.share(classes)
        self.weight = nn.Parameter(_first_weights(dim, classes, self.mine))  # (classes of this process, dim)
        self.bias = nn.Parameter(torch.zeros(len(self.weight))) if bias else None
        for parameter in self.parameters():
            processes.share_out_rows(parameter, classes)

    def forward(self, features: Tensor, targets: Tensor, others: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(n, dim) features and (n,) classes -> (n,) costs (Eq. 6, 8), and (n,) bool: taken for another class, or tied.

        `others`: sampled softmax. Only these classes (none of them a target) and the targets are compared, and each of
        the others stands for as many as were left out for it: the sum of exponentials is right on average.
        """
        if others is None:
            columns = torch.arange(self.mine.start, self.mine.stop, device=targets.device)
            logits = weighted = F.linear(features, self.weight, self.bias)  # (n, classes of this process)
        else:
            columns, shares = self._sampled(targets, others)
            rows = columns - self.mine.start
            logits = F.linear(features, self.weight[rows], None if self.bias is None else self.bias[rows])
            if not len(columns):  # none of the sampled classes is here; the exchange needs a column all the same
                logits, shares = F.pad(logits, (0, 1), value=-torch.inf), shares.new_zeros(1)  # (n, 1)
            weighted = logits + shares.log1p()
        here = (targets >= self.mine.start) & (targets < self.mine.stop)
        place = torch.searchsorted(columns, targets).clamp(max=logits.shape[1] - 1)[:, None]  # (n, 1)
        right = logits.gather(1, place)  # (n, 1)
        rivals = logits.detach().scatter(1, place, right.detach().masked_fill(here[:, None], -torch.inf))
        top, best = processes.largest(torch.stack([weighted.amax(dim=1), rivals.amax(dim=1)]))  # (n,) each
        sums = (weighted - top[:, None]).exp().sum(dim=1)  # (n,)
        sums, right = processes.add_up(torch.stack([sums, right[:, 0].masked_fill(~here, 0)]))
        return top + sums.log() - right, right.detach() <= best

    def _sampled(self, targets: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """This process's part of the classes that are compared, in order, and how many further ones each stands for."""
        needed = targets.unique()
        further = (self.classes - len(needed)) / max(len(others), 1) - 1
        columns, order = torch.cat([needed, others]).sort()
        shares = (order >= len(needed)) * further
        mine = (columns >= self.mine.start) & (columns < self.mine.stop)
        return columns[mine], shares[mine]


def _first_weights(dim: int, classes: int, mine: slice) -> Tensor:
    """He et al.'s start, the rows of one process."""
    parts = []
    for start in range(0, classes, ROWS):
        block = torch.randn(min(ROWS, classes - start), dim) * (2 / dim) ** 0.5
        parts.append(block[max(mine.start - start, 0) : max(mine.stop - start, 0)].clone())
    return torch.cat(parts)
