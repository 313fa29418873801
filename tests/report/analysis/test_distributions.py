"""Histograms of right and wrong pairs, and the overlap S of Eq. 10."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Image, Text
from quintet.errors import QuintetError
from quintet.evaluation.scoring import Member
from quintet.models.vse import build_vse
from quintet.report.analysis import Options, Subject, analyse
from quintet.report.analysis.distributions import Similarities, count_similarities, overlap, split_similarities


def count(scores: object, images: list[int], texts: list[int], **options: object) -> Similarities:
    matrix = torch.as_tensor(scores)
    return count_similarities(lambda rows, columns: matrix[rows, columns], images, texts, **options)  # type: ignore[arg-type]


def test_hand_computed() -> None:
    # Four bins of width 0.5. Right: 0.7, 0.1. Wrong: 0.2, -0.3. They share the bin [0, 0.5): half of each.
    found = count([[0.7, 0.2], [-0.3, 0.1]], [0, 1], [0, 1], bins=4)
    assert found.edges.tolist() == [-1, -0.5, 0, 0.5, 1]
    assert found.positive.tolist() == [0, 0, 1, 1]
    assert found.negative.tolist() == [0, 1, 1, 0]
    assert [density.tolist() for density in found.densities] == [[0, 0, 1, 1], [0, 1, 1, 0]]
    assert found.overlap == pytest.approx(0.5)
    assert found.positive_mean == pytest.approx(0.4)
    assert found.positive_std == pytest.approx(0.3)
    assert found.negative_mean == pytest.approx(-0.05)


def test_unequal_numbers_of_pairs_weigh_alike() -> None:
    # Right: 0.9, 0.9, 0.1, 0.1 and wrong: 0.1 four times: min(P, Q) holds half of the right ones.
    found = count([[0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1]], [0, 1], [0, 0, 0, 0], bins=2)
    assert found.overlap == pytest.approx(1.0)  # both bins are [-1, 0) and [0, 1]: not told apart
    assert count([[0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1]], [0, 1], [0] * 4, bins=4).overlap == pytest.approx(0.5)


@pytest.mark.parametrize(("positive", "expected"), [(0.9, 0.0), (-0.9, 1.0)])
def test_apart_is_zero_and_together_is_one(positive: float, expected: float) -> None:
    scores = torch.full((4, 4), -0.9) + (positive + 0.9) * torch.eye(4)
    assert count(scores, [0, 1, 2, 3], [0, 1, 2, 3]).overlap == pytest.approx(expected)


def test_against_the_integral_of_two_triangles() -> None:
    edges = np.linspace(0, 2, 2001)
    middle = (edges[1:] + edges[:-1]) / 2
    rising, falling = middle / 2, 1 - middle / 2  # they cross at 1, where both are 1/2: S is 2 * 1/4
    assert overlap(edges, rising, falling) == pytest.approx(0.5, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.sampled_from([1.0, 30.0]))
def test_blocks_change_nothing_and_numpy_agrees(rows: int, columns: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    scores = (scale * np.tanh(rng.normal(size=(8, 12)))).astype(np.float32)
    images, texts = np.arange(8) // 2, np.arange(12) // 3
    found = count(scores, images.tolist(), texts.tolist(), bins=16, block=(rows, columns))
    right = images[:, None] == texts
    span = (-1.0, 1.0) if scale == 1.0 else (float(scores.min()), float(scores.max()))
    assert (found.edges[0], found.edges[-1]) == pytest.approx(span)
    for counts, chosen, mean in (
        (found.positive, right, found.positive_mean),
        (found.negative, ~right, found.negative_mean),
    ):
        expected, _ = np.histogram(scores[chosen].astype(np.float64), np.linspace(*span, 17))
        assert counts.tolist() == expected.tolist()
        assert mean == pytest.approx(float(scores[chosen].astype(np.float64).mean()), rel=1e-6, abs=1e-7)


def test_a_cosine_rounded_past_one_is_still_a_cosine() -> None:
    found = count([[1.00001, 0.0], [0.0, 1.0]], [0, 1], [0, 1], bins=2)
    assert (found.edges[0], found.edges[-1]) == (-1, 1)
    assert found.positive.tolist() == [0, 2]


def test_a_matcher_is_scored_as_it_scores() -> None:
    images = [Image(f"i{g}", str(g)) for g in range(5)]
    texts = [Text(f"t{g}-{k}", str(g), "word") for g in range(5) for k in range(2)]
    split = Corpus("small", images, texts, {"test": [str(g) for g in range(5)]}).split("test")
    matcher = build_vse(vocabulary_size=10, image_dim=8, embed_dim=4, word_dim=4).train()
    torch.manual_seed(0)
    codes = [Codes(embedding=torch.nn.functional.normalize(torch.randn(n, 4))) for n in (5, 10)]
    found = split_similarities([Member(matcher, *codes)], split, bins=20)
    expected = count(matcher.score(*codes), split.image_groups.tolist(), split.text_groups.tolist(), bins=20)
    assert found.to_json()["S"] == pytest.approx(expected.overlap)
    assert found.positive.tolist() == expected.positive.tolist()
    assert matcher.training


def test_mistakes_are_explained() -> None:
    with pytest.raises(QuintetError, match="NaN"):
        count([[float("nan"), 0.1]], [0], [0, 1])
    with pytest.raises(QuintetError, match="positive and one negative"):
        count([[0.5]], [0], [0])


def test_distributions_are_those_of_the_scores(
    subjects: list[Subject], tmp_path: Path, few: Options, whole_scores: Callable[[Subject], np.ndarray]
) -> None:
    found = analyse(subjects, tmp_path, ["distributions"], options=few)["distributions"]["runs"]
    for subject in subjects:
        scores = whole_scores(subject)
        positive = subject.split.image_groups[:, None] == subject.split.text_groups
        assert found[subject.label]["positive"]["mean"] == pytest.approx(float(scores[positive].mean()), abs=1e-6)
        assert found[subject.label]["negative"]["pairs"] == (~positive).sum()
        p, _ = np.histogram(scores[positive], np.linspace(-1, 1, 201))
        q, _ = np.histogram(scores[~positive], np.linspace(-1, 1, 201))
        assert found[subject.label]["S"] == pytest.approx(np.minimum(p / p.sum(), q / q.sum()).sum())
