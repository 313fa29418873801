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
Steps = list[tuple[Tensor | None, Tensor]]  # (lines of the block or None for all, their positives)
BLOCK = (1024, 1024)
KEEP = 2**26  # scores of blocks with positives that are kept for the counting pass: 256 MiB instead of scoring twice


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
    deterministic. Memory is that of one block, the blocks kept and the positive pairs, however large the matrix.
    A query whose group has no item of the other modality is left out and counted (`Queries.excluded`); it is still a
    candidate, and a negative of every query.
    """
    image_groups, text_groups = group_codes(image_groups, text_groups)
    sizes = (block, block) if isinstance(block, int) else block
    if min(sizes) < 1:
        raise QuintetError(f"blocks must hold at least one image and one text, got {sizes}")
    pair_image, pair_text = positive_pairs(image_groups, text_groups)
    grid = _Grid(score_block, len(image_groups), len(text_groups), sizes, pair_image, pair_text)
    pair_i2t, pair_t2i = grid.count(grid.collect())
    return Ranks(image_groups, text_groups, pair_image, pair_text, pair_i2t, pair_t2i)


class _Grid:
    """The blocks of one score matrix and which positive pairs lie in which."""

    def __init__(
        self,
        score_block: ScoreBlock,
        images: int,
        texts: int,
        sizes: tuple[int, int],
        pair_image: np.ndarray,
        pair_text: np.ndarray,
    ) -> None:
        self.score_block = score_block
        self.rows, self.columns = _cuts(images, sizes[0]), _cuts(texts, sizes[1])
        self.pair_image, self.pair_text = pair_image, pair_text
        block_of = pair_image // sizes[0] * len(self.columns) + pair_text // sizes[1]
        order = np.argsort(block_of, kind="stable")
        blocks, starts = np.unique(block_of[order], return_index=True)
        self.kept: dict[tuple[int, int], Tensor] = {}
        self.pairs_of_block = dict(zip(blocks.tolist(), np.split(order, starts[1:]), strict=True))

    def blocks(self) -> Iterator[tuple[int, int, slice, slice, np.ndarray | None]]:
        for i, images in enumerate(self.rows):
            for j, texts in enumerate(self.columns):
                yield i, j, images, texts, self.pairs_of_block.get(i * len(self.columns) + j)

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
        """(P,) the scores of the positive pairs."""
        found: Tensor | None = None
        room = KEEP
        for i, j, images, texts, pairs in self.blocks():
            if pairs is not None:
                scores = self.score(images, texts)
                if scores.numel() <= room:
                    room -= scores.numel()
                    self.kept[i, j] = scores
                if found is None:
                    found = scores.new_empty(len(self.pair_image))
                row, column = self._inside(pairs, images, texts, scores.device)
                found[torch.from_numpy(pairs).to(scores.device)] = scores[row, column]
        assert found is not None  # `positive_pairs` refuses to find none
        return found

    def count(self, positive: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The ranks of every positive pair in both directions, from one pass over the blocks."""
        above_i2t = torch.zeros(len(positive), dtype=torch.int64, device=positive.device)
        above_t2i = above_i2t.clone()
        text_order = by_text(self.pair_image, self.pair_text)
        of_rows = _steps(self.pair_image, np.arange(len(self.pair_image)), self.rows, positive.device)
        of_columns = _steps(self.pair_text[text_order], text_order, self.columns, positive.device)
        for i, j, images, texts, pairs in self.blocks():
            kept = self.kept.pop((i, j), None)
            scores = self.score(images, texts) if kept is None else kept
            if pairs is not None:
                scores = scores.clone()  # it may be a view of the caller's matrix
                # Positives become NaN, which is never >= anything: only negatives are counted.
                scores[self._inside(pairs, images, texts, scores.device)] = torch.nan
            for rows, of_pair in of_rows[i]:
                lines = scores if rows is None else scores[rows]
                above_i2t[of_pair] += (lines >= positive[of_pair][:, None]).sum(1, dtype=torch.int32)  # (a,)
            for columns, of_pair in of_columns[j]:
                lines = scores if columns is None else scores[:, columns]
                above_t2i[of_pair] += (lines >= positive[of_pair]).sum(0, dtype=torch.int32)  # (b,)
        return above_i2t.cpu().numpy(), above_t2i.cpu().numpy()

    def _inside(self, pairs: np.ndarray, images: slice, texts: slice, device: torch.device) -> tuple[Tensor, Tensor]:
        row = torch.from_numpy(self.pair_image[pairs] - images.start)
        column = torch.from_numpy(self.pair_text[pairs] - texts.start)
        return row.to(device), column.to(device)


def _steps(query: np.ndarray, pair: np.ndarray, cuts: Sequence[slice], device: torch.device) -> list[Steps]:
    """For each block of queries: its first positives, then its second ones, and so on, as long as some query has one.

    `query` is ascending; `pair` says which positive pair each entry is. The cost of counting is thereby that of the
    positives there are, not of the longest list times the number of queries.
    """
    steps: list[Steps] = []
    for cut in cuts:
        low, high = np.searchsorted(query, [cut.start, cut.stop])
        rows, positives = np.unique(query[low:high], return_counts=True)
        starts = low + np.cumsum(positives) - positives
        block: Steps = []
        for k in range(positives.max(initial=0)):
            more = positives > k
            lines = rows[more] - cut.start
            everything = len(lines) == cut.stop - cut.start
            of_pair = torch.from_numpy(pair[starts[more] + k]).to(device)
            block.append((None if everything else torch.from_numpy(lines).to(device), of_pair))
        steps.append(block)
    return steps


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
