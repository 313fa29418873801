"""The contrastive loss of a batch (InfoNCE): classify the text of each image among all texts, and the reverse.

Not from one of the five papers. It trains `quintet-small`, the heads over frozen towers (`models/heads.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from quintet.losses.step import Progress, Step, Term


def contrastive(scores: Tensor, negative: Tensor, *, scale: Tensor | float) -> dict[str, Tensor]:
    """Two cross-entropies of each pair (i, t) on the diagonal of `scores`, over itself and its negatives.

    Returns `text` (n,): which text belongs to image i, and `image` (n,): which image to text t.

    >>> costs = contrastive(torch.eye(2), ~torch.eye(2, dtype=torch.bool), scale=1.0)
    >>> round(costs["text"][0].item(), 4)  # log(1 + e^-1)
    0.3133
    """
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    logits = (scores * scale).masked_fill(~(negative | own), -torch.inf)
    positive = logits.diagonal()
    return {"text": logits.logsumexp(dim=1) - positive, "image": logits.logsumexp(dim=0) - positive}


class ContrastiveObjective(nn.Module):
    """InfoNCE over the (global) batch. Other texts of the anchor's own group are left out.

    `temperature` is the initial value of the learned temperature, which never falls below 0.01.
    """

    def __init__(self, temperature: float = 0.05, weight: float = 1.0) -> None:
        super().__init__()
        if not temperature >= 0.01:
            raise ValueError(f"temperature must be at least 0.01, got {temperature}")
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.weight = weight

    def phase(self, progress: Progress) -> None:
        """The computation never changes."""

    def forward(self, step: Step) -> dict[str, Term]:
        scale = self.log_scale.clamp(max=math.log(100)).exp()
        costs = contrastive(step.scores, ~step.same_group, scale=scale)
        collapse_value = math.log(max(2, step.total))
        return {name: Term(values[step.mine], self.weight, collapse_value) for name, values in costs.items()}
