"""The losses of CLIP (contrastive) and SigLIP (sigmoid), over a batch and, if asked, mined hard negatives.

They are not from the five papers. CLIP: Radford et al., Learning Transferable Visual Models From Natural Language
Supervision, ICML 2021. SigLIP: Zhai, Mustafa, Kolesnikov, Beyer, Sigmoid Loss for Language Image Pre-Training, ICCV
2023.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import RecipeError
from quintet.losses.step import Progress, Step, Term
from quintet.protocols import HasLogitScale

LARGEST_SCALE = 100.0  # as CLIP clips it


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


def sigmoid(scores: Tensor, negative: Tensor, *, scale: Tensor | float, bias: Tensor | float) -> Tensor:
    """(n,): for each image i, -log sigmoid of its pair's logit and of the negated logits of its negative texts.

    Logits are `scores * scale + bias`. The mean over images is SigLIP's loss.

    >>> costs = sigmoid(torch.eye(2), ~torch.eye(2, dtype=torch.bool), scale=1.0, bias=0.0)
    >>> round(costs[0].item(), 4)  # log(1 + e^-1) + log(1 + e^0)
    1.0064
    """
    logits = scores * scale + bias
    return F.softplus(-logits.diagonal()) + (F.softplus(logits) * negative).sum(dim=1)


class ContrastiveObjective(nn.Module):
    """InfoNCE over the (global) batch, the loss of CLIP. Other texts of the anchor's own group are left out.

    `temperature` is the initial value of the learned temperature, which never falls below 0.01. With "matcher", scores
    are scaled as the matcher has learned (`quintet.protocols.HasLogitScale`), and that scale is trained on.

    `offline`: the mined hard negatives of the stage (`negatives:`) count beside the batch, t_off for the image of a
    pair and i_off for its text.
    """

    uses_offline = False

    def __init__(
        self,
        temperature: float | Literal["matcher"] = 0.05,
        offline: bool = False,
        weight: float = 1.0,
        has_logit_scale: bool = False,
    ) -> None:
        super().__init__()
        self.log_scale = log_scale(temperature, has_logit_scale)
        self.uses_offline = offline
        self.weight = weight

    def phase(self, progress: Progress) -> None:
        """The computation never changes."""

    def forward(self, step: Step) -> dict[str, Term]:
        if self.uses_offline:
            step.encode_offline(derived=False)
        scale = matcher_logits(step)[0] if self.log_scale is None else clipped_exp(self.log_scale)
        costs = contrastive(step.scores, ~step.same_group, scale=scale)
        costs = {name: values[step.mine] for name, values in costs.items()}
        if self.uses_offline:
            positive = step.scores.diagonal()[step.mine]
            for name, wrong in (("text", step.off_text), ("image", step.off_image)):
                # A cost is log(sum) - positive; it becomes log(sum + e^wrong) - positive.
                costs[name] = torch.logaddexp(costs[name], (wrong - positive) * scale)
        collapse_value = math.log(max(2, step.total + self.uses_offline))
        return {name: Term(values, self.weight, collapse_value) for name, values in costs.items()}


class SigmoidObjective(nn.Module):
    """The loss of SigLIP: every image and text of the (global) batch are a pair or not. One term, `pairs`, of images.

    Other texts of an image's own group are left out. `temperature` and `bias` are the initial values of what is learned
    to make logits of scores: scale 10 and bias -10, as in the paper. With `temperature: matcher`, the matcher's own
    scale and bias are trained on.

    `offline`: the mined hard negatives of the stage (`negatives:`) count beside the batch, t_off for the image of a
    pair and i_off for its text.
    """

    uses_offline = False

    def __init__(
        self,
        temperature: float | Literal["matcher"] = 0.1,
        bias: float = -10.0,
        offline: bool = False,
        weight: float = 1.0,
        has_logit_scale: bool = False,
    ) -> None:
        super().__init__()
        self.log_scale = log_scale(temperature, has_logit_scale)
        self.bias = None if self.log_scale is None else nn.Parameter(torch.tensor(float(bias)))
        self.uses_offline = offline
        self.weight = weight

    def phase(self, progress: Progress) -> None:
        """The computation never changes."""

    def forward(self, step: Step) -> dict[str, Term]:
        if self.uses_offline:
            step.encode_offline(derived=False)
        if self.log_scale is None or self.bias is None:
            scale, bias = matcher_logits(step)
        else:
            scale, bias = clipped_exp(self.log_scale), self.bias
        costs = sigmoid(step.scores, ~step.same_group, scale=scale, bias=bias)[step.mine]
        if self.uses_offline:
            for wrong in (step.off_text, step.off_image):
                costs = costs + F.softplus(wrong * scale + bias)
        return {"pairs": Term(costs, self.weight)}


def log_scale(temperature: float | Literal["matcher"], has_logit_scale: bool) -> nn.Parameter | None:
    """The logarithm of 1 / temperature, to be learned; None: the matcher's own is."""
    if temperature == "matcher":
        if not has_logit_scale:
            raise ValueError("temperature: matcher needs a matcher with a logit scale, as CLIP has one; give a number")
        return None
    if not temperature >= 1 / LARGEST_SCALE:
        raise ValueError(f"temperature must be at least {1 / LARGEST_SCALE}, got {temperature}")
    return nn.Parameter(torch.tensor(-math.log(temperature)))


def clipped_exp(log_scale: Tensor) -> Tensor:
    return log_scale.clamp(max=math.log(LARGEST_SCALE)).exp()


def matcher_logits(step: Step) -> tuple[Tensor, Tensor | float]:
    """The scale, clipped as CLIP does, and the bias of the step's matcher."""
    if not isinstance(step.matcher, HasLogitScale):
        raise RecipeError(f"{type(step.matcher).__name__} has no logit scale of its own; give the loss a temperature")
    return step.matcher.logit_scale.clamp(max=LARGEST_SCALE), step.matcher.logit_bias
