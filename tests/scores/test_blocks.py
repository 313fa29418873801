from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.codes import Codes
from quintet.scores import cross_attention
from quintet.scores.blocks import score_all, score_rows, score_whole
from quintet.scores.cross_attention import cosines_by, scan_scores

Make = Callable[..., Codes]


class Recorder:
    """A block score that is the sum of the products, and remembers the sizes it was asked for."""

    def __init__(self, paired: bool = False) -> None:
        self.paired = paired
        self.sizes: list[tuple[int, int, int, int]] = []

    def __call__(self, images: Tensor, image_mask: Tensor | None, texts: Tensor, text_mask: Tensor | None) -> Tensor:
        self.sizes.append((*images.shape[:2], *texts.shape[:2]))
        if self.paired:
            return (images.sum(dim=1) * texts.sum(dim=1)).sum(dim=1)
        return images.sum(dim=1) @ texts.sum(dim=1).T


@pytest.mark.parametrize("budget", [4 << 10, 64 << 10, 1 << 20])
def test_blocks_keep_to_the_budget_and_are_few(make_codes: Make, budget: int) -> None:
    torch.manual_seed(0)
    images, texts = make_codes([9] * 40, seed=1), make_codes(torch.randint(3, 20, (200,)).tolist(), seed=2)
    recorder = Recorder()
    scores = score_all(recorder, images, texts, copies=(2, 4), budget=budget)
    expected = images.fragments.sum(dim=1) @ texts.fragments.nan_to_num(0).sum(dim=1).T
    torch.testing.assert_close(scores, expected)
    elements = [i * r * t * w for i, r, t, w in recorder.sizes]
    smallest = 9 * 19  # one pair is the least there is
    assert max(elements) <= max(budget // (2 * 8), smallest)
    real = 9 * 40 * int(texts.mask.sum())
    assert sum(elements) <= 1.25 * real  # padding costs at most a quarter
    if budget >= 64 << 10:
        assert len(recorder.sizes) <= 2 * real * 2 * 8 / budget + 12  # about as few blocks as the budget allows


def test_pairs_are_scored_without_the_other_pairs(make_codes: Make) -> None:
    images, texts = make_codes([4, 2, 3, 1, 4], seed=3), make_codes([2, 5, 1, 5, 2], seed=4)
    recorder = Recorder(paired=True)
    scores = score_rows(recorder, images, texts, copies=(1, 1), budget=2000)
    both = [codes.fragments.nan_to_num(0).sum(dim=1) for codes in (images, texts)]
    torch.testing.assert_close(scores, (both[0] * both[1]).sum(dim=1))
    assert sum(size[0] for size in recorder.sizes) == 5
    assert len(recorder.sizes) > 1


def test_training_keeps_little_for_the_backward_pass(make_codes: Make) -> None:
    """At least five times less than a loop over captions, which keeps a query and a context a word and image."""
    n, regions, words, dim = 24, 9, 6, 256
    images = make_codes([regions] * n, seed=5, dim=dim, dtype=torch.float32)
    texts = make_codes([words] * n, seed=6, dim=dim, dtype=torch.float32)
    images.fragments.requires_grad_()
    texts.fragments.requires_grad_()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    for budget in (None, 500_000):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            scores = scan_scores(images, texts, budget=budget)
        assert sum(kept.values()) < 2 * n * n * words * dim * 4 / 5
        scores.sum().backward()
    # With several blocks nothing but the fragments is kept.
    assert sum(kept.values()) <= 2 * (images.fragments.nbytes + texts.fragments.nbytes)


def test_frozen_sides_need_no_gradient(make_codes: Make) -> None:
    images, texts = make_codes([3, 2, 3], seed=7), make_codes([2, 4], seed=8)
    texts.fragments.requires_grad_()
    scores = scan_scores(images, texts, budget=1)
    (grad,) = torch.autograd.grad(scores.sum(), texts.fragments)
    (again,) = torch.autograd.grad(scan_scores(images, texts).sum(), texts.fragments)
    torch.testing.assert_close(grad, again)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("paired", [False, True])
def test_one_block_with_all_its_padding_gives_the_same(make_codes: Make, direction: str, paired: bool) -> None:
    """What a GPU does with a batch that fits, so that nothing has to wait for the lengths."""
    images, texts = make_codes([4, 2, 3, 1, 4], seed=3), make_codes([2, 5, 1, 5, 2], seed=4)
    settings = {"direction": direction, "paired": paired, "relu_slope": 0.1}
    found = []
    for way in ("by length", "whole"):
        for codes in (images, texts):
            codes.fragments.requires_grad_().grad = None
        if way == "whole":
            block = partial(cross_attention._scan_block, **scan_block_arguments(direction, paired))
            scores = score_whole(block, images, texts)
        else:
            scores = scan_scores(images, texts, **settings)
        grads = torch.autograd.grad(scores.square().sum(), [images.fragments, texts.fragments])
        found.append([scores, *(grad.nan_to_num(0) for grad in grads)])
    for by_length, whole in zip(*found, strict=True):
        torch.testing.assert_close(whole, by_length)


def scan_block_arguments(direction: str, paired: bool) -> dict[str, Any]:
    attend = cosines_by("torch", norm="clipped_l2norm", relu_slope=0.1, temperature=9.0)
    rest = {"aggregation": "lse", "lambda_lse": 6.0, "precision": "float32"}
    return {"attend": attend, "direction": direction, "paired": paired, **rest}
