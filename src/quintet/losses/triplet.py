"""Triplet losses of a batch: all negatives (AOQ Eq. 1) or the hardest one in the batch (Eq. 2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from quintet.losses.step import Progress, Step, Term

NegativeChoice = Literal["all", "mean", "hardest"]


def triplet(
    scores: Tensor, negative: Tensor, *, margin: float = 0.2, choose: NegativeChoice = "hardest"
) -> dict[str, Tensor]:
    """The two hinge costs of each pair (i, t) on the diagonal of `scores`.

    `choose` says what stands for the negatives of an anchor:

    - "all": the sum over all of them (Eq. 1, the standard triplet loss);
    - "mean": the mean over those that violate the margin, a gentle start before "hardest";
    - "hardest": the one with the highest score (Eq. 2, the online triplet loss).

    Returns `text` (n,): wrong sentences for picture i, and `image` (n,): wrong pictures for sentence t.
    An anchor without any negative costs nothing.

    >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.5]])
    >>> costs = triplet(scores, ~torch.eye(2, dtype=torch.bool))
    >>> costs["text"].tolist() == costs["image"].flip(0).tolist(), round(costs["text"].sum().item(), 6)
    (True, 0.1)
    """
    positive = scores.diagonal()
    return {
        "text": _hinge(scores, negative, positive, margin, choose),
        "image": _hinge(scores.T, negative.T, positive, margin, choose),
    }


def _hinge(scores: Tensor, negative: Tensor, positive: Tensor, margin: float, choose: NegativeChoice) -> Tensor:
    """(n,): the cost of each row's anchor."""
    if choose == "hardest":
        hardest = scores.masked_fill(~negative, -torch.inf).amax(dim=1)  # (n,)
        return (margin + hardest - positive).clamp(min=0)
    costs = (margin + scores - positive[:, None]).clamp(min=0) * negative  # (n, n)
    if choose == "all":
        return costs.sum(dim=1)
    return costs.sum(dim=1) / (costs > 0).sum(dim=1).clamp(min=1)


class TripletObjective(nn.Module):
    """The triplet loss over the (global) batch.

    `negatives`: "hardest" (Eq. 2) or "all" (Eq. 1). During the first `warmup_epochs` epochs the mean of all violations
    stands in for the hardest: hardest negatives from the first step make small corpora collapse (loss stuck at
    2 x batch x margin, all scores equal).

    `same_group`: "ignored" (default) never takes another sentence of the same group for a negative; "negative" masks
    the diagonal only, as the released code of SCAN, BFAN, VSRN and AOQ does.
    """

    def __init__(
        self,
        margin: float = 0.2,
        negatives: Literal["hardest", "all"] = "hardest",
        warmup_epochs: float = 0.0,
        same_group: Literal["ignored", "negative"] = "ignored",
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if negatives not in ("hardest", "all"):
            raise ValueError(f"negatives must be hardest or all, got {negatives!r}")
        if same_group not in ("ignored", "negative"):
            raise ValueError(f"same_group must be ignored or negative, got {same_group!r}")
        if warmup_epochs and negatives == "all":
            raise ValueError(
                "warmup_epochs leads up to the hardest negatives; with all of them there is nothing to warm up"
            )
        self.margin = margin
        self.negatives: NegativeChoice = negatives
        self.warmup_epochs = warmup_epochs
        self.same_group = same_group
        self.weight = weight

    def phase(self, progress: Progress) -> NegativeChoice:
        """What stands for the negatives of an anchor by now."""
        return "mean" if progress.epoch < self.warmup_epochs else self.negatives

    def forward(self, step: Step) -> dict[str, Term]:
        negative = ~(step.same_group if self.same_group == "ignored" else step.diagonal)
        costs = triplet(step.scores, negative, margin=self.margin, choose=self.phase(step.progress))
        flat = None if self.negatives == "all" else self.margin
        return {name: Term(values[step.mine], self.weight, flat) for name, values in costs.items()}
