from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.codes import Codes
from quintet.scores.cross_attention import bfan_scores

Make = Callable[..., Codes]
Twin = Callable[..., Tensor]

some_lengths = st.lists(st.integers(1, 7), min_size=1, max_size=6)


@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("softmax", [4.0, 20.0])
@pytest.mark.parametrize("focal", ["equal", "prob"])
def test_scores_equal_the_plain_twin(
    make_codes: Make, bfan_twin: Twin, focal: str, softmax: float, slope: float
) -> None:
    images, texts = make_codes([5, 3, 5, 1], seed=1), make_codes([4, 1, 7, 2, 4], seed=2)
    arguments = {"focal": focal, "relu_slope": slope, "lambda_softmax": softmax}
    torch.testing.assert_close(
        bfan_scores(images, texts, **arguments), bfan_twin(images, texts, **arguments), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("budget", [1, None])
@pytest.mark.parametrize("focal", ["equal", "prob"])
def test_gradients_are_those_of_the_plain_twin(
    make_codes: Make, bfan_twin: Twin, focal: str, budget: int | None
) -> None:
    found = []
    for score in (bfan_twin, lambda i, t, **a: bfan_scores(i, t, budget=budget, **a)):
        images, texts = make_codes([4, 2, 4], seed=5), make_codes([3, 1, 6, 3], seed=6)
        for codes in (images, texts):
            codes.fragments.requires_grad_()
        scores = score(images, texts, focal=focal)
        upstream = torch.linspace(-1, 2, scores.numel(), dtype=scores.dtype).view_as(scores)
        found.append(torch.autograd.grad((scores * upstream).sum(), [images.fragments, texts.fragments]))
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("focal", ["equal", "prob"])
def test_gradcheck(make_codes: Make, focal: str, paired: bool) -> None:
    images, texts = make_codes([3, 2], seed=7, dim=3), make_codes([1, 3], seed=8, dim=3)

    def score(regions: Tensor, words: Tensor) -> Tensor:
        pictures, sentences = replace(images, fragments=regions), replace(texts, fragments=words)
        return bfan_scores(pictures, sentences, focal=focal, paired=paired, budget=1)

    regions = images.fragments.nan_to_num(0.3).requires_grad_()
    words = texts.fragments.nan_to_num(0.3).requires_grad_()
    assert torch.autograd.gradcheck(score, (regions, words))


@settings(deadline=None, max_examples=30)
@given(some_lengths, some_lengths, st.integers(1, 20_000), st.sampled_from(["equal", "prob"]))
def test_blocks_and_padding_change_nothing(
    make_codes: Make, image_lengths: list[int], text_lengths: list[int], budget: int, focal: str
) -> None:
    images, texts = make_codes(image_lengths, seed=9), make_codes(text_lengths, seed=10)
    whole = bfan_scores(images, texts, focal=focal)
    assert torch.isfinite(whole).all()
    assert (whole.abs() <= 2 + 1e-9).all()
    torch.testing.assert_close(bfan_scores(images, texts, focal=focal, budget=budget), whole)
    longer = Codes.cat([texts, make_codes([9], seed=11)])[: len(texts)]
    torch.testing.assert_close(bfan_scores(images, longer, focal=focal), whole)
    n = min(len(images), len(texts))
    pairs = bfan_scores(images[:n], texts[:n], focal=focal, paired=True, budget=budget)
    torch.testing.assert_close(pairs, whole[:n, :n].diag())


@pytest.mark.parametrize("focal", ["equal", "prob"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_attention_is_left_as_it_is(make_codes: Make, focal: str, dtype: torch.dtype) -> None:
    """Equal fragments, or one alone: nothing stands out, and the context is the fragment itself."""
    one = make_codes([1, 1], seed=3, dtype=dtype)
    same = Codes(fragments=one.fragments.repeat(1, 7, 1).requires_grad_())
    cosines = one.fragments[:, 0] @ one.fragments[:, 0].T
    for images, texts in ((same, one), (one, same), (same, same), (one, one)):
        scores = bfan_scores(images, texts, focal=focal)
        torch.testing.assert_close(scores, 2 * cosines)
        if scores.requires_grad:
            (grad,) = torch.autograd.grad(scores.sum(), same.fragments)
            assert torch.isfinite(grad).all()


def test_a_wrong_choice_is_named(make_codes: Make) -> None:
    with pytest.raises(ValueError, match="focal must be"):
        bfan_scores(make_codes([2]), make_codes([2]), focal="some")
