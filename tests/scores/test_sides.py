from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.codes import Codes
from quintet.scores.blocks import Side


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
