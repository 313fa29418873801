"""Drawing offline hard negatives from mined lists, fresh each time a pair is visited (AOQ section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch

from quintet.data.corpus import Split
from quintet.data.negatives import NegativeLists
from quintet.errors import CorpusError

Distribution = Literal["uniform", "normal"]
REDRAWS = 10  # quick ones; what still corresponds after them is drawn from the allowed combinations alone


@dataclass(frozen=True)
class OfflineRows:
    """The offline negatives of n pairs as rows of the split."""

    off_text: np.ndarray  # (n,) a hard negative of the image
    off_image: np.ndarray  # (n,) a hard negative of the text
    derived_image: np.ndarray  # (n,) an image that belongs to `off_text`
    derived_text: np.ndarray  # (n,) a text that belongs to `off_image`
    text_rank: np.ndarray  # (n,) 0-based place of `off_text` in its list
    image_rank: np.ndarray  # (n,)
    corresponding: (
        np.ndarray
    )  # (n,) bool: the drawn image and text belong together, because nothing else could be drawn

    def __len__(self) -> int:
        return len(self.off_text)

    def take(self, rows: slice) -> OfflineRows:
        """Some of the pairs. Processes draw for the whole batch and keep their share, so their number is no matter."""
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def draw_offline(
    lists: NegativeLists,
    split: Split,
    pairs: np.ndarray,
    rng: np.random.Generator,
    *,
    top_texts: int = 300,
    top_images: int = 60,
    distribution: Distribution = "uniform",
    mean: float = 0.5,
    std: float = 0.25,
    coupled: bool = False,
) -> OfflineRows:
    """One negative text for the image and one negative image for the text of each of `pairs` (n, 2).

    Each comes from the first `top_texts` (`top_images`) of the anchor's list, or from all of it where it is shorter.

    - `distribution="uniform"`: every place is as likely (the paper). "normal": a normal distribution over the places,
      cut off at both ends, so that the very top, where false negatives sit, is drawn less often (the supplement, which
      gives no numbers). `mean` and `std` are fractions of the list: by default the middle, and the two ends at two
      standard deviations, where the first place comes up about a quarter as often as under "uniform".
    - The two draws are independent, and repeated while the drawn image and text belong together (the paper). Only
      where no two candidates of the two lists differ in group is such a pair kept, and marked `corresponding`.
    - `coupled=True` is the released code: one draw for both, text place n and image place n x h_i // h_t (n // 5 with
      300 and 60), never repeated. Draws that belong together are marked `corresponding` too.

    The derived image is the picture that `off_text` was written for, or any of its group; the derived text is any text
    of `off_image`, or of its group where it has none of its own.
    """
    if mean < 0 or mean > 1 or std <= 0:
        raise ValueError(f"mean must lie in 0..1 and std above 0, both as fractions of the list, got {mean} and {std}")
    texts = _candidates(lists.texts, pairs[:, 0], top_texts, split, "image")
    images = _candidates(lists.images, pairs[:, 1], top_images, split, "text")
    draw = _Draw(split, texts, images, _Places(distribution, mean, std), rng)
    text_rank, image_rank = draw.coupled() if coupled else draw.independent()
    off_text, off_image = texts.at(text_rank), images.at(image_rank)
    return OfflineRows(
        off_text=off_text,
        off_image=off_image,
        derived_image=_any_of([split.images_of_text[row] for row in off_text], rng),
        derived_text=_any_of([_texts_of(split, row) for row in off_image], rng),
        text_rank=text_rank,
        image_rank=image_rank,
        corresponding=split.text_groups[off_text] == split.image_groups[off_image],
    )


@dataclass(frozen=True)
class _Candidates:
    rows: np.ndarray  # (n, h) -1 behind the last
    counts: np.ndarray  # (n,) at least 1

    def at(self, ranks: np.ndarray) -> np.ndarray:
        return self.rows[np.arange(len(self.rows)), ranks].astype(np.int64)


@dataclass(frozen=True)
class _Places:
    """A distribution over the places 0..count-1 of a list, for many lists at once."""

    distribution: Distribution
    mean: float
    std: float

    def draw(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        u = rng.random(len(counts))
        if self.distribution == "normal":
            low, high = self._area(np.array([0.0, 1.0]))
            quantile = torch.special.ndtri(torch.from_numpy(low + u * (high - low))).numpy()
            u = np.clip(self.mean + self.std * quantile, 0.0, 1.0)
        return np.minimum((u * counts).astype(np.int64), counts - 1)

    def weights(self, count: int) -> np.ndarray:
        """(count,) how likely each place is, up to a factor."""
        if self.distribution == "uniform":
            return np.ones(count)
        return np.diff(self._area(np.arange(count + 1) / count))

    def _area(self, x: np.ndarray) -> np.ndarray:
        return torch.special.ndtr(torch.from_numpy((x - self.mean) / self.std)).numpy()


@dataclass(frozen=True)
class _Draw:
    split: Split
    texts: _Candidates
    images: _Candidates
    places: _Places
    rng: np.random.Generator

    def coupled(self) -> tuple[np.ndarray, np.ndarray]:
        text_rank = self.places.draw(self.texts.counts, self.rng)
        return text_rank, text_rank * self.images.counts // self.texts.counts

    def independent(self) -> tuple[np.ndarray, np.ndarray]:
        text_rank = self.places.draw(self.texts.counts, self.rng)
        image_rank = self.places.draw(self.images.counts, self.rng)
        for _ in range(REDRAWS):
            again = self._corresponding(text_rank, image_rank)
            if not len(again):
                return text_rank, image_rank
            text_rank[again] = self.places.draw(self.texts.counts[again], self.rng)
            image_rank[again] = self.places.draw(self.images.counts[again], self.rng)
        for row in self._corresponding(text_rank, image_rank):
            text_rank[row], image_rank[row] = self._from_allowed(row, text_rank[row], image_rank[row])
        return text_rank, image_rank

    def _corresponding(self, text_rank: np.ndarray, image_rank: np.ndarray) -> np.ndarray:
        """Which pairs drew an image and a text of one group."""
        text_groups = self.split.text_groups[self.texts.at(text_rank)]
        return np.flatnonzero(text_groups == self.split.image_groups[self.images.at(image_rank)])

    def _from_allowed(self, row: int, text_rank: int, image_rank: int) -> tuple[int, int]:
        """Draw among the combinations that differ in group: what redrawing without end would give. None: keep."""
        text_groups = self.split.text_groups[self.texts.rows[row, : self.texts.counts[row]]]  # (h_t,)
        image_groups = self.split.image_groups[self.images.rows[row, : self.images.counts[row]]]  # (h_i,)
        weights = np.outer(self.places.weights(len(text_groups)), self.places.weights(len(image_groups)))
        weights = weights * (text_groups[:, None] != image_groups[None, :])  # (h_t, h_i)
        if not weights.any():
            return text_rank, image_rank
        chosen = self.rng.choice(weights.size, p=weights.ravel() / weights.sum())
        return chosen // len(image_groups), chosen % len(image_groups)


def _candidates(
    table: np.ndarray, anchors: np.ndarray, top: int, split: Split, kind: Literal["image", "text"]
) -> _Candidates:
    """The first `top` candidates of each anchor."""
    own, other = (split.images, split.texts) if kind == "image" else (split.texts, split.images)
    if len(table) != len(own):
        raise CorpusError(
            f"the lists of negatives hold {len(table)} {kind}s, but split {split.name!r} has {len(own)}; "
            "they were mined from another corpus or split: mine again"
        )
    if top < 1:
        raise ValueError(f"negatives are drawn from the first 1 or more of a list, got {top}")
    if table.shape[1] < top and table.shape[1] < _most_candidates(split, kind):
        raise CorpusError(
            f"the lists hold {table.shape[1]} candidates for each {kind}, and {top} of {len(other)} are asked for; "
            f"mine longer lists, or draw from the first {table.shape[1]}"
        )
    rows = np.asarray(table[anchors, :top])  # (n, h)
    counts = (rows >= 0).sum(axis=1)
    if not counts.all():
        first = own[anchors[int(np.argmin(counts))]]
        raise CorpusError(
            f"{kind} {first.id!r} has no negative in the mined lists: every candidate belongs to it or was excluded; "
            "loosen the exclusions of mining, or leave it out of the training split"
        )
    return _Candidates(rows, counts)


def _most_candidates(split: Split, kind: Literal["image", "text"]) -> int:
    """How many wrong candidates an anchor can have at most: all but the smallest group."""
    groups = split.text_groups if kind == "image" else split.image_groups
    return len(groups) - int(np.bincount(groups).min()) if len(groups) else 0


def _texts_of(split: Split, image: int) -> np.ndarray:
    own = split.texts_of_image[image]
    return own if len(own) else split.texts_of_group[split.image_groups[image]]


def _any_of(options: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """(n,): one of each."""
    starts = np.cumsum([0, *map(len, options)])
    picks = rng.integers(np.diff(starts))
    return np.concatenate(options)[starts[:-1] + picks].astype(np.int64)
