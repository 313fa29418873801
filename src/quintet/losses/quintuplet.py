"""Losses with offline hard negatives: OffTri, OffQuin and AdapOffQuin (AOQ Eq. 3 to 5), and the paper's ablations.

Chen, Deng, Luo: Adaptive Offline Quintuplet Loss for Image-Text Matching, ECCV 2020. All functions read scores only:

- `scores` (B, B): every image of a batch against every text of it, the pairs (i, t) on the diagonal;
- `off_text` (B,): S(i, t_off), the image against a text drawn from its list of hard negatives;
- `off_image` (B,): S(i_off, t), the text against an image drawn from its list;
- `off_pair` (B,): S(i_off, t_off);
- `derived_pair` (B,): the image that belongs to t_off against a text that belongs to i_off.

They return named terms (B,), one value per pair; the sum of all values is the equation summed over the batch.
`negative` (B, B) bool says which pairs count as online negatives; left out, all that are not on the diagonal do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from quintet.errors import RecipeError
from quintet.losses.step import Progress, Step, Term
from quintet.losses.triplet import Warmup, check_warmup, triplet

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Online:
    """The score of each of n anchor pairs and its two hardest negatives in the batch (Eq. 2)."""

    positive: Tensor  # (n,) S(i, t)
    text: Tensor  # (n,) S(i, t_on); 0 if there is no wrong text
    image: Tensor  # (n,) S(i_on, t); 0 if there is no wrong image
    has_text: Tensor  # (n,) bool
    has_image: Tensor  # (n,) bool
    pair: Tensor  # (n,) S(i_on, t_on)
    derived: Tensor  # (n,) the image of t_on against the text of i_on
    has_pair: Tensor  # (n,) bool: both exist, and neither of the two pairs above is a positive

    def take(self, rows: slice) -> Online:
        """Some of the anchors: those of one process, say."""
        return Online(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def online_negatives(scores: Tensor, negative: Tensor | None = None) -> Online:
    """The hardest negatives of every anchor pair in the batch: t_on = argmax S(i, .) and i_on = argmax S(., t)."""
    if negative is None:
        negative = ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    # Finite, not -inf: for an anchor without a negative the adaptive weight would be inf, and 0 x inf is NaN.
    candidates = scores.masked_fill(~negative, torch.finfo(scores.dtype).min)
    t_on, i_on = candidates.argmax(dim=1), candidates.argmax(dim=0)  # (n,), (n,)
    anchors = torch.arange(len(scores), device=scores.device)
    has_text, has_image = negative.any(dim=1), negative.any(dim=0)
    return Online(
        positive=scores.diagonal(),
        text=torch.where(has_text, scores[anchors, t_on], 0.0),
        image=torch.where(has_image, scores[i_on, anchors], 0.0),
        has_text=has_text,
        has_image=has_image,
        pair=scores[i_on, t_on],
        derived=scores[t_on, i_on],  # row t_on is the image of t_on, column i_on the text of i_on
        has_pair=has_text & has_image & negative[i_on, t_on] & negative[t_on, i_on],
    )


def adaptive_offline_quintuplet(
    scores: Tensor,
    off_text: Tensor,
    off_image: Tensor,
    off_pair: Tensor,
    derived_pair: Tensor,
    *,
    margin_online: float = 0.2,
    margin_offline: float = 0.0,
    alpha: float = 0.3,
    beta: float = 1.5,
    negative: Tensor | None = None,
    compare_with: Literal["offline", "positive"] = "offline",
    detach: bool = False,
    clamp: bool = False,
    squared: bool = False,
) -> Terms:
    """AdapOffQuin (Eq. 5): OffQuin with the online terms weighted by beta - (S(i, t_off) - S(i, t_on)) / alpha.

    An online negative far below the offline one costs little. Gradients flow through the weight (Eq. 6), and the weight
    is negative where the offline negative leads by more than alpha x beta. `detach` makes it a constant, `clamp` bounds
    it below by zero; neither is in the paper.

    `compare_with="positive"` is the ablation "w/o OfflineAdap": S(i, t) takes the place of S(i, t_off) in the weight.

    >>> scores = torch.tensor([[0.6, 0.5], [0.1, 0.7]])
    >>> none = torch.full((2,), -1.0)
    >>> terms = adaptive_offline_quintuplet(scores, torch.tensor([0.65, -1.0]), none, none, none)
    >>> [round(value, 6) for value in terms["online_text"].tolist()]  # (1.5 - 0.15 / 0.3) x 0.1
    [0.1, 0.0]
    >>> [round(value, 6) for value in terms["offline_text"].tolist()]
    [0.05, 0.0]
    """
    online = online_negatives(scores, negative)
    return adaptive_online_terms(
        online,
        *((off_text, off_image) if compare_with == "offline" else (online.positive, online.positive)),
        margin=margin_online,
        alpha=alpha,
        beta=beta,
        detach=detach,
        clamp=clamp,
        squared=squared,
    ) | quintuplet_terms(online, off_text, off_image, off_pair, derived_pair, margin=margin_offline, squared=squared)


def offline_triplet(
    scores: Tensor,
    off_text: Tensor,
    off_image: Tensor,
    *,
    margin_online: float = 0.2,
    margin_offline: float = 0.0,
    negative: Tensor | None = None,
    squared: bool = False,
) -> Terms:
    """OffTri (Eq. 3): the online triplet loss, and the same against one offline negative a side."""
    online = online_negatives(scores, negative)
    return online_terms(online, margin=margin_online, squared=squared) | offline_terms(
        online, off_text, off_image, margin=margin_offline, squared=squared
    )


def offline_quintuplet(
    scores: Tensor,
    off_text: Tensor,
    off_image: Tensor,
    off_pair: Tensor,
    derived_pair: Tensor,
    *,
    margin_online: float = 0.2,
    margin_offline: float = 0.0,
    negative: Tensor | None = None,
    squared: bool = False,
) -> Terms:
    """OffQuin (Eq. 4): OffTri, and two hard negative pairs that share nothing with the positive pair."""
    online = online_negatives(scores, negative)
    return online_terms(online, margin=margin_online, squared=squared) | quintuplet_terms(
        online, off_text, off_image, off_pair, derived_pair, margin=margin_offline, squared=squared
    )


def only_offline(
    scores: Tensor,
    off_text: Tensor,
    off_image: Tensor,
    off_pair: Tensor,
    derived_pair: Tensor,
    *,
    margin_offline: float = 0.0,
    squared: bool = False,
) -> Terms:
    """OnlyOffline: Eq. 4 without its online terms. Of `scores` only the diagonal is read."""
    return quintuplet_terms(
        online_negatives(scores), off_text, off_image, off_pair, derived_pair, margin=margin_offline, squared=squared
    )


def online_quintuplet(
    scores: Tensor,
    off_text: Tensor,
    off_image: Tensor,
    *,
    margin_online: float = 0.2,
    margin_offline: float = 0.0,
    negative: Tensor | None = None,
    squared: bool = False,
) -> Terms:
    """OnlineQuin: Eq. 4 with the pairs (i_on, t_on) and (image of t_on, text of i_on) for the two derived ones.

    The paper keeps the offline triplet terms. Where i_on and t_on belong together there is no such negative pair
    (an argmax cannot be drawn again), and the two terms are zero.
    """
    online = online_negatives(scores, negative)
    return (
        online_terms(online, margin=margin_online, squared=squared)
        | offline_terms(online, off_text, off_image, margin=margin_offline, squared=squared)
        | online_pair_terms(online, margin=margin_offline, squared=squared)
    )


# The parts of the losses above. All values are (n,), one for each anchor pair of `online`.


def online_terms(online: Online, *, margin: float, squared: bool = False) -> Terms:
    """The online triplet loss (Eq. 2)."""
    return {
        "online_text": _hinge(online.positive, online.text, margin, squared) * online.has_text,
        "online_image": _hinge(online.positive, online.image, margin, squared) * online.has_image,
    }


def adaptive_online_terms(
    online: Online,
    harder_text: Tensor,
    harder_image: Tensor,
    *,
    margin: float,
    alpha: float,
    beta: float,
    detach: bool = False,
    clamp: bool = False,
    squared: bool = False,
) -> Terms:
    """The online terms of Eq. 5, each weighted by the distance of its negative from a harder one."""
    weights = {
        "online_text": beta - (harder_text - online.text) / alpha,
        "online_image": beta - (harder_image - online.image) / alpha,
    }
    if clamp:
        weights = {name: weight.clamp(min=0) for name, weight in weights.items()}
    if detach:
        weights = {name: weight.detach() for name, weight in weights.items()}
    costs = online_terms(online, margin=margin, squared=squared)
    return {name: weights[name] * cost for name, cost in costs.items()}


def offline_terms(
    online: Online, off_text: Tensor, off_image: Tensor, *, margin: float, squared: bool = False
) -> Terms:
    """The offline triplet terms (Eq. 3)."""
    return {
        "offline_text": _hinge(online.positive, off_text, margin, squared),
        "offline_image": _hinge(online.positive, off_image, margin, squared),
    }


def quintuplet_terms(
    online: Online,
    off_text: Tensor,
    off_image: Tensor,
    off_pair: Tensor,
    derived_pair: Tensor,
    *,
    margin: float,
    squared: bool = False,
) -> Terms:
    """All offline terms of Eq. 4."""
    return offline_terms(online, off_text, off_image, margin=margin, squared=squared) | {
        "offline_pair": _hinge(online.positive, off_pair, margin, squared),
        "derived_pair": _hinge(online.positive, derived_pair, margin, squared),
    }


def online_pair_terms(online: Online, *, margin: float, squared: bool = False) -> Terms:
    """The two terms of OnlineQuin that replace the derived ones."""
    return {
        "online_pair": _hinge(online.positive, online.pair, margin, squared) * online.has_pair,
        "online_derived_pair": _hinge(online.positive, online.derived, margin, squared) * online.has_pair,
    }


def _hinge(positive: Tensor, negative: Tensor, margin: float, squared: bool) -> Tensor:
    cost = torch.relu(margin - positive + negative)  # relu: at exactly zero the gradient is zero, as in Eq. 6
    return cost.square() if squared else cost


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
    - `warmup_epochs`: for so many epochs the loss is the `warmup` of `TripletObjective`, "mean" or "softmax", without
      offline negatives. Not in the paper; small corpora that are trained from scratch may need it.
    - `watch`: also log, with weight 0, by how much offline negatives score above online ones (`gap_online`) and
      positives above offline negatives (`gap_positive`), each the mean of both directions.

    `TripletObjective` is the first round. Do not use both in one stage: the online terms here contain it.
    """

    uses_offline = True

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
        """Whether the warm-up is on."""
        return progress.epoch < self.warmup_epochs

    def forward(self, step: Step) -> dict[str, Term]:
        if step.batch.offline is None:
            raise RecipeError(
                "the quintuplet loss needs offline negatives, and this stage has none; "
                "give it a `negatives:` entry with the stage or run that mines them (`from`)"
            )
        negative = ~(step.same_group if self.same_group == "ignored" else step.diagonal)
        if step.phase_of(self):
            return self._warming(step, negative)
        step.encode_offline(derived=self.variant not in ("triplet", "online_quintuplet"))
        online = online_negatives(step.scores, negative).take(step.mine)  # (b,): this process's anchors
        terms = {
            name: Term(values, self.weight, self._collapse_value(name))
            for name, values in self._terms(online, step).items()
        }
        if self.watch:
            terms |= {name: Term(values, 0.0) for name, values in gaps(online, step.off_text, step.off_image).items()}
        return terms

    def _warming(self, step: Step, negative: Tensor) -> dict[str, Term]:
        costs = triplet(step.scores, negative, margin=self.margin_online, choose=self.warmup)
        collapse_value = self.margin_online if self.warmup == "mean" else None
        return {
            f"online_{name}": Term(values[step.mine], self.weight, collapse_value) for name, values in costs.items()
        }

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

    def _collapse_value(self, name: str) -> float | None:
        """Of the online terms. Offline terms have none: with margin 0 they are also zero when training succeeds."""
        if name not in ("online_text", "online_image"):
            return None
        cost = self.margin_online**2 if self.squared else self.margin_online
        return cost * (self.beta if self.variant in ("adaptive", "without_offline_adaptation") else 1.0)


def gaps(online: Online, off_text: Tensor, off_image: Tensor) -> Terms:
    """(n,) each, without gradient: offline minus online negatives, and positives minus offline negatives."""
    with torch.no_grad():
        over_online = (off_text - online.text) * online.has_text + (off_image - online.image) * online.has_image
        over_offline = 2 * online.positive - off_text - off_image
        return {"gap_online": over_online / 2, "gap_positive": over_offline / 2}
