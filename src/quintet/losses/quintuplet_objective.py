"""The objective of AOQ's second round: what a stage with mined negatives trains on."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from quintet.errors import RecipeError
from quintet.losses.quintuplet import (
    Online,
    Terms,
    adaptive_online_terms,
    offline_terms,
    online_negatives,
    online_pair_terms,
    online_terms,
    quintuplet_terms,
)
from quintet.losses.step import Progress, Step, Term
from quintet.losses.triplet import Warmup, check_warmup, triplet

Variant = Literal[
    "adaptive", "quintuplet", "triplet", "only_offline", "online_quintuplet", "without_offline_adaptation"
]


class QuintupletObjective(nn.Module):
    """AOQ's losses over the (global) batch.

    Requirements: the stage has `negatives:`, so that every pair of a batch comes with offline hard negatives.

    - `variant`: "adaptive" (Eq. 5, AdapOffQuin), "quintuplet" (Eq. 4, OffQuin), "triplet" (Eq. 3, OffTri), or one of
      the paper's ablations "only_offline", "online_quintuplet" and "without_offline_adaptation".
    - `margin_online`, `margin_offline`: gamma_1 and gamma_2.
    - `alpha`, `beta`, `detach`, `clamp`: of the adaptive weights; `squared`: of every hinge.
    - `same_group`: as in `TripletObjective`; "negative" is what the released code does.
    - `warmup_epochs`: so long the objective is the `warmup` of `TripletObjective`, "mean" or "softmax", without offline
      negatives. Not in the paper; small corpora that start from scratch may need it.
    - `watch`: also report, with weight zero, how far offline negatives stand above online ones (`gap_online`) and
      positives above offline negatives (`gap_positive`), both as the mean of the two sides.

    Relations: `TripletObjective` is the first round; do not name it beside this one, whose online terms contain it.
    """

    def __init__(
        self,
        variant: Variant = "adaptive",
        margin_online: float = 0.2,
        margin_offline: float = 0.0,
        alpha: float = 0.3,
        beta: float = 1.5,
        detach: bool = False,
        clamp: bool = False,
        squared: bool = False,
        same_group: Literal["ignored", "negative"] = "ignored",
        warmup_epochs: float = 0.0,
        warmup: Warmup = "mean",
        weight: float = 1.0,
        watch: bool = True,
    ) -> None:
        super().__init__()
        if variant not in get_args(Variant):
            raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, got {variant!r}")
        if same_group not in ("ignored", "negative"):
            raise ValueError(f"same_group must be ignored or negative, got {same_group!r}")
        if alpha <= 0:
            raise ValueError(f"alpha must be positive, got {alpha}")
        if variant == "only_offline" and warmup_epochs:
            raise ValueError("the variant only_offline has no online terms to warm up with")
        self.variant = variant
        self.margin_online, self.margin_offline = margin_online, margin_offline
        self.alpha, self.beta, self.detach, self.clamp, self.squared = alpha, beta, detach, clamp, squared
        self.same_group = same_group
        check_warmup(warmup, margin_online)
        self.warmup_epochs, self.warmup = warmup_epochs, warmup
        self.weight = weight
        self.watch = watch

    def phase(self, progress: Progress) -> bool:
        """Whether the objective is still warming up."""
        return progress.epoch < self.warmup_epochs

    def forward(self, step: Step) -> dict[str, Term]:
        if step.batch.offline is None:
            raise RecipeError(
                "the quintuplet loss trains on offline negatives, and this stage has none; "
                "give it a `negatives:` entry that says from which stage or run they are mined"
            )
        negative = ~(step.same_group if self.same_group == "ignored" else step.diagonal)
        if self.phase(step.progress):
            return self._warming(step, negative)
        step.encode_offline(derived=self.variant not in ("triplet", "online_quintuplet"))
        online = online_negatives(step.scores, negative).take(step.mine)  # (b,): this process's anchors
        terms = {
            name: Term(values, self.weight, self._flat(name)) for name, values in self._terms(online, step).items()
        }
        if self.watch:
            terms |= {name: Term(values, 0.0) for name, values in gaps(online, step.off_text, step.off_image).items()}
        return terms

    def _warming(self, step: Step, negative: Tensor) -> dict[str, Term]:
        costs = triplet(step.scores, negative, margin=self.margin_online, choose=self.warmup)
        flat = self.margin_online if self.warmup == "mean" else None
        return {f"online_{name}": Term(values[step.mine], self.weight, flat) for name, values in costs.items()}

    def _terms(self, online: Online, step: Step) -> Terms:
        offline: dict[str, Any] = {"margin": self.margin_offline, "squared": self.squared}
        first = {} if self.variant == "only_offline" else self._online(online, step)
        if self.variant == "triplet":
            return first | offline_terms(online, step.off_text, step.off_image, **offline)
        if self.variant == "online_quintuplet":
            last = online_pair_terms(online, **offline)
            return first | offline_terms(online, step.off_text, step.off_image, **offline) | last
        scores = (step.off_text, step.off_image, step.off_pair, step.derived_pair)
        return first | quintuplet_terms(online, *scores, **offline)

    def _online(self, online: Online, step: Step) -> Terms:
        if self.variant not in ("adaptive", "without_offline_adaptation"):
            return online_terms(online, margin=self.margin_online, squared=self.squared)
        offline = (step.off_text, step.off_image)
        return adaptive_online_terms(
            online,
            *(offline if self.variant == "adaptive" else (online.positive, online.positive)),
            margin=self.margin_online,
            alpha=self.alpha,
            beta=self.beta,
            detach=self.detach,
            clamp=self.clamp,
            squared=self.squared,
        )

    def _flat(self, name: str) -> float | None:
        """What the online terms are when all scores are equal; the offline ones say nothing, with margin zero."""
        if name not in ("online_text", "online_image"):
            return None
        cost = self.margin_online**2 if self.squared else self.margin_online
        return cost * (self.beta if self.variant in ("adaptive", "without_offline_adaptation") else 1.0)


def gaps(online: Online, off_text: Tensor, off_image: Tensor) -> Terms:
    """(n,) each, without gradient: offline over online negatives, and positives over offline negatives."""
    with torch.no_grad():
        over_online = (off_text - online.text) * online.has_text + (off_image - online.image) * online.has_image
        over_offline = 2 * online.positive - off_text - off_image
        return {"gap_online": over_online / 2, "gap_positive": over_offline / 2}
