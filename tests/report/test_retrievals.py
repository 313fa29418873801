from __future__ import annotations

import numpy as np
import pytest
import torch

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.evaluation.ranks import Ranks, ranks_of_matrix
from quintet.report.retrievals import Way, choose_examples, choose_failures, retrieve

GROUPS, TEXTS = 8, 3


@pytest.fixture
def split() -> Split:
    images = [Image(f"i{group}", str(group)) for group in range(GROUPS)]
    texts = [Text(f"t{group}-{k}", str(group), "words") for group in range(GROUPS) for k in range(TEXTS)]
    return Corpus("small", images, texts, {"test": [str(group) for group in range(GROUPS)]}).split("test")


@pytest.fixture
def scores() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.integers(0, 4, (GROUPS, GROUPS * TEXTS)).astype(np.float32)  # with many ties


@pytest.fixture
def ranks(scores: np.ndarray, split: Split) -> Ranks:
    return ranks_of_matrix(scores, split.image_groups, split.text_groups)


@pytest.mark.parametrize("way", ["i2t", "t2i"])
def test_candidates_stand_where_the_ranks_say(scores: np.ndarray, split: Split, ranks: Ranks, way: Way) -> None:
    matrix = torch.from_numpy(scores)
    queries = getattr(ranks, way)
    found = retrieve(lambda images, texts: matrix[images, texts], split, ranks, way, queries.rows.tolist(), count=3)
    for retrieval, best in zip(found, queries.best, strict=True):
        own = scores[retrieval.row] if way == "i2t" else scores[:, retrieval.row]
        assert retrieval.best_right == best + 1
        assert [candidate.rank for candidate in retrieval.candidates][:3] == [1, 2, 3]
        assert all(candidate.score == own[candidate.row] for candidate in retrieval.candidates)
        first = next(candidate for candidate in retrieval.candidates if candidate.right)
        assert first.rank == retrieval.best_right
        groups = split.text_groups if way == "i2t" else split.image_groups
        query = split.image_groups if way == "i2t" else split.text_groups
        assert all(c.right == (groups[c.row] == query[retrieval.row]) for c in retrieval.candidates)


def test_failures_are_the_worst_queries_of_different_groups(ranks: Ranks) -> None:
    rows = choose_failures(ranks, "t2i", 4)
    place = {int(row): number for number, row in enumerate(ranks.t2i.rows)}
    found = [int(ranks.t2i.best[place[row]]) for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[0] == ranks.t2i.best.max()
    assert len({int(ranks.t2i.groups[place[row]]) for row in rows}) == len(rows) == 4


def test_queries_that_are_answered_first_are_no_failures(split: Split) -> None:
    right = (split.image_groups[:, None] == split.text_groups[None, :]).astype(np.float32)
    perfect = ranks_of_matrix(right, split.image_groups, split.text_groups)
    assert choose_failures(perfect, "i2t", 5) == []
    assert len(choose_examples(perfect, "i2t", 5)) == 5


def test_examples_are_drawn_by_the_seed_one_a_group(ranks: Ranks) -> None:
    assert choose_examples(ranks, "t2i", 5, seed=1) == choose_examples(ranks, "t2i", 5, seed=1)
    assert choose_examples(ranks, "t2i", 5, seed=1) != choose_examples(ranks, "t2i", 5, seed=2)
    assert len({row // TEXTS for row in choose_examples(ranks, "t2i", 50)}) == GROUPS
