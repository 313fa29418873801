"""`NegativeLists`: for every anchor of a split its hardest negatives, best first; `draw_offline` draws from them.

On disk, a folder:

    texts.npy           (n_images, h_t) int32   for each image the rows of its hardest texts, -1 where there are no more
    text_scores.npy     (n_images, h_t) float32 their scores, -inf where there are no more
    images.npy          (n_texts, h_i) int32    for each text the rows of its hardest images
    image_scores.npy    (n_texts, h_i) float32
    manifest.json       {"format": "quintet-negatives", "version": 1, "split": ..., "matcher": ..., "checksums": ...}

The manifest is written last; until then it says that the lists are unfinished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from quintet.data.arrays import open_array, write_array
from quintet.data.corpus import Split, split_checksum
from quintet.errors import CorpusError, QuintetError
from quintet.files import (
    begin_folder,
    check_folder,
    check_shape,
    checksums,
    header_format,
    read_header,
    verify_checksums,
    write_json,
)

FORMAT, VERSION, HEADER = "quintet-negatives", 1, "manifest.json"
_ARRAYS = {"texts": np.int32, "text_scores": np.float32, "images": np.int32, "image_scores": np.float32}
FILES = [f"{name}.npy" for name in _ARRAYS]
Distribution = Literal["uniform", "normal"]
REMEDY = "mine again"
REDRAWS = 10  # quick ones; pairs that still correspond are then drawn from the allowed combinations


@dataclass(frozen=True)
class _Manifest:
    """What of the manifest is read here."""

    shapes: dict[str, tuple[int, int]]
    split: str | None = None
    split_checksum: str | None = None
    matcher: dict[str, Any] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NegativeLists:
    """Hard negatives of both directions. Rows are rows of the split; a row never corresponds to its anchor.

    >>> lists = NegativeLists(*(np.array([[1], [0]]), np.ones((2, 1))) * 2)
    >>> lists.texts.dtype, lists.text_counts.tolist()
    (dtype('int32'), [1, 1])
    """

    texts: np.ndarray  # (n_images, h_t) int32 rows of texts, best first, -1 where there are fewer
    text_scores: np.ndarray  # (n_images, h_t) float32, -inf where there are fewer
    images: np.ndarray  # (n_texts, h_i) int32 rows of images
    image_scores: np.ndarray  # (n_texts, h_i) float32
    manifest: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, dtype in _ARRAYS.items():
            array = getattr(self, name)
            if array.dtype != dtype:
                object.__setattr__(self, name, array.astype(dtype))
        for rows, scores in (("texts", "text_scores"), ("images", "image_scores")):
            shapes = getattr(self, rows).shape, getattr(self, scores).shape
            if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
                raise ValueError(f"{rows} and {scores} must be (anchors, h) and alike, got {shapes[0]} and {shapes[1]}")

    @property
    def text_counts(self) -> np.ndarray:
        """(n_images,): how many negative texts each image has; they fill the list from the front."""
        return (np.asarray(self.texts) >= 0).sum(axis=1)

    @property
    def image_counts(self) -> np.ndarray:
        """(n_texts,): how many negative images each text has."""
        return (np.asarray(self.images) >= 0).sum(axis=1)

    def save(self, folder: Path | str) -> None:
        """Write the lists. Lists in `folder` are replaced; other files of the same names are kept, with an error."""
        folder = Path(folder)
        begin_folder(folder, HEADER, FORMAT, FILES)
        for name in _ARRAYS:
            write_array(folder / f"{name}.npy", getattr(self, name))
        facts = {
            "shapes": {name: list(getattr(self, name).shape) for name in _ARRAYS},
            "checksums": checksums(folder, FILES),
        }
        write_json(folder / HEADER, {"format": FORMAT, "version": VERSION} | self.manifest | facts)

    @staticmethod
    def open(folder: Path | str, mmap: bool = True) -> NegativeLists:
        """Read what `save` wrote, compared with its checksums; memory-mapped, pages are read when they are touched."""
        folder = Path(folder)
        missing = f"{folder} holds no finished negatives (in {HEADER}); make them with `quintet mine RUN CORPUS`"
        manifest = read_header(folder / HEADER, FORMAT, VERSION, missing)
        head = check_shape(manifest, _Manifest, str(folder / HEADER))
        arrays = {}
        for name, dtype in _ARRAYS.items():
            path = folder / f"{name}.npy"
            array = open_array(path, REMEDY, np.dtype(dtype).kind)
            if array.dtype != dtype or array.shape != head.shapes.get(name):
                raise CorpusError(
                    f"{path} holds {array.dtype} of shape {array.shape}, but its manifest says {np.dtype(dtype)} of "
                    f"shape {head.shapes.get(name)}; {REMEDY}"
                )
            arrays[name] = array if mmap else np.array(array)
        verify_checksums(folder, {name: head.checksums[name] for name in FILES if name in head.checksums}, REMEDY)
        try:
            return NegativeLists(**arrays, manifest=manifest)
        except ValueError as error:
            raise CorpusError(f"{folder}: {error}; {REMEDY}") from None

    @staticmethod
    def find(folder: Path | str) -> NegativeLists | None:
        """The finished lists in a folder, or None where `save` may write some; `CorpusError` where it may not.

        Damaged lists count as none: they are made again.
        """
        check_folder(Path(folder), HEADER, FORMAT, FILES)
        try:
            return NegativeLists.open(folder) if header_format(Path(folder) / HEADER) == FORMAT else None
        except QuintetError:
            return None

    def check(self, split: Split, weights: str | None = None) -> None:
        """Refuse lists that were not mined for this split, or not by the matcher with these weights (a checksum)."""
        expected = len(split.images), len(split.texts)
        found = len(self.texts), len(self.images)
        where = f"these negatives (mined from split {self.manifest.get('split')!r})"
        if found != expected:
            raise CorpusError(
                f"{where} are for {found[0]} images and {found[1]} texts, but split {split.name!r} has {expected[0]} "
                f"and {expected[1]}; mine this corpus, or train on the one they were mined from"
            )
        checksum = self.manifest.get("split_checksum")
        if checksum != split_checksum(split):
            raise CorpusError(
                f"{where} belong to other images, texts or groups than those of split {split.name!r} (its ids and "
                "groups, in order, have another checksum); mine this corpus"
            )
        for name, rows, limit in (("texts", self.texts, expected[1]), ("images", self.images, expected[0])):
            if rows.size and not (rows.min() >= -1 and rows.max() < limit):
                raise CorpusError(f"{where} name {name} that do not exist (rows must lie below {limit}); mine again")
        mined_by = self.manifest.get("matcher", {}).get("weights")
        if weights is not None and mined_by != weights:
            raise CorpusError(
                f"{where} were mined by a matcher with weights {str(mined_by)[:12]}, not {weights[:12]}; mine again"
            )

    def require(self, split: Split, top_texts: int, top_images: int) -> None:
        """Refuse lists from which the first `top_texts` and `top_images` cannot be drawn for every anchor."""
        sides: list[tuple[np.ndarray, int, Literal["image", "text"]]]
        sides = [(self.texts, top_texts, "image"), (self.images, top_images, "text")]
        for table, top, kind in sides:
            _check_lengths(table, top, split, kind)
            _check_filled(np.asarray(table[:, :1]).max(axis=1, initial=-1) >= 0, np.arange(len(table)), split, kind)


@dataclass(frozen=True)
class OfflineRows:
    """The offline negatives of n pairs as rows of the split."""

    off_text: np.ndarray  # (n,) a hard negative of the image
    off_image: np.ndarray  # (n,) a hard negative of the text
    derived_image: np.ndarray  # (n,) an image that belongs to `off_text`
    derived_text: np.ndarray  # (n,) a text that belongs to `off_image`
    text_rank: np.ndarray  # (n,) 0-based rank of `off_text` in its list
    image_rank: np.ndarray  # (n,)
    corresponding: (
        np.ndarray
    )  # (n,) bool: the drawn image and text belong together, because nothing else could be drawn

    def __len__(self) -> int:
        return len(self.off_text)

    def take(self, rows: slice) -> OfflineRows:
        """Some of the pairs: every process draws for the whole batch and keeps its share."""
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

    - `distribution="uniform"`: every rank is equally likely (the paper). "normal": a normal distribution over ranks,
      cut off at both ends, so that the very top, where false negatives sit, is drawn less often (the supplement, which
      gives no numbers). `mean` and `std` are fractions of the list: by default the middle, and the two ends at two
      standard deviations, where the first rank is drawn about a quarter as often as under "uniform".
    - The two draws are independent, and repeated while the drawn image and text belong together (the paper). Only
      where no two candidates of the two lists differ in group is such a pair kept, and marked `corresponding`.
    - `coupled=True` is the released code: one draw for both, text rank n and image rank n x h_i // h_t (n // 5 with
      300 and 60), never repeated. Draws that belong together are marked `corresponding` too.

    The derived image is the image that `off_text` was written for, or any of its group; the derived text is any text
    of `off_image`, or of its group where it has none of its own.
    """
    if mean < 0 or mean > 1 or std <= 0:
        raise ValueError(f"mean must lie in 0..1 and std above 0, both as fractions of the list, got {mean} and {std}")
    texts = _candidates(lists.texts, pairs[:, 0], top_texts, split, "image")
    images = _candidates(lists.images, pairs[:, 1], top_images, split, "text")
    draw = _Draw(split, texts, images, _RankDistribution(distribution, mean, std), rng)
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
class _RankDistribution:
    """A distribution over the ranks 0..count-1 of a list, for many lists at once."""

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
        """(count,) the probability of each rank, up to a factor."""
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
    ranks: _RankDistribution
    rng: np.random.Generator

    def coupled(self) -> tuple[np.ndarray, np.ndarray]:
        text_rank = self.ranks.draw(self.texts.counts, self.rng)
        return text_rank, text_rank * self.images.counts // self.texts.counts

    def independent(self) -> tuple[np.ndarray, np.ndarray]:
        text_rank = self.ranks.draw(self.texts.counts, self.rng)
        image_rank = self.ranks.draw(self.images.counts, self.rng)
        for _ in range(REDRAWS):
            again = self._corresponding(text_rank, image_rank)
            if not len(again):
                return text_rank, image_rank
            text_rank[again] = self.ranks.draw(self.texts.counts[again], self.rng)
            image_rank[again] = self.ranks.draw(self.images.counts[again], self.rng)
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
        weights = np.outer(self.ranks.weights(len(text_groups)), self.ranks.weights(len(image_groups)))
        weights = weights * (text_groups[:, None] != image_groups[None, :])  # (h_t, h_i)
        if not weights.any():
            return text_rank, image_rank
        chosen = self.rng.choice(weights.size, p=weights.ravel() / weights.sum())
        return chosen // len(image_groups), chosen % len(image_groups)


def _candidates(
    table: np.ndarray, anchors: np.ndarray, top: int, split: Split, kind: Literal["image", "text"]
) -> _Candidates:
    """The first `top` candidates of each anchor."""
    _check_lengths(table, top, split, kind)
    rows = np.asarray(table[anchors, :top])  # (n, h)
    counts = (rows >= 0).sum(axis=1)
    _check_filled(counts > 0, anchors, split, kind)
    return _Candidates(rows, counts)


def _check_lengths(table: np.ndarray, top: int, split: Split, kind: Literal["image", "text"]) -> None:
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
            f"mine longer lists, or draw from the first {table.shape[1]} (negatives.top_{_other(kind)}s)"
        )


def _check_filled(filled: np.ndarray, anchors: np.ndarray, split: Split, kind: Literal["image", "text"]) -> None:
    """Raise where an anchor has no candidate."""
    if not filled.all():
        own = split.images if kind == "image" else split.texts
        first = own[anchors[int(np.argmin(filled))]]
        raise CorpusError(
            f"{kind} {first.id!r} has no negative in the mined lists: every candidate belongs to it or was excluded; "
            "loosen the exclusions of mining, or leave it out of the training split"
        )


def _other(kind: Literal["image", "text"]) -> str:
    return "text" if kind == "image" else "image"


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
