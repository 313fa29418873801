"""Which pairs are never negatives: those of one group, and on request those that share a text."""

from __future__ import annotations

import re
import unicodedata
from copy import copy

import numpy as np

from quintet.data.corpus import Split

_WORD = re.compile(r"\w+")


def normalise(text: str) -> str:
    """What two texts must share to be the same one: their words, whatever the case, spacing and punctuation.

    >>> normalise("  A man,\\twalking.") == normalise("a MAN walking")
    True
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_WORD.findall(plain)) or plain.strip()


class Exclusions:
    """The pairs (image, text) that may be in no list.

    Every text has a *kind*, and a kind is owned by groups: a pair is excluded when the image's group owns the text's
    kind. Without duplicates the kind is the text's own group; with them it is its text, owned by every group that
    has it among its texts. So an image never gets a text it owns, and a text never gets an image that owns it, and
    the memory is that of the texts, however often a text occurs.
    """

    def __init__(self, split: Split, duplicates: bool = False) -> None:
        self.image_groups, self.text_groups = split.image_groups, split.text_groups
        self.duplicates = duplicates
        self.groups = max(len(split.groups), 1)
        if duplicates:
            _, kinds = np.unique([normalise(text.text) for text in split.texts], return_inverse=True)
            self.kinds = kinds.astype(np.int64)
            self.owned = np.unique(self.kinds * self.groups + self.text_groups)  # kind, owner; ascending
        else:
            self.kinds = self.text_groups
            self.owned = np.flatnonzero(np.bincount(self.text_groups, minlength=self.groups)) * (self.groups + 1)

    def positives(self) -> tuple[np.ndarray, np.ndarray]:
        """All pairs of one group: image rows, text rows."""
        order = np.argsort(self.text_groups, kind="stable")
        groups = self.text_groups[order]
        low, high = (np.searchsorted(groups, self.image_groups, side=side) for side in ("left", "right"))
        image, at = _expand(low, high)
        return image, order[at]

    def inside(self, images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The excluded pairs of a block, as positions in `images` and `texts` (rows of the split)."""
        if not len(images) or not len(texts):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        groups = self.image_groups[images]
        order = np.argsort(groups, kind="stable")
        groups = groups[order]
        first_owner = self.kinds[texts] * self.groups
        low = np.searchsorted(self.owned, first_owner + groups[0])
        high = np.searchsorted(self.owned, first_owner + groups[-1], side="right")
        text, owner = _expand(low, high)
        owner = self.owned[owner] % self.groups
        low, high = np.searchsorted(groups, owner), np.searchsorted(groups, owner, side="right")
        entry, image = _expand(low, high)
        return order[image], text[entry]

    def of(self, images: np.ndarray, texts: np.ndarray) -> Exclusions:
        """Of these rows alone, as `inside` needs it for their positions."""
        part = copy(self)
        part.image_groups, part.text_groups, part.kinds = (
            self.image_groups[images],
            self.text_groups[texts],
            self.kinds[texts],
        )
        first = np.unique(part.kinds) * self.groups
        low, high = np.searchsorted(self.owned, first), np.searchsorted(self.owned, first + self.groups)
        part.owned = self.owned[_expand(low, high)[1]]
        return part

    def counts(self) -> dict[str, int]:
        """How many pairs are excluded, and why."""
        images_of_group = np.bincount(self.image_groups, minlength=self.groups)
        positives = int((images_of_group * np.bincount(self.text_groups, minlength=self.groups)).sum())
        texts_of_kind = np.bincount(self.kinds)
        owner_kind, owner = np.divmod(self.owned, self.groups)
        everything = int((texts_of_kind[owner_kind] * images_of_group[owner]).sum())
        return {"positive_pairs": positives, "duplicate_sentence_pairs": everything - positives}


def _expand(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All integers of the ranges [low, high), and which range each comes from.

    >>> [part.tolist() for part in _expand(np.array([3, 0]), np.array([5, 1]))]
    [[0, 0, 1], [3, 4, 0]]
    """
    lengths = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(low)), lengths)
    within = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return which, low[which] + within
