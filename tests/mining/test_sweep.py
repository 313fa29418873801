"""The check of the boundary: lists are exact when half precision ties or inverts scores, and only because of it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.codes import Codes
from quintet.data.corpus import Image, Split, Text
from quintet.mining import sweep
from quintet.mining.block_scores import ProductScores
from quintet.mining.mine import mine_codes

TILE = (4, 8)
LEAST = 64 * TILE[0] * TILE[1]


def slack(size: int) -> Any:
    return patch.dict(sweep.SLACK, dict.fromkeys(sweep.SLACK, size))


def room(size: int) -> Any:
    return patch.object(sweep, "ROOM", size)


@settings(max_examples=80, deadline=None)
@given(
    groups=st.integers(2, 14),
    seed=st.integers(0, 10_000),
    tops=st.tuples(st.integers(1, 12), st.integers(1, 8)),
    extra=st.sampled_from([0, 1, 3, 16]),
    spare=st.sampled_from([0, 1, 32]),
    memory=st.sampled_from([LEAST, 5 * LEAST, 2**24]),
    precision=st.sampled_from(["float32", "float16", "bfloat16"]),
    whole_numbers=st.booleans(),
    sentences=st.sampled_from([0, 5]),
    duplicates=st.booleans(),
    margin=st.sampled_from([None, 0.0, 0.3, -0.2]),
)
def test_lists_are_those_of_loops_over_float64_scores(
    case: Any, plain: Any, new_dots: Any, groups: int, seed: int, tops: tuple[int, int], extra: int, spare: int,
    memory: int, precision: Any, whole_numbers: bool, sentences: int, duplicates: bool, margin: float | None,
) -> None:  # fmt: skip
    """With little slack, so that the check fails often. Whole numbers tie; the others are a rounding error apart."""
    it = case(groups, seed, sentences=sentences)
    images, texts = it.images, it.texts
    if not whole_numbers and precision != "float32":  # float32 tiles round differently than float64 sums
        generator = torch.Generator().manual_seed(seed)
        images, texts = (
            Codes(embedding=(part.embedding + 1e-3 * torch.randn(part.embedding.shape, generator=generator)) / 7)
            for part in (images, texts)
        )
    scores = (images.embedding.double() @ texts.embedding.double().T).float().numpy()
    options: dict[str, Any] = {"exclude_duplicates": duplicates, "false_negative_margin": margin}
    options |= {"top_texts": tops[0], "top_images": tops[1]}
    with slack(extra), room(spare):
        found = mine_codes(
            new_dots(), images, texts, it.split, memory=memory, precision=precision, tile=TILE, **options
        )
    expected_texts, expected_images, above = plain(scores.tolist(), it.split, **options)
    assert np.array_equal(found.texts, expected_texts)
    assert np.array_equal(found.images, expected_images)
    sides = ((expected_texts, found.text_scores, scores), (expected_images, found.image_scores, scores.T))
    for rows, values, matrix in sides:
        expected = np.where(rows >= 0, np.take_along_axis(matrix, np.maximum(rows, 0), axis=1), -np.inf)
        assert np.array_equal(values, expected)
    if margin is not None:
        excluded = found.manifest["excluded"]
        assert excluded["texts_above_false_negative_threshold"] == above["texts"]
        assert excluded["images_above_false_negative_threshold"] == above["images"]


def split_of(images: int, texts: int) -> Split:
    names = [str(number) for number in range(images)]
    groups = np.arange(texts) % images
    return Split(
        "train",
        [Image(f"i{name}", name) for name in names],
        [Text(f"t{row}", names[group], f"text {row}") for row, group in enumerate(groups)],
        names,
        np.arange(images),
        groups,
    )


def half_units(precision: str) -> float:
    return torch.finfo(getattr(torch, precision)).eps / 2


def inverted(precision: str) -> tuple[Split, Codes, Codes]:
    """Every other text scores higher by half a unit than its neighbours, but half precision swaps the two kinds.

    With u half a unit in the last place and image (1, 1): the text (1 + u - d, 1 + u - d) is rounded to (1, 1), and
    (1 + u + d, 1) to (1 + 2u, 1).
    """
    u, texts = half_units(precision), 120
    d = u * 0.1 * (1 + torch.arange(texts, dtype=torch.float64)) / texts
    high = torch.stack([1 + u - d, 1 + u - d], dim=1)
    low = torch.stack([1 + u + d, torch.ones(texts, dtype=torch.float64)], dim=1)
    embedding = torch.where(torch.arange(texts)[:, None] % 2 == 0, high, low).float()
    return split_of(10, texts), Codes(embedding=torch.ones(10, 2)), Codes(embedding=embedding)


def tied(precision: str) -> tuple[Split, Codes, Codes]:
    """Scores that differ in float32 and are all the same in half precision."""
    u = half_units(precision)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    texts = torch.stack([1 + u * (order + 1) / 200, torch.ones(120)], dim=1)
    return split_of(10, 120), Codes(embedding=torch.ones(10, 2)), Codes(embedding=texts)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [inverted, tied])
def test_scores_that_rounding_ties_or_inverts(
    plain: Any, dots: Any, precision: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, images, texts = make(precision)
    exact = (images.embedding.double() @ texts.embedding.double().T).float()
    expected, expected_images, _ = plain(exact.tolist(), split, 20, 3)
    options: dict[str, Any] = {"top_texts": 20, "top_images": 3, "precision": precision, "tile": TILE}
    with slack(8):
        found = mine_codes(dots, images, texts, split, **options)
        assert found.manifest["computed"]["scored_again"]["images"] == 10, "no list could be proven"
        assert np.array_equal(found.texts, expected)
        assert np.array_equal(found.images, expected_images)
        monkeypatch.setattr(ProductScores, "at_most", lambda self, scores: scores - 1)
        unchecked = mine_codes(dots, images, texts, split, **options)
        assert unchecked.manifest["computed"]["scored_again"]["images"] == 0
        assert not np.array_equal(unchecked.texts, expected), "without the check the lists are wrong"
        monkeypatch.undo()
    with slack(200):  # the whole corpus
        found = mine_codes(dots, images, texts, split, **options)
        assert found.manifest["computed"]["scored_again"] == {"images": 0, "texts": 0}
        assert np.array_equal(found.texts, expected)


def test_float32_ties_across_the_boundary_are_broken_by_row(plain: Any, dots: Any) -> None:
    split = split_of(10, 400)
    images, texts = Codes(embedding=torch.ones(10, 2)), Codes(embedding=torch.ones(400, 2))
    found = mine_codes(dots, images, texts, split, top_texts=7, top_images=3, tile=TILE)
    expected, expected_images, _ = plain(np.full((10, 400), 2.0).tolist(), split, 7, 3)
    assert found.manifest["computed"]["scored_again"] == {"images": 10, "texts": 0}
    assert np.array_equal(found.texts, expected)
    assert np.array_equal(found.images, expected_images)


def test_few_anchors_of_ordinary_embeddings_are_scored_again(dots: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (
        Codes(embedding=torch.nn.functional.normalize(torch.randn(size, 32, generator=generator)))
        for size in (300, 1500)
    )
    split = split_of(300, 1500)
    for precision in ("float32", "float16"):
        lists = mine_codes(dots, images, texts, split, top_texts=50, top_images=10, precision=precision)  # type: ignore[arg-type]
        again = lists.manifest["computed"]["scored_again"]
        assert again["images"] <= 3
        assert again["texts"] <= 15


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("margin", [0.0, -0.3, -0.99])
def test_hundreds_of_candidates_above_the_cap(plain: Any, dots: Any, precision: Any, margin: float) -> None:
    """As of a matcher that has learnt little: no list of a block has room for all candidates above the cap."""
    generator = torch.Generator().manual_seed(1)
    images, texts = (
        Codes(embedding=torch.nn.functional.normalize(torch.randn(size, 8, generator=generator, dtype=torch.float64)))
        for size in (60, 900)
    )
    images, texts = (codes.map(lambda part: ((64 * part).round() / 64).float()) for codes in (images, texts))
    split = split_of(60, 900)
    exact = (images.embedding.double() @ texts.embedding.double().T).float()  # type: ignore[union-attr]  # no rounding
    options: dict[str, Any] = {"top_texts": 40, "top_images": 7, "false_negative_margin": margin}
    with room(2):
        found = mine_codes(dots, images, texts, split, precision=precision, tile=TILE, **options)
    expected, expected_images, above = plain(exact.tolist(), split, **options)
    assert above["texts"] > 60 * 2 * 3
    assert np.array_equal(found.texts, expected)
    assert np.array_equal(found.images, expected_images)
    excluded = found.manifest["excluded"]
    assert excluded["texts_above_false_negative_threshold"] == above["texts"]
    assert excluded["images_above_false_negative_threshold"] == above["images"]
