"""How hard negatives are: in random batches (AOQ section 1), and as drawn from mined lists.

Batches are as in training: texts without replacement, each with an image of its group. All ranks start from 1 and are
among the negatives of an anchor in the whole split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike

from quintet.codes import Codes
from quintet.data.corpus import Split, rows_by_group
from quintet.data.negatives import NegativeLists, OfflineRows, draw_offline
from quintet.data.sampling import epoch_batches
from quintet.errors import RunError
from quintet.evaluation.scoring import Member, member_scores
from quintet.report.analysis import Finding, Options, Subject
from quintet.report.figures import DIRECTION_NAMES, draw_rank_histogram
from quintet.training.inputs import TrainingData, open_data
from quintet.training.loop import DRAWING, OFFLINE
from quintet.training.recipe import load_recipe
from quintet.training.recipe_models import Recipe, StageRecipe

TOPS = (10, 100)  # k of the shares in `negatives`
MINED_TOPS = (1, 10, 100)  # k of the shares in `mined`
KEPT_SCORES = 2**27  # pairs of a split whose codes are kept
Side = Literal["images", "texts"]


# Numbers


def expected_online_rank(candidates: int, batch_size: int) -> float:
    """The expected rank of the hardest of the batch_size - 1 negatives of an anchor among all its `candidates`.

    The smallest of n numbers drawn from 1..M without replacement is (M + 1) / (n + 1) on average. The paper's example,
    500K texts and batches of 128, where it says "about 4000":

    >>> round(expected_online_rank(500_000, 128))
    3906
    """
    _check(candidates, batch_size)
    return (candidates + 1) / batch_size


def chance_of_top(candidates: int, batch_size: int, k: int) -> float:
    """The probability that a batch holds one of the k hardest negatives of an anchor: 1 - C(M-k, n) / C(M, n).

    The paper gives 2.2 % for the top 100 on MS-COCO. That is the value for its 566,435 training texts; the 500K it also
    mentions would give 2.5 %.

    >>> round(100 * chance_of_top(566_430, 128, 100), 1), round(100 * chance_of_top(500_000, 128, 100), 1)
    (2.2, 2.5)
    """
    _check(candidates, batch_size)
    drawn = np.arange(batch_size - 1)
    missed = np.maximum(candidates - k - drawn, 0) / (candidates - drawn)
    return float(1.0 - np.prod(missed))


def _check(candidates: int, batch_size: int) -> None:
    if not 2 <= batch_size <= candidates + 1:
        raise ValueError(f"a batch of {batch_size} pairs cannot be made from {candidates} negatives and one positive")


class ScoreSource(Protocol):
    """Scores of any images with any texts of a split."""

    def take(self, side: Side, rows: np.ndarray) -> Any:
        """What is kept of some images or texts while they are compared."""

    def score(self, images: Any, texts: Any) -> np.ndarray:
        """(n_images, n_texts) scores of two things that were taken."""


class MatrixScores:
    """A whole score matrix (n_images, n_texts)."""

    def __init__(self, matrix: ArrayLike) -> None:
        self.matrix = np.asarray(matrix)

    def take(self, side: Side, rows: np.ndarray) -> np.ndarray:
        return rows

    def score(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        return self.matrix[np.ix_(images, texts)]


def measure_online_ranks(
    scores: ScoreSource | ArrayLike,
    image_groups: ArrayLike,
    text_groups: ArrayLike,
    batch_size: int,
    *,
    batches: int,
    rng: np.random.Generator,
    block: int = 1024,
) -> dict[str, np.ndarray]:
    """The ranks of the hardest negatives of random batches. `scores`: a matrix (n_images, n_texts), or where to ask.

    `i2t`: the rank of the hardest negative text of each image among all its negative texts; `t2i`: likewise for texts.
    An anchor without a negative in its batch is left out. The means and shares of these ranks are the measured
    counterparts of `expected_online_rank` and `chance_of_top`.

    Only the anchors of the batches are ranked, `block` of them against `block` candidates at a time, so the memory does
    not grow with the split.
    """
    source: ScoreSource = scores if hasattr(scores, "score") else MatrixScores(scores)  # type: ignore[assignment]
    image_groups, text_groups = np.asarray(image_groups), np.asarray(text_groups)
    drawn = list(_random_batches(image_groups, text_groups, batch_size, batches, rng))
    turned = [(texts, images) for images, texts in drawn]
    return {
        "i2t": _hardest_ranks(source, "images", image_groups, text_groups, drawn, block),
        "t2i": _hardest_ranks(source, "texts", text_groups, image_groups, turned, block),
    }


def measure_top_share(
    lists: NegativeLists,
    image_groups: ArrayLike,
    text_groups: ArrayLike,
    batch_size: int,
    k: int,
    *,
    batches: int,
    rng: np.random.Generator,
) -> dict[str, float]:
    """How often a random batch holds one of the k hardest negatives of an anchor: from mined lists, without scores.

    A direction whose lists are shorter than k cannot be measured and is left out.
    """
    image_groups, text_groups = np.asarray(image_groups), np.asarray(text_groups)
    long_enough = {"i2t": lists.texts.shape[1] >= k, "t2i": lists.images.shape[1] >= k}
    hits: dict[str, list[np.ndarray]] = {direction: [] for direction, measured in long_enough.items() if measured}
    if not hits:
        raise ValueError(f"lists of {lists.texts.shape[1]} texts and {lists.images.shape[1]} images have no top {k}")
    for images, texts in _random_batches(image_groups, text_groups, batch_size, batches, rng):
        if "i2t" in hits:
            hits["i2t"].append(_holds_any(lists.texts[images, :k], texts, len(text_groups)))
        if "t2i" in hits:
            hits["t2i"].append(_holds_any(lists.images[texts, :k], images, len(image_groups)))
    return {direction: float(np.concatenate(parts).mean()) for direction, parts in hits.items()}


def ranks_of_draws(
    scores: ArrayLike, image_groups: ArrayLike, text_groups: ArrayLike, pairs: np.ndarray, rows: OfflineRows
) -> dict[str, np.ndarray]:
    """(n,) by direction: the ranks of drawn negatives under other scores, such as those of a later epoch."""
    matrix, image_groups, text_groups = (np.asarray(values) for values in (scores, image_groups, text_groups))
    images, texts = pairs[:, 0], pairs[:, 1]
    return {
        "i2t": _ranks(matrix, image_groups, text_groups, images, matrix[images, rows.off_text]),
        "t2i": _ranks(matrix.T, text_groups, image_groups, texts, matrix[rows.off_image, texts]),
    }


def replay_draws(
    lists: NegativeLists, split: Split, batches: Iterable[tuple[np.ndarray, np.random.Generator]], **options: Any
) -> dict[str, float]:
    """Repeat the draws of training and measure how hard they were: mean rank and mean mined score of both sides.

    `batches`: the pairs (n, 2) of each batch, with the generator of its draws; `options` as in `draw_offline`. Lists
    from elsewhere may have no scores; then there are no means of them.
    """
    sums = dict.fromkeys(("text_rank", "image_rank", "text_score", "image_score", "corresponding"), 0.0)
    count = 0
    for pairs, rng in batches:
        rows = draw_offline(lists, split, pairs, rng, **options)
        sums["text_rank"] += float((rows.text_rank + 1).sum())
        sums["image_rank"] += float((rows.image_rank + 1).sum())
        sums["text_score"] += float(lists.text_scores[pairs[:, 0], rows.text_rank].sum(dtype=np.float64))
        sums["image_score"] += float(lists.image_scores[pairs[:, 1], rows.image_rank].sum(dtype=np.float64))
        sums["corresponding"] += float(rows.corresponding.sum())
        count += len(rows)
    if not count:
        raise ValueError("there are no batches to replay")
    known = {name: total for name, total in sums.items() if not np.isnan(total)}
    return {name: total / count for name, total in known.items()} | {"pairs": float(count)}


def _random_batches(
    image_groups: np.ndarray, text_groups: np.ndarray, batch_size: int, batches: int, rng: np.random.Generator
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    of_group = rows_by_group(image_groups, int(max(image_groups.max(), text_groups.max())) + 1)
    paired = np.flatnonzero([len(of_group[group]) > 0 for group in text_groups])
    if not 2 <= batch_size <= len(paired):
        raise ValueError(f"a batch of {batch_size} pairs cannot be drawn from {len(paired)} texts")
    for _ in range(batches):
        texts = rng.choice(paired, batch_size, replace=False)
        yield np.array([rng.choice(of_group[group]) for group in text_groups[texts]]), texts


def _hardest_ranks(
    source: ScoreSource,
    side: Side,
    own: np.ndarray,
    other: np.ndarray,
    drawn: Sequence[tuple[np.ndarray, np.ndarray]],
    block: int,
) -> np.ndarray:
    """(m,): the rank of the hardest negative of each anchor (of `side`) that has one in its batch."""
    against: Side = "texts" if side == "images" else "images"

    def score(anchors: Any, candidates: Any) -> np.ndarray:
        return source.score(anchors, candidates) if side == "images" else source.score(candidates, anchors).T

    found = []
    for anchors, candidates in drawn:
        wrong = own[anchors][:, None] != other[candidates][None, :]  # (B, B)
        values = np.where(wrong, score(source.take(side, anchors), source.take(against, candidates)), -np.inf)
        best, has = values.argmax(axis=1), wrong.any(axis=1)
        found.append((anchors[has], candidates[best][has], values.max(axis=1)[has]))
    anchors, hardest, limits = (np.concatenate(parts) for parts in zip(*found, strict=True))
    parts = [slice(start, start + block) for start in range(0, len(anchors), block)]
    taken = [source.take(side, anchors[part]) for part in parts]
    ranks = np.ones(len(anchors), np.int64)
    for start in range(0, len(other), block):
        rows = np.arange(start, min(start + block, len(other)))
        candidates = source.take(against, rows)
        for part, kept in zip(parts, taken, strict=True):
            better = score(kept, candidates) > limits[part, None]  # (anchors, candidates)
            better &= own[anchors[part]][:, None] != other[rows][None, :]
            better &= hardest[part][:, None] != rows[None, :]  # scored again, its last bit may differ
            ranks[part] += better.sum(axis=1)
    return ranks


def _ranks(
    matrix: np.ndarray, own: np.ndarray, other: np.ndarray, anchors: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """(m,): the rank of each score among the negatives of its anchor: one more than the number of better ones."""
    better = matrix[anchors] > scores[:, None]  # (m, candidates)
    return (better & (own[anchors][:, None] != other[None, :])).sum(axis=1) + 1


def _holds_any(wanted: np.ndarray, present: np.ndarray, total: int) -> np.ndarray:
    """(n,) bool: is any entry of each row of `wanted` (n, k), where -1 means none, in the batch?"""
    is_present = np.zeros(total, bool)
    is_present[present] = True
    return (is_present[wanted] & (wanted >= 0)).any(axis=1)


# The analyses


def negatives(subjects: Sequence[Subject], options: Options) -> Finding:
    """Rank of the hardest negative of a random batch among all negatives (AOQ section 1): expected and measured.

    Ranks are among the negatives of the split; use the training split for those that training saw.
    """
    split = subjects[0].split
    size = min(options.batch_size, len(split.texts))
    candidates = {
        "i2t": _mean_negatives(split.image_groups, split.text_groups),
        "t2i": _mean_negatives(split.text_groups, split.image_groups),
    }
    expected = {way: expected_online_rank(count, min(size, count + 1)) for way, count in candidates.items()}
    chance = {
        way: {f"top{k}": chance_of_top(count, min(size, count + 1), k) for k in TOPS if k <= count}
        for way, count in candidates.items()
    }
    measured: dict[str, Any] = {}
    drawn: dict[str, dict[str, np.ndarray]] = {name: {} for name in DIRECTION_NAMES.values()}
    for subject in subjects:
        found = _measure(subject, size, options)
        measured[subject.label] = {way: _summary(rows) for way, rows in found.items()}
        for way, rows in found.items():
            drawn[DIRECTION_NAMES[way]][subject.label] = rows
    numbers = {"batch_size": size, "candidates": candidates, "expected_rank": expected, "chance": chance}
    figure = draw_rank_histogram(drawn, f"Ranks of the hardest negative in batches of {size}")
    return Finding(numbers | {"runs": measured}, {"negatives": figure})


def _mean_negatives(own: np.ndarray, other: np.ndarray) -> int:
    """The mean number of negatives of a query, rounded."""
    sizes = np.bincount(other, minlength=int(own.max()) + 1)
    return round(len(other) - float(sizes[own].mean()))


class _RunScores:
    """Scores of a run or an ensemble. The codes of a large split are made when they are needed, and not kept."""

    def __init__(self, subject: Subject) -> None:
        self.subject, split = subject, subject.split
        self.small = len(split.images) * len(split.texts) <= KEPT_SCORES

    def take(self, side: Side, rows: np.ndarray) -> list[Codes]:
        return [self._codes(part, side, rows) for part in self.subject.parts]

    def _codes(self, part: Subject, side: Side, rows: np.ndarray) -> Codes:
        if self.small:
            member = part.member
            return (member.image_codes if side == "images" else member.text_codes)[torch.from_numpy(rows)]
        run, split = part.run, part.split
        if side == "images":
            images = [split.images[row] for row in rows]
            return run.encode_images(run.image_batches(part.corpus, images, part.batch_size), keep="cpu")
        return run.encode_texts(run.text_batches([split.texts[row] for row in rows], part.batch_size), keep="cpu")

    def score(self, images: list[Codes], texts: list[Codes]) -> np.ndarray:
        pairs = zip(self.subject.parts, images, texts, strict=True)
        members = [Member(part.run.matcher, own, other) for part, own, other in pairs]
        whole = slice(0, len(images[0])), slice(0, len(texts[0]))
        return member_scores(members, self.subject.device)(*whole).cpu().numpy()


def _measure(subject: Subject, size: int, options: Options) -> dict[str, np.ndarray]:
    groups = subject.split.image_groups, subject.split.text_groups
    rng = np.random.default_rng(options.seed)
    return measure_online_ranks(
        _RunScores(subject), *groups, size, batches=options.batches, rng=rng, block=options.block
    )


def _summary(found: np.ndarray) -> dict[str, Any]:
    tops = {f"share_of_top{k}": float((found <= k).mean()) for k in TOPS}
    return {"anchors": len(found), "mean_rank": float(found.mean()), "median_rank": float(np.median(found)), **tops}


def mined(subjects: Sequence[Subject], options: Options) -> Finding:
    """How hard the mined negatives were that a run drew in its first epoch, compared with random batches."""
    found: dict[str, Any] = {}
    for subject in subjects:
        recipe = recipe_of(subject.run.folder)
        data = open_data(recipe, lambda _: None)
        for number, stage in enumerate(recipe.stages):
            folder = subject.run.folder / "stages" / stage.name / "negatives"
            if stage.negatives is not None and (folder / "manifest.json").is_file():
                lists = NegativeLists.open(folder)
                lists.check(data.train)
                settings = stage.negatives.model_dump(include=DRAWING)
                found[f"{subject.label}: {stage.name}"] = {
                    "online": _online(lists, data, stage, options),
                    "drawn": replay_draws(lists, data.train, first_epoch(recipe, number, data), **settings),
                }
    if not found:
        raise RunError(f"no stage of {', '.join(subject.label for subject in subjects)} trained with mined negatives")
    return Finding({"stages": found})


def _online(lists: NegativeLists, data: TrainingData, stage: StageRecipe, options: Options) -> dict[str, Any]:
    """By k: how often a random batch of the stage's size holds one of the k hardest negatives of an anchor."""
    longest = max(lists.texts.shape[1], lists.images.shape[1])
    size = min(stage.batches.size, len(data.train.texts))
    groups = data.train.image_groups, data.train.text_groups
    return {
        f"top{k}": measure_top_share(
            lists, *groups, size, k, batches=options.batches, rng=np.random.default_rng(options.seed)
        )
        for k in MINED_TOPS
        if k <= longest
    }


def first_epoch(recipe: Recipe, number: int, data: TrainingData) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
    """The batches of the first epoch of a stage, each with the generator of its draws."""
    batches, seed = recipe.stages[number].batches, (recipe.seed, number, 0)
    plan = epoch_batches(data.train, batches.size, seed=seed, per=batches.per, drop_last=batches.drop_last)
    for index, pairs in enumerate(plan):
        yield pairs, np.random.default_rng((*seed, index, OFFLINE))


def recipe_of(folder: Path) -> Recipe:
    """The recipe that a run was trained with."""
    if not (folder / "recipe.yaml").is_file():
        raise RunError(f"{folder} was not trained here: it has no recipe.yaml")
    return load_recipe(folder / "recipe.yaml")
