"""The triplet loss of a batch: all negatives of an anchor (AOQ Eq. 1) or the hardest (Eq. 2)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from quintet.losses.step import Progress, Step, Term

NegativeChoice = Literal["all", "mean", "softmax", "hardest"]
Warmup = Literal["mean", "softmax"]
SHARPNESS = 4  # margins over the temperature of "softmax": a negative that keeps the margin still counts e^-4


def triplet(
    scores: Tensor, negative: Tensor, *, margin: float = 0.2, choose: NegativeChoice = "hardest"
) -> dict[str, Tensor]:
    """The two hinge costs of each pair (i, t) on the diagonal of `scores`.

    `choose` says which negatives of an anchor count:

    - "all": the sum over all of them (Eq. 1, the standard triplet loss);
    - "mean": the mean over those that violate the margin, a gentler loss for a warm-up;
    - "softmax": a smooth maximum, T log(1 + sum of exp((s - positive) / T)) with T a quarter of the margin. All
      negatives count, harder ones more. It is InfoNCE times T; for small T it approaches "hardest" without a margin;
    - "hardest": the one with the highest score (Eq. 2, the online triplet loss).

    Returns `text` (n,): wrong texts for image i, and `image` (n,): wrong images for text t.
    An anchor without any negative costs nothing.

    >>> scores = torch.tensor([[0.5, 0.4], [0.1, 0.5]])
    >>> costs = triplet(scores, ~torch.eye(2, dtype=torch.bool))
    >>> costs["text"].tolist() == costs["image"].flip(0).tolist(), round(costs["text"].sum().item(), 6)
    (True, 0.1)
    """
    if choose == "softmax":
        from quintet.losses.contrastive import contrastive  # few recipes ask for it

        temperature = margin / SHARPNESS
        costs = contrastive(scores, negative, scale=1 / temperature)
        return {name: temperature * values for name, values in costs.items()}
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

    `negatives`: "hardest" (Eq. 2) or "all" (Eq. 1). For the first `warmup_epochs` epochs the `warmup` replaces the
    hardest: "mean", of all violations, or "softmax", a smooth maximum (see `triplet`). Without it small corpora may
    collapse: all scores become equal and the loss stays at 2 x batch x margin.

    `same_group`: "ignored" (default) never takes another text of the same group for a negative; "negative" masks
    the diagonal only, as the released code of SCAN, BFAN, VSRN and AOQ does.
    """

    def __init__(
        self,
        margin: float = 0.2,
        negatives: Literal["hardest", "all"] = "hardest",
        warmup_epochs: float = 0.0,
        warmup: Warmup = "mean",
        same_group: Literal["ignored", "negative"] = "ignored",
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if negatives not in ("hardest", "all"):
            raise ValueError(f"negatives must be hardest or all, got {negatives!r}")
        if same_group not in ("ignored", "negative"):
            raise ValueError(f"same_group must be ignored or negative, got {same_group!r}")
        if warmup_epochs and negatives == "all":
            raise ValueError("warmup_epochs is for negatives: hardest; leave it out with negatives: all")
        check_warmup(warmup, margin)
        self.margin = margin
        self.warmup = warmup
        self.negatives: NegativeChoice = negatives
        self.warmup_epochs = warmup_epochs
        self.same_group = same_group
        self.weight = weight

    def phase(self, progress: Progress) -> NegativeChoice:
        """Which negatives of an anchor count."""
        return self.warmup if progress.epoch < self.warmup_epochs else self.negatives

    def forward(self, step: Step) -> dict[str, Term]:
        negative = ~(step.same_group if self.same_group == "ignored" else step.diagonal)
        choose = step.phase_of(self)
        costs = triplet(step.scores, negative, margin=self.margin, choose=choose)
        collapse_value = self.margin if choose in ("mean", "hardest") else None
        return {name: Term(values[step.mine], self.weight, collapse_value) for name, values in costs.items()}


def check_warmup(warmup: Warmup, margin: float) -> None:
    """Raise for an unknown warm-up, and for a smooth maximum without a positive temperature."""
    if warmup not in get_args(Warmup):
        raise ValueError(f"warmup must be one of {', '.join(get_args(Warmup))}, got {warmup!r}")
    if warmup == "softmax" and margin <= 0:
        raise ValueError(f"warmup: softmax takes its temperature from the margin, which must be positive, got {margin}")
