"""Human agreement: Kendall's tau of a matcher's scores with the judgements of people on Flickr8k.

The protocol is that of CLIPScore (Hessel et al. 2021, Appendix A and released code), which took it from SPICE: the 158
pairs of an image and its own caption are left out, and each expert judgement (1 to 4) of the remaining 5,664 pairs is
one observation, 16,992 in total. CLIPScore publishes a tau-c of 0.512, RefCLIPScore of 0.530.

The CrowdFlower file has the answers of three or more people to whether a caption describes an image. As in CLIPScore's
code, the share of yes is the one observation of a pair, all pairs count, and the coefficient is tau-b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from quintet.data.corpus import Split
from quintet.data.formats.assembly import read_lines
from quintet.errors import CorpusError, QuintetError
from quintet.evaluation.scoring import Member
from quintet.evaluation.significance import Interval
from quintet.files import user_path
from quintet.runs.devices import full_precision

JUDGEMENTS = (1, 2, 3, 4)
SHARE_ROUNDING = 1e-3  # of the share of yes, which the file gives beside the counts
PAIRS_AT_A_TIME = 512


@dataclass(frozen=True)
class ExpertAnnotations:
    """Pairs of an image and a caption with the judgements of every expert."""

    images: list[str]
    texts: list[str]
    judgements: np.ndarray  # (pairs, experts) int64, 1 (does not describe it at all) to 4 (describes it)

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class CrowdAnnotations:
    """Pairs of an image and a caption with the share of people who say that the caption describes the image."""

    images: list[str]
    texts: list[str]
    yes: np.ndarray  # (pairs,) share
    answers: np.ndarray  # (pairs,) how many people were asked


@dataclass(frozen=True)
class JudgedPairs:
    """Annotations as rows of a split, without the pairs of an image and its own caption."""

    image_rows: np.ndarray  # (pairs,)
    text_rows: np.ndarray  # (pairs,)
    judgements: np.ndarray  # (pairs, experts)
    own_excluded: int


@dataclass(frozen=True)
class Agreement:
    tau_c: float
    interval: Interval | None  # 95 % bootstrap, resampling images with all their captions
    pairs: int
    judgements: int
    own_excluded: int  # pairs of an image and its own caption

    def line(self, name: str) -> str:
        """
        >>> Agreement(0.4123, (0.39, 0.43), 5664, 16992, 158).line("first")
        'first: Kendall tau-c 0.412 (0.390 to 0.430) with 16,992 judgements of 5,664 pairs'
        """
        interval = "" if self.interval is None else f" ({self.interval[0]:.3f} to {self.interval[1]:.3f})"
        what = f"{self.judgements:,} judgements of {self.pairs:,} pairs"
        return f"{name}: Kendall tau-c {self.tau_c:.3f}{interval} with {what}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval": None if self.interval is None else list(self.interval)}


@dataclass(frozen=True)
class CrowdAgreement:
    tau_b: float
    interval: Interval | None  # 95 % bootstrap, resampling images with all their captions
    pairs: int
    answers: int

    def line(self, name: str) -> str:
        """
        >>> CrowdAgreement(0.3441, None, 47830, 145000).line("first")
        'first: Kendall tau-b 0.344 with the share of yes of 47,830 pairs (145,000 answers)'
        """
        interval = "" if self.interval is None else f" ({self.interval[0]:.3f} to {self.interval[1]:.3f})"
        return (
            f"{name}: Kendall tau-b {self.tau_b:.3f}{interval} with the share of yes of {self.pairs:,} pairs "
            f"({self.answers:,} answers)"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval": None if self.interval is None else list(self.interval)}


def read_crowd_annotations(path: Path | str) -> CrowdAnnotations:
    """CrowdFlowerAnnotations.txt as distributed: IMAGE TAB CAPTION_ID TAB SHARE OF YES TAB YES TAB NO."""
    path = user_path(path)
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if not line:
            continue
        counts = [int(cell) for cell in cells[3:] if cell.isascii() and cell.isdigit() and len(cell) < 7]
        try:
            share = float(cells[2])
        except (IndexError, ValueError):
            share = float("nan")
        if len(cells) != 5 or len(counts) != 2 or not sum(counts) or not 0 <= share <= 1:
            raise CorpusError(
                f"{path}, line {number}: expected IMAGE TAB CAPTION TAB share TAB yes TAB no, found {line[:60]!r}"
            )
        if abs(share - counts[0] / sum(counts)) > SHARE_ROUNDING:
            raise CorpusError(
                f"{path}, line {number}: {counts[0]} yes and {counts[1]} no are not a share of {cells[2]}"
            )
        rows.append((cells[0], cells[1], counts[0] / sum(counts), sum(counts)))
    if not rows:
        raise CorpusError(f"{path} contains no judgements")
    images, texts, yes, answers = (list(column) for column in zip(*rows, strict=True))
    return CrowdAnnotations(images, texts, np.array(yes), np.array(answers))


def crowd_pairs(annotations: CrowdAnnotations, split: Split) -> JudgedPairs:
    """Rows of the judged pairs in a split, with the share of yes as their one judgement. All must be in it."""
    images, texts = _rows_of(annotations.images, annotations.texts, split)
    return JudgedPairs(images, texts, annotations.yes[:, None], 0)


def crowd_agreement(
    scores: np.ndarray, annotations: CrowdAnnotations, pairs: JudgedPairs, resamples: int = 1_000, seed: int = 0
) -> CrowdAgreement:
    """Tau-b of the scores (pairs,) with the shares of yes, and its interval over images (0 resamples: none)."""
    found, interval = _with_interval(kendall_tau_b, scores, pairs, resamples, seed)
    return CrowdAgreement(found, interval, len(scores), int(annotations.answers.sum()))


def read_expert_annotations(path: Path | str) -> ExpertAnnotations:
    """ExpertAnnotations.txt as distributed: IMAGE TAB CAPTION_ID TAB JUDGEMENT TAB JUDGEMENT TAB JUDGEMENT."""
    path = user_path(path)
    rows = [_read_line(line, path, number) for number, line in enumerate(read_lines(path), 1) if line]
    if not rows:
        raise CorpusError(f"{path} contains no judgements")
    if len({len(row[2]) for row in rows}) > 1:
        raise CorpusError(f"{path}: every pair must have been judged by the same number of experts")
    images, texts, judgements = (list(column) for column in zip(*rows, strict=True))
    return ExpertAnnotations(images, texts, np.array(judgements, dtype=np.int64))


def _read_line(line: str, path: Path, number: int) -> tuple[str, str, list[int]]:
    image, *rest = line.split("\t")
    if len(rest) < 2 or not all(cell in map(str, JUDGEMENTS) for cell in rest[1:]):
        raise CorpusError(
            f"{path}, line {number}: expected IMAGE TAB CAPTION TAB judgements from 1 to 4, found {line[:80]!r}"
        )
    return image, rest[0], [int(cell) for cell in rest[1:]]


def judged_pairs(annotations: ExpertAnnotations, split: Split) -> JudgedPairs:
    """Rows of the judged pairs in a split. All must be in it: a subset would be another measurement."""
    images, texts = _rows_of(annotations.images, annotations.texts, split)
    other = split.image_groups[images] != split.text_groups[texts]
    return JudgedPairs(images[other], texts[other], annotations.judgements[other], int((~other).sum()))


def _rows_of(images: Sequence[str], texts: Sequence[str], split: Split) -> tuple[np.ndarray, np.ndarray]:
    image_of = {image.id: row for row, image in enumerate(split.images)}
    text_of = {text.id: row for row, text in enumerate(split.texts)}
    pairs = list(zip(images, texts, strict=True))
    missing = [pair for pair in pairs if pair[0] not in image_of or pair[1] not in text_of]
    if missing:
        raise QuintetError(
            f"{len(missing)} of {len(pairs)} judged pairs are not in split {split.name!r}, first {missing[0]}; "
            "the judgements are of Flickr8k's test split, under the ids of `quintet data import flickr`"
        )
    return np.array([image_of[image] for image in images]), np.array([text_of[text] for text in texts])


@torch.no_grad()
def pair_scores(members: Sequence[Member], pairs: JudgedPairs, device: torch.device | str | None = None) -> np.ndarray:
    """(pairs,) float64: the mean of the members' scores. The matchers must be on `device`, in evaluation mode."""
    on = torch.device(device) if device is not None else members[0].image_codes.device
    total = np.zeros(len(pairs.image_rows))
    for member in members:
        for start in range(0, len(total), PAIRS_AT_A_TIME):
            part = slice(start, start + PAIRS_AT_A_TIME)
            images = member.image_codes[torch.as_tensor(pairs.image_rows[part])].to(on)
            texts = member.text_codes[torch.as_tensor(pairs.text_rows[part])].to(on)
            with full_precision(on):
                total[part] += member.matcher.score_pairs(images, texts).double().cpu().numpy()
    return total / len(members)


def human_agreement(scores: np.ndarray, pairs: JudgedPairs, resamples: int = 1_000, seed: int = 0) -> Agreement:
    """Tau-c of the scores (pairs,) with the single judgements, and its interval over images (0 resamples: none)."""
    found, interval = _with_interval(kendall_tau_c, scores, pairs, resamples, seed)
    return Agreement(found, interval, len(scores), pairs.judgements.size, pairs.own_excluded)


def _with_interval(
    tau: Callable[..., float], scores: np.ndarray, pairs: JudgedPairs, resamples: int, seed: int
) -> tuple[float, Interval | None]:
    experts = pairs.judgements.shape[1]
    order = np.argsort(scores, kind="stable")  # once: sorting a sorted array again is cheap
    observed = np.repeat(np.asarray(scores)[order], experts), pairs.judgements[order].ravel()
    interval = None
    if resamples:
        _, image = np.unique(np.repeat(pairs.image_rows[order], experts), return_inverse=True)
        images = int(image.max()) + 1
        rng = np.random.default_rng(seed)
        drawn = []
        for _ in range(resamples):
            times = np.bincount(rng.integers(0, images, images), minlength=images)
            drawn.append(tau(*observed, weights=times[image]))
        low, high = np.nanpercentile(drawn, [2.5, 97.5])  # a resample of one image may have a single score: NaN
        interval = float(low), float(high)
    return tau(*observed), interval


def kendall_tau_b(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Kendall's tau-b, (P - Q) / sqrt((n0 - n1) (n0 - n2)): of n0 pairs, n1 and n2 are tied in one of the two; NaN if
    all are. Takes as long as `kendall_tau_c`.

    >>> round(kendall_tau_b([0.1, 0.2, 0.3, 0.3], [0.0, 0.5, 0.5, 1.0]), 6)
    0.8
    """
    balance, values, level, times = _balance(first, second, weights)
    _, value = np.unique(values, return_inverse=True)

    def untied(of: np.ndarray) -> float:
        sizes = np.bincount(of, weights=times)
        return float(times.sum() * (times.sum() - 1) - (sizes * (sizes - 1)).sum()) / 2

    both = untied(value), untied(level)
    return balance / float(np.sqrt(both[0]) * np.sqrt(both[1])) if min(both) > 0 else float("nan")


def kendall_tau_c(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Stuart's tau-c, 2 (P - Q) / (n² (m - 1) / m), m the smaller number of distinct values; NaN if m is 1.

    P and Q are the numbers of concordant and discordant pairs of observations; ties count for neither. Takes
    O(n log n + n c) for c distinct values of `second`. `weights` are the multiplicities of the observations.

    >>> kendall_tau_c([0.1, 0.2, 0.3, 0.4], [1, 1, 2, 2])
    1.0
    >>> kendall_tau_c([0.1, 0.2, 0.3, 0.4], [2, 2, 1, 1])
    -1.0
    """
    balance, values, level, times = _balance(first, second, weights)
    distinct = 1 + np.count_nonzero(np.diff(values[times > 0]))  # they are sorted
    classes = min(distinct, np.count_nonzero(np.bincount(level, times)))
    if classes < 2:
        return float("nan")
    return float(2.0 * balance / (times.sum() ** 2 * (classes - 1) / classes))


def _balance(
    first: ArrayLike, second: ArrayLike, weights: ArrayLike | None
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """P - Q; the values of `first`, ascending, with the level of the other value and the multiplicity of each."""
    order = np.argsort(first, kind="stable")
    values, other = np.asarray(first)[order], np.asarray(second)[order]
    times = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)[order]
    levels, level = np.unique(other, return_inverse=True)
    of_level = np.zeros((len(values) + 1, len(levels)))
    of_level[np.arange(1, len(values) + 1), level] = times
    of_level = of_level.cumsum(axis=0)  # (n + 1, c): weight of each level in the first k observations
    lower = of_level[np.searchsorted(values, values, side="left")]  # (n, c): among those with a smaller value
    up_to = lower.cumsum(axis=1)
    own = level[:, None]
    concordant = np.take_along_axis(up_to - lower, own, axis=1)[:, 0]
    discordant = up_to[:, -1] - np.take_along_axis(up_to, own, axis=1)[:, 0]
    return float(np.sum(times * (concordant - discordant))), values, level, times
