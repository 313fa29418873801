"""Which part of a split is ranked against which: the protocols under which published numbers are comparable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quintet.data.corpus import Corpus, Split
from quintet.errors import QuintetError, suggest
from quintet.evaluation.metrics import Metrics, average_metrics, chance_level, metrics_of_ranks
from quintet.evaluation.ranks import BLOCK, Ranks, ScoreBlock, count_ranks


@dataclass(frozen=True)
class Protocol:
    """A name, what it means, and how it cuts a split."""

    name: str
    summary: str
    folds: int = 1
    images: int | None = None  # how many images the split must have, each with texts of its own

    def check(self, split: Split, corpus: Corpus | None = None, choose: str = "--split {}") -> None:
        """Raise unless the published name of the protocol is right for a split of this size.

        The message names the splits of the corpus that are of the right size; `choose` is how the caller takes one.
        """
        if self.images is None or len(split.images) == len(split.groups) == self.images:
            return
        found = f"{len(split.images):,}"
        if len(split.images) == self.images:
            found += f" in {len(split.groups):,} groups"
        right = [name for name in (corpus.splits if corpus else ()) if name != split.name and self._fits(corpus, name)]
        hint = [f"`{choose.format(name)} --protocol {self.name}`" for name in right]
        raise QuintetError(
            f"protocol {self.name!r} ({self.summary}) is for {self.images:,} images with texts of their own, but split "
            f"{split.name!r} has {found}; use {' or '.join([*hint, '`--protocol full` for a split of any size'])}"
        )

    def _fits(self, corpus: Corpus | None, name: str) -> bool:
        return corpus is not None and len(corpus.splits[name]) == self.images == len(corpus.split(name).images)

    def parts(self, split: Split) -> list[tuple[slice, slice]]:
        """The (image rows, text rows) that are ranked against each other; folds are of consecutive groups."""
        self.check(split)
        if self.folds == 1:
            return [(slice(0, len(split.images)), slice(0, len(split.texts)))]
        folds = np.array_split(np.arange(len(split.groups)), self.folds)
        edges = [(int(fold[0]), int(fold[-1]) + 1) for fold in folds]
        images = [_rows(split.image_groups, low, high) for low, high in edges]
        texts = [_rows(split.text_groups, low, high) for low, high in edges]
        return list(zip(images, texts, strict=True))


def _rows(groups: np.ndarray, low: int, high: int) -> slice:
    """The rows of the groups low..high-1, which stand together because a split is ordered by group."""
    if (np.diff(groups) < 0).any():
        raise QuintetError("folds need a split whose rows are ordered by group; take it from `Corpus.split`")
    start, stop = np.searchsorted(groups, [low, high])
    return slice(int(start), int(stop))


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("full", "every query against the whole split"),
        Protocol(
            "5fold", "COCO 1K: five folds of 1,000 consecutive images, each alone, averaged", folds=5, images=5_000
        ),
        Protocol("5k", "COCO 5K: every query against all 5,000 images", images=5_000),
        Protocol("identity", "any image of the person counts; text to image is the published direction (CUHK-PEDES)"),
    )
}


def find_protocol(name: str) -> Protocol:
    """The protocol of this name; a typo is answered with the nearest one."""
    if name not in PROTOCOLS:
        raise QuintetError(f"there is no protocol {name!r}; {suggest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


def rank_split(
    protocol: Protocol, split: Split, score_block: ScoreBlock, block: int | tuple[int, int] = BLOCK
) -> list[Ranks]:
    """The ranks of each part of the split; `score_block` takes rows of the whole split."""
    return [
        count_ranks(
            _shifted(score_block, images.start, texts.start),
            split.image_groups[images],
            split.text_groups[texts],
            block,
        )
        for images, texts in protocol.parts(split)
    ]


def _shifted(score_block: ScoreBlock, image: int, text: int) -> ScoreBlock:
    return lambda images, texts: score_block(
        slice(images.start + image, images.stop + image), slice(texts.start + text, texts.stop + text)
    )


def metrics_of_parts(parts: list[Ranks]) -> Metrics:
    """The metrics of each part, averaged."""
    return average_metrics([metrics_of_ranks(ranks) for ranks in parts])


def chance_of_parts(parts: list[Ranks]) -> Metrics:
    """The chance level of each part, averaged."""
    return average_metrics([chance_level(ranks.image_groups, ranks.text_groups) for ranks in parts])
