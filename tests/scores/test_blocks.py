from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.codes import Codes
from quintet.scores import cross_attention
from quintet.scores.blocks import Side, score_all, score_rows, score_whole
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


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 12))
def test_groups_hold_every_item_once_with_little_padding(
    make_codes: Callable[..., Codes], lengths: list[int], most: int
) -> None:
    side = Side.of(make_codes(lengths, dim=2))
    groups = side.groups(most)
    assert [group.start for group in groups] == [0, *[group.stop for group in groups[:-1]]]
    assert groups[-1].stop == len(lengths)
    ordered = sorted(lengths)
    for group in groups:
        own = ordered[group.start : group.stop]
        assert len(group) <= most
        assert group.length == max(own)
        assert group.padded == (min(own) < max(own))
        assert group.length * len(group) <= 1.25 * sum(own)
        fragments, mask = side.take(group)
        assert fragments.shape[:2] == (len(own), max(own))
        assert torch.isfinite(fragments).all()
        assert (mask is None) == (not group.padded)


def test_order_is_restored() -> None:
    codes = Codes(fragments=torch.ones(3, 4, 2), mask=torch.arange(4) < torch.tensor([4, 1, 2])[:, None])
    side = Side.of(codes)
    scores = torch.tensor([10.0, 20.0, 40.0])  # of the items of length 1, 2 and 4
    assert side.restore(scores, dim=0).tolist() == [40.0, 10.0, 20.0]
    assert side.arrange(side.restore(scores, dim=0), dim=0).tolist() == scores.tolist()


def test_items_of_one_length_are_not_copied() -> None:
    codes = Codes(fragments=torch.ones(6, 4, 2))
    side = Side.of(codes)
    taken, mask = side.take(side.groups(3)[1])
    assert mask is None
    assert taken.untyped_storage().data_ptr() == codes.fragments.untyped_storage().data_ptr()


def test_large_groups_keep_products_aligned(make_codes: Callable[..., Codes]) -> None:
    side = Side.of(make_codes([7] * 150 + [8] * 150, dim=2))
    assert [len(group) for group in side.groups(100)] == [96, 96, 96, 12]
    assert [len(group) for group in side.groups(20)][:3] == [20, 20, 20]  # too small to matter


def test_groups_without_padding_hold_one_length_each() -> None:
    lengths = [3] * 40 + [2] * 35 + [5]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    side = Side.of(Codes(fragments=torch.zeros(len(lengths), 5, 2), mask=mask))
    groups = side.groups(30, padding=1.0)
    assert not any(group.padded for group in groups)
    assert [(len(group), group.length) for group in groups] == [(30, 2), (5, 2), (30, 3), (10, 3), (1, 5)]
