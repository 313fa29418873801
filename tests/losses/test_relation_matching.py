"""All pairs at once against double loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.losses.relation import match_fragments

K = 4


def unit(x: Tensor, dim: int = -1) -> Tensor:
    return x / (x.square().sum(dim, keepdim=True).sqrt() + 1e-8)


def pair_by_loops(words: Tensor, regions: Tensor, matching: str) -> tuple[list[float], list[float]]:
    """Eq. 7 and 8 for one text (w, d) and one image (r, d): [p, q_1, ..., q_K] of I -> T and of T -> I."""
    if matching != "dot":
        words, regions = unit(words), unit(regions)
    product = words @ regions.T  # (w, r)
    of_word, of_region = product, product
    if matching == "scan":
        leaky = torch.where(product > 0, product, 0.1 * product)
        of_word, of_region = unit(leaky, dim=0), unit(leaky, dim=1)
    best_of_word = [max(float(of_word[w, r]) for r in range(len(regions))) for w in range(len(words))]
    best_of_region = [max(float(of_region[w, r]) for w in range(len(words))) for r in range(len(regions))]
    found = []
    for best in (best_of_region, best_of_word):
        ranked = sorted(best, reverse=True)[:K]
        found.append([sum(best) / len(best), *ranked, *[0.0] * (K - len(ranked))])
    return found[0], found[1]


def sets(lengths: list[int], dim: int, seed: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*mask.shape, dim, generator=generator, dtype=torch.float64), mask


@pytest.mark.parametrize("matching", ["dot", "cosine", "scan"])
@given(
    words=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    regions=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_every_pair_equals_the_loops(matching: str, words: list[int], regions: list[int], seed: int) -> None:
    """Also texts shorter than K, and whatever stands at padding."""
    text, text_mask = sets(words, 5, seed)
    image, image_mask = sets(regions, 5, seed + 100)
    found = match_fragments(text, text_mask, image, image_mask, top=K, matching=matching)  # type: ignore[arg-type]
    assert found.shape == (len(words), len(regions), 2, 1 + K)
    for t in range(len(words)):
        for i in range(len(regions)):
            expected = pair_by_loops(text[t, : words[t]], image[i, : regions[i]], matching)
            torch.testing.assert_close(found[t, i], torch.tensor(expected, dtype=torch.float64))


def test_counting_padding_as_the_released_code_does() -> None:
    """A caption takes max(length, K) rows, all rows of an image count, the mean over words is over true ones."""
    words, word_mask = sets([2, 6], 5, 0)
    regions, region_mask = sets([3, 5], 5, 1)
    found = match_fragments(words, word_mask, regions, region_mask, top=K, matching="scan", count_padding=True)
    for t, length in enumerate([2, 6]):
        caption, taken = unit(words[t, : max(length, K)]), max(length, K)
        for i in range(2):
            product = caption @ unit(regions[i]).T  # (taken, all 5 rows)
            leaky = torch.nn.functional.leaky_relu(product, 0.1)
            row = unit(leaky, dim=0).max(dim=1).values  # (taken,)
            column = unit(leaky, dim=1)[:length].max(dim=0).values  # (5,)
            assert len(row) == taken
            expected_t2i = torch.cat([row[:length].mean()[None], row.topk(K).values])
            expected_i2t = torch.cat([column.mean()[None], column.topk(K).values])
            torch.testing.assert_close(found[t, i, 1], expected_t2i)
            torch.testing.assert_close(found[t, i, 0], expected_i2t)


def test_fewer_tokens_in_the_batch_than_k_is_no_error() -> None:
    words, word_mask = sets([2, 1], 5, 0)
    regions, region_mask = sets([2, 2], 5, 1)
    for count_padding in (False, True):
        found = match_fragments(words, word_mask, regions, region_mask, top=10, count_padding=count_padding)
        assert found.isfinite().all()
        assert not found[..., 3:].any()


def test_gradients_reach_real_fragments_only() -> None:
    words, word_mask = sets([2, 4], 5, 0)
    regions, region_mask = sets([3, 5], 5, 1)
    words.requires_grad_()
    regions.requires_grad_()
    match_fragments(words, word_mask, regions, region_mask, top=K).sum().backward()
    assert words.grad is not None
    assert regions.grad is not None
    assert words.grad[word_mask].any(dim=1).all()
    assert not words.grad[~word_mask].any()
    assert not regions.grad[~region_mask].any()


def test_a_image_without_regions_matches_nothing() -> None:
    words, word_mask = sets([3], 5, 0)
    regions = torch.randn(1, 4, 5, dtype=torch.float64)
    found = match_fragments(words, word_mask, regions, torch.zeros(1, 4, dtype=torch.bool), top=K)
    assert not found.any()
