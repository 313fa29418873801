"""Exact ranks by counting: block by block, both directions in one pass, no sort and no whole score matrix.

The rank of a positive is the number of negatives that score at least as much. So a negative that ties is ranked before
the positive (a matcher that gives every pair the same score gets the worst ranks), and the positives of one query do
not lower each other's rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.errors import QuintetError

ScoreBlock = Callable[[slice, slice], Tensor]  # (images, texts) -> (a, b) scores of these rows against these columns
Counted = tuple[int, np.ndarray, Tensor]  # (0: images or 1: texts are the queries, pairs, their counts)
LONGEST = 2**24  # edge of a block: up to here float32 counts every whole number
BLOCK = (1024, 1024)
WIDTH = 32  # floors of a line that are counted at once
FEW = 0.25  # share of a line's scores up to which they are picked out of it
KEEP = 2**27  # scores of blocks with relevant pairs that are kept for the counting pass: 512 MiB, all of COCO's 5K


@dataclass(frozen=True)
class Queries:
    """One direction: the queries that have a positive, with the ranks of all their positives."""

    rows: np.ndarray  # (q,) which images (or texts) these queries are
    groups: np.ndarray  # (q,)
    positives: np.ndarray  # (q,) positives of each query, at least 1
    pair_ranks: np.ndarray  # (P,) 0-based ranks among the negatives, query after query
    candidates: int  # candidates of each query, positives included
    excluded: int  # queries without a positive: not measured

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def starts(self) -> np.ndarray:
        """(q,) where each query's positives begin in `pair_ranks`."""
        return np.cumsum(self.positives) - self.positives

    @cached_property
    def best(self) -> np.ndarray:
        """(q,) 0-based rank of the best positive."""
        return np.minimum.reduceat(self.pair_ranks, self.starts)


@dataclass(frozen=True)
class Judged:
    """The relevant candidates of some queries, which need not be those of their group. Ordered by query, candidate."""

    i2t: bool  # images are the queries; else texts
    query: np.ndarray  # (P,) rows
    candidate: np.ndarray  # (P,) rows
    grade: np.ndarray  # (P,) float64 above 0: how relevant


@dataclass(frozen=True)
class JudgedRanks:
    """What was counted of one `Judged`: the same pairs, in the same order."""

    queries: Queries
    scores: np.ndarray  # (P,) float32
    grade: np.ndarray  # (P,)


@dataclass(frozen=True)
class Ranks:
    """The rank of every positive pair in both directions, ordered by image, then text."""

    image_groups: np.ndarray  # (n_images,)
    text_groups: np.ndarray  # (n_texts,)
    pair_image: np.ndarray  # (P,) image row of each positive pair
    pair_text: np.ndarray  # (P,) text row
    pair_i2t: np.ndarray  # (P,) negative texts that score at least as much for this image
    pair_t2i: np.ndarray  # (P,) negative images that score at least as much for this text

    @cached_property
    def i2t(self) -> Queries:
        """Images as queries, texts as candidates."""
        return _queries(self.pair_image, self.pair_i2t, self.image_groups, len(self.text_groups))

    @cached_property
    def t2i(self) -> Queries:
        """Texts as queries, images as candidates."""
        order = by_text(self.pair_image, self.pair_text)
        return _queries(self.pair_text[order], self.pair_t2i[order], self.text_groups, len(self.image_groups))


def _queries(query: np.ndarray, ranks: np.ndarray, groups: np.ndarray, candidates: int) -> Queries:
    rows, positives = np.unique(query, return_counts=True)
    return Queries(rows, groups[rows], positives, ranks, candidates, excluded=len(groups) - len(rows))


def ranks_of_matrix(
    scores: Any, image_groups: Any, text_groups: Any, block: int | tuple[int, int] = BLOCK, device: str | None = None
) -> Ranks:
    """Ranks from a whole (n_images, n_texts) score matrix, numpy or torch, decided on its values as float32.

    >>> ranks = ranks_of_matrix([[0.9, 0.1], [0.9, 0.2]], [0, 1], [0, 1])
    >>> ranks.i2t.best.tolist(), ranks.t2i.best.tolist()
    ([0, 1], [1, 0])
    """
    matrix = torch.as_tensor(scores, device=device).detach()
    image_groups, text_groups = group_codes(image_groups, text_groups)
    if matrix.shape != (len(image_groups), len(text_groups)):
        raise QuintetError(
            f"scores have shape {tuple(matrix.shape)}, but there are {len(image_groups)} images and {len(text_groups)} "
            "texts; rows are images and columns are texts"
        )
    return count_ranks(lambda images, texts: matrix[images, texts], image_groups, text_groups, block)


def count_ranks(
    score_block: ScoreBlock, image_groups: Any, text_groups: Any, block: int | tuple[int, int] = BLOCK
) -> Ranks:
    """Ranks from a function that scores a block of images against a block of texts.

    Blocks that hold positive pairs are scored first, to learn the positives' scores; then every block is counted for
    both directions. The first ones are kept for that up to `KEEP` scores and scored again beyond. Blocks have the same
    edges both times, so a positive is compared with exactly the number it was given; the function must be
    deterministic. Memory is that of a few blocks, the blocks kept and the positive pairs, however large the matrix.
    A query whose group has no item of the other modality is left out and counted (`Queries.excluded`); it is still a
    candidate, and a negative of every query.
    """
    return count_ranks_and_more(score_block, image_groups, text_groups, (), block)[0]


def count_ranks_and_more(
    score_block: ScoreBlock,
    image_groups: Any,
    text_groups: Any,
    judged: Sequence[Judged],
    block: int | tuple[int, int] = BLOCK,
) -> tuple[Ranks, list[JudgedRanks]]:
    """`count_ranks`, and from the same pass the ranks of other sets of relevant pairs: every block is scored as often
    as without them, as long as `KEEP` scores hold the blocks with relevant pairs.
    """
    image_groups, text_groups = group_codes(image_groups, text_groups)
    sizes = (block, block) if isinstance(block, int) else block
    if min(sizes) < 1:
        raise QuintetError(f"blocks must hold at least one image and one text, got {sizes}")
    sizes = min(sizes[0], LONGEST), min(sizes[1], LONGEST)
    image, text = positive_pairs(image_groups, text_groups)
    order = by_text(image, text)
    shape = len(image_groups), len(text_groups)
    keys = [image * shape[1] + text, *(each.query * shape[1] + each.candidate for each in judged if each.i2t)]
    text_keys = [text[order] * shape[0] + image[order]]
    text_keys += [each.query * shape[0] + each.candidate for each in judged if not each.i2t]
    sides = np.unique(np.concatenate(keys)), np.unique(np.concatenate(text_keys))
    scores, counts = _Grid(score_block, shape, sizes, sides).count()
    own = [np.searchsorted(sides[0], keys[0]), np.searchsorted(sides[1], text_keys[0])]
    pair_i2t = counts[0][own[0]] - _as_high(image, scores[0][own[0]])
    pair_t2i = np.empty_like(pair_i2t)
    pair_t2i[order] = counts[1][own[1]] - _as_high(text[order], scores[1][own[1]])
    ranks = Ranks(image_groups, text_groups, image, text, pair_i2t, pair_t2i)
    more = []
    for each in judged:
        side = 0 if each.i2t else 1
        at = np.searchsorted(sides[side], each.query * shape[1 - side] + each.candidate)
        found = scores[side][at]
        above = counts[side][at] - _as_high(each.query, found)
        queries = _queries(each.query, above, text_groups if side else image_groups, shape[1 - side])
        more.append(JudgedRanks(queries, found, each.grade))
    return ranks, more


def _as_high(query: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(P,) for each pair how many pairs of the same query, itself included, score at least as much."""
    if not len(query):
        return np.empty(0, np.int64)
    order = np.lexsort((-scores, query))
    ordered_query, ordered = query[order], scores[order]
    within = np.arange(len(order)) - np.searchsorted(ordered_query, ordered_query)
    other = (ordered_query[1:] != ordered_query[:-1]) | (ordered[1:] != ordered[:-1])
    last = np.append(other, True)  # of those that are tied
    tied = np.flatnonzero(last)[np.cumsum(last) - last]
    found = np.empty(len(order), np.int64)
    found[order] = within[tied] + 1
    return found


class _Grid:
    """The blocks of one score matrix, and the relevant pairs whose ranks are wanted.

    `sides` has the pairs of images as queries (image row times the number of texts, plus text row) and those of texts
    (text row times the number of images, plus image row), ascending.
    """

    def __init__(
        self,
        score_block: ScoreBlock,
        shape: tuple[int, int],
        sizes: tuple[int, int],
        sides: tuple[np.ndarray, np.ndarray],
    ) -> None:
        self.score_block = score_block
        self.rows, self.columns = (_cuts(length, size) for length, size in zip(shape, sizes, strict=True))
        of_texts, image_of_text = np.divmod(sides[1], shape[0])
        pairs = np.unique(np.concatenate([sides[0], image_of_text * shape[1] + of_texts]))
        self.image, self.text = np.divmod(pairs, shape[1])
        self.numbers = [np.searchsorted(pairs, sides[0]), np.searchsorted(pairs, image_of_text * shape[1] + of_texts)]
        self.plans = [
            [_Plan(sides[0] // shape[1], cut) for cut in self.rows],
            [_Plan(of_texts, cut) for cut in self.columns],
        ]
        block_of = self.image // sizes[0] * len(self.columns) + self.text // sizes[1]
        order = np.argsort(block_of, kind="stable")
        blocks, starts = np.unique(block_of[order], return_index=True)
        self.kept: dict[tuple[int, int], Tensor] = {}
        self.pairs_of_block = dict(zip(blocks.tolist(), np.split(order, starts[1:]), strict=True))

    def blocks(self) -> Iterator[tuple[int, int, slice, slice]]:
        for i, images in enumerate(self.rows):
            for j, texts in enumerate(self.columns):
                yield i, j, images, texts

    def score(self, images: slice, texts: slice) -> Tensor:
        scores = self.score_block(images, texts).detach().float()  # (a, b)
        expected = (images.stop - images.start, texts.stop - texts.start)
        if scores.shape != expected:
            raise QuintetError(
                f"the score function returned shape {tuple(scores.shape)} where {expected} was asked for"
            )
        # The sum is NaN if any score is (or if opposite infinities meet, hence the second look): one cheap pass.
        if torch.isnan(scores.sum()) and torch.isnan(scores).any():
            row, column = torch.isnan(scores).nonzero()[0].tolist()
            raise QuintetError(
                f"the score of image row {images.start + row} and text row {texts.start + column} is NaN; "
                "a rank cannot be given: look for NaN in the features or the weights"
            )
        return scores

    def collect(self) -> Tensor:
        """(P,) the scores of the relevant pairs."""
        found: Tensor | None = None
        room = KEEP
        for i, j, images, texts in self.blocks():
            pairs = self.pairs_of_block.get(i * len(self.columns) + j)
            if pairs is not None:
                scores = self.score(images, texts)
                if scores.numel() <= room:
                    room -= scores.numel()
                    self.kept[i, j] = scores
                if found is None:
                    found = scores.new_empty(len(self.image))
                row, column = self.image[pairs] - images.start, self.text[pairs] - texts.start
                at = (torch.from_numpy(part).to(scores.device) for part in (row, column, pairs))
                row, column, pairs = at
                found[pairs] = scores[row, column]
        assert found is not None  # `positive_pairs` refuses to find none
        return found

    def count(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """For images and for texts as queries: the scores of their pairs, and how many candidates, of any kind, score
        at least as much. One pass over the blocks.
        """
        pair_scores = self.collect()
        floors = [pair_scores[torch.from_numpy(numbers).to(pair_scores.device)] for numbers in self.numbers]
        counts = [np.zeros(len(numbers), np.int64) for numbers in self.numbers]
        for i, j, images, texts in self.blocks():
            kept = self.kept.pop((i, j), None)
            scores = self.score(images, texts) if kept is None else kept
            for side, pairs, more in _count_block(scores, floors, (self.plans[0][i], self.plans[1][j])):
                counts[side][pairs] += more.long().cpu().numpy()
        return [scores.cpu().numpy() for scores in floors], counts


class _Plan:
    """Which scores the lines of a block are compared with: first those that every line has, the k-th of each line at a
    time, then the further ones of lines with more, `WIDTH` at a time, ordered so that lines with many are the first.

    The cost of counting is thereby that of the pairs there are, not of the longest list times the number of queries.
    """

    def __init__(self, query: np.ndarray, cut: slice) -> None:
        low, high = np.searchsorted(query, [cut.start, cut.stop])  # `query` is ascending
        lines, starts, sizes = np.unique(query[low:high] - cut.start, return_index=True, return_counts=True)
        starts = starts + low
        every = int(sizes.min()) if len(lines) and len(lines) == cut.stop - cut.start else 0
        self.whole = [starts + k for k in range(every)]  # pairs, one a line
        more = np.flatnonzero(sizes > every)
        more = more[np.argsort(-sizes[more], kind="stable")]
        self.rest = lines[more]
        left = sizes[more] - every
        self.partial = []  # (n, k) pairs of the first n lines of the rest; where a line has fewer, its last one again
        for first in range(0, int(left.max(initial=0)), WIDTH):
            count = np.count_nonzero(left > first)
            wanted = np.arange(first, min(first + WIDTH, left[0]))
            self.partial.append((starts[more] + every)[:count, None] + np.minimum(wanted, left[:count, None] - 1))
        self.floors: list[Tensor] = []  # of `partial`
        self.lowest = np.empty(0)  # (n,) floor of each line of the rest

    def take(self, floors: Tensor) -> None:
        """Look up the floors of the rest, once for all blocks of these lines."""
        if not self.floors:
            self.floors = [floors[pairs] for pairs in self.partial]
            self.lowest = self.floors[0].amin(1).cpu().numpy()
            for more in self.floors[1:]:
                self.lowest[: len(more)] = np.minimum(self.lowest[: len(more)], more.amin(1).cpu().numpy())


def _count_block(scores: Tensor, floors: list[Tensor], plans: tuple[_Plan, _Plan]) -> Iterator[Counted]:
    """(side, pairs, how many candidates of the block score at least as much as each)."""
    # As numbers on a CPU: making and adding these is three times as fast as with truths.
    kind = scores.dtype if scores.device.type == "cpu" else torch.bool
    room = scores.new_empty(max(scores.numel(), WIDTH * max(scores.shape)), dtype=kind)
    for side, plan in enumerate(plans):
        for pairs in plan.whole:
            reached = _reached(scores, floors[side][pairs].unsqueeze(1 - side), scores.shape, room)
            yield side, pairs, reached.sum(1 - side)
        if len(plan.rest):
            lines = scores.index_select(side, torch.from_numpy(plan.rest).to(scores.device))
            lines = lines.T.contiguous() if side else lines  # (n, b): these queries alone
            plan.take(floors[side])
            if lines.device.type == "cpu":
                lines = torch.from_numpy(_reaching(lines.numpy(), plan.lowest))
            for pairs, wanted in zip(plan.partial, plan.floors, strict=True):
                step = room.numel() // max(1, pairs.shape[1] * lines.shape[1])
                for start in range(0, len(pairs), step):
                    chosen = pairs[start : start + step]  # (n, k)
                    shape = torch.Size([*chosen.shape, lines.shape[1]])  # (n, k, b)
                    some = lines[start : start + len(chosen), None]
                    reached = _reached(some, wanted[start : start + len(chosen)].unsqueeze(2), shape, room)
                    yield side, chosen, reached.sum(2)


def _reaching(lines: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """(n, few) the scores of (n, b) lines that reach their line's lowest floor; minus infinity where there are fewer.

    Relevant candidates score high, so these are few. If they are not, the lines as they are.
    """
    at = np.flatnonzero(lines >= lowest[:, None])
    line = at // lines.shape[1]
    sizes = np.bincount(line, minlength=len(lines))
    if sizes.max() > FEW * lines.shape[1]:
        return lines
    found = np.full((len(lines), sizes.max()), -np.inf, lines.dtype)
    found[line, np.arange(len(at)) - (np.cumsum(sizes) - sizes)[line]] = lines.ravel()[at]
    return found


def _reached(scores: Tensor, floors: Tensor, shape: torch.Size, room: Tensor) -> Tensor:
    """Where a score reaches its floor; the next call overwrites it."""
    return torch.ge(scores, floors, out=room[: shape.numel()].view(shape))


def _cuts(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def positive_pairs(image_groups: np.ndarray, text_groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every (image row, text row) of one group, ordered by image, then text; an error where there is none.

    >>> [rows.tolist() for rows in positive_pairs(np.array([7, 3]), np.array([3, 7, 7]))]
    [[0, 0, 1], [1, 2, 0]]
    """
    _, codes = np.unique(np.concatenate([image_groups, text_groups]), return_inverse=True)
    image_codes, text_codes = codes[: len(image_groups)], codes[len(image_groups) :]
    texts_in_group = np.bincount(text_codes, minlength=codes.max(initial=-1) + 1)
    first_text = np.cumsum(texts_in_group) - texts_in_group
    text_order = np.argsort(text_codes, kind="stable")
    repeats = texts_in_group[image_codes]
    pair_image = np.repeat(np.arange(len(image_codes)), repeats)
    if not len(pair_image):
        raise QuintetError("no image shares a group with any text, so there is nothing to rank; check the groups")
    within = np.arange(len(pair_image)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return pair_image, text_order[first_text[image_codes[pair_image]] + within]


def by_text(pair_image: np.ndarray, pair_text: np.ndarray) -> np.ndarray:
    """The order of the pairs by text, then image."""
    return np.lexsort((pair_image, pair_text))


def group_codes(image_groups: Any, text_groups: Any) -> tuple[np.ndarray, np.ndarray]:
    """The groups of both sides as integers; names, as a corpus has them, are numbered over both sides.

    >>> [codes.tolist() for codes in group_codes(["dog", "cat"], ["cat", "cat", "dog"])]
    [[1, 0], [0, 0, 1]]
    """
    images, texts = _row_values(image_groups), _row_values(text_groups)
    if images.dtype.kind == texts.dtype.kind == "U" and images.ndim == texts.ndim == 1:
        _, codes = np.unique(np.concatenate([images, texts]), return_inverse=True)
        images, texts = codes[: len(images)], codes[len(images) :]
    for name, array in (("image_groups", images), ("text_groups", texts)):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise QuintetError(
                f"{name} must be one integer a row, or a name a row on both sides, got {array.dtype} of shape "
                f"{array.shape}"
            )
    return images.astype(np.int64), texts.astype(np.int64)


def _row_values(groups: Any) -> np.ndarray:
    return groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
