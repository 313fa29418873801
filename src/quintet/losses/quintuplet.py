"""Losses with offline hard negatives: OffTri, OffQuin and AdapOffQuin (AOQ Eq. 3 to 5), and the paper's ablations.

Chen, Deng, Luo: Adaptive Offline Quintuplet Loss for Image-Text Matching, ECCV 2020. All functions read scores only:

- `scores` (B, B): every picture of a batch against every sentence of it, the pairs (i, t) on the diagonal;
- `off_text` (B,): S(i, t_off), the picture against a sentence drawn from its list of hard negatives;
- `off_image` (B,): S(i_off, t), the sentence against a picture drawn from its list;
- `off_pair` (B,): S(i_off, t_off);
- `derived_pair` (B,): the picture that belongs to t_off against a sentence that belongs to i_off.

They return named terms (B,), one value per pair; the sum of all values is the equation summed over the batch.
`negative` (B, B) bool says which pairs count as online negatives; left out, all that are not on the diagonal do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Online:
    """What the batch itself offers each of n anchor pairs: its score and its two online hard negatives (Eq. 2)."""

    positive: Tensor  # (n,) S(i, t)
    text: Tensor  # (n,) S(i, t_on); 0 where there is no wrong sentence
    image: Tensor  # (n,) S(i_on, t); 0 where there is no wrong picture
    has_text: Tensor  # (n,) bool
    has_image: Tensor  # (n,) bool
    pair: Tensor  # (n,) S(i_on, t_on)
    derived: Tensor  # (n,) the picture of t_on against the sentence of i_on
    has_pair: Tensor  # (n,) bool: both exist, and neither pair made of them is a right one

    def take(self, rows: slice) -> Online:
        """Some of the anchors: those of one process, say."""
        return Online(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def online_negatives(scores: Tensor, negative: Tensor | None = None) -> Online:
    """The hardest negatives of every anchor pair in the batch: t_on = argmax S(i, .) and i_on = argmax S(., t)."""
    if negative is None:
        negative = ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    # Never -inf: an anchor without a negative must not turn its adaptive weight into inf, and 0 x inf into NaN.
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
        derived=scores[t_on, i_on],  # row t_on is the picture that t_on was drawn with, and the other way round
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

    An online negative that is already far below the offline one costs little. The weight is part of the function:
    gradients flow through it (Eq. 6), and it is negative where the offline negative leads by more than alpha x beta.
    `detach` treats it as a constant, `clamp` keeps it from falling below zero; neither is in the paper.

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
    """OnlineQuin: Eq. 4 with the pairs (i_on, t_on) and (picture of t_on, sentence of i_on) for the two derived ones.

    The paper keeps the offline triplet terms. Where i_on and t_on belong together there is no such negative pair
    (an argmax cannot be drawn again), and the two terms are zero.
    """
    online = online_negatives(scores, negative)
    return (
        online_terms(online, margin=margin_online, squared=squared)
        | offline_terms(online, off_text, off_image, margin=margin_offline, squared=squared)
        | online_pair_terms(online, margin=margin_offline, squared=squared)
    )


# The parts that the losses above are made of; all values are (n,), one per anchor pair of `online`.


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
    """The online terms of Eq. 5: each is weighted by how far its negative is from a harder one."""
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
    """The two terms that OnlineQuin has for the derived ones."""
    return {
        "online_pair": _hinge(online.positive, online.pair, margin, squared) * online.has_pair,
        "online_derived_pair": _hinge(online.positive, online.derived, margin, squared) * online.has_pair,
    }


def _hinge(positive: Tensor, negative: Tensor, margin: float, squared: bool) -> Tensor:
    cost = torch.relu(margin - positive + negative)  # relu: at exactly zero the gradient is zero, as in Eq. 6
    return cost.square() if squared else cost
