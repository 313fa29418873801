from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.codes import Codes
from quintet.errors import QuintetError


def fragments_of(lengths: list[int], dim: int = 3, boxes: bool = True) -> Codes:
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return Codes(
        fragments=torch.randn(len(lengths), longest, dim) * mask[..., None],
        mask=mask,
        boxes=torch.rand(len(lengths), longest, 4) * mask[..., None] if boxes else None,
    )


def same(first: Codes, second: Codes) -> bool:
    one, two = first.tensors(), second.tensors()
    return one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def test_codes_hold_something_and_one_row_for_each_item() -> None:
    with pytest.raises(ValueError, match="embedding or fragments"):
        Codes()
    with pytest.raises(ValueError, match="one row per item"):
        Codes(embedding=torch.zeros(2, 3), fragments=torch.zeros(3, 4, 3))


def test_indexing() -> None:
    codes = fragments_of([2, 4, 1])
    assert codes.fragments is not None
    for index in (0, 2, -1, -3):
        one = codes[index]
        assert len(one) == 1
        assert one.fragments is not None
        assert one.fragments[0].equal(codes.fragments[index])
    assert len(codes[1:]) == 2
    assert same(codes[[2, 0]], codes[torch.tensor([2, 0])])
    assert same(codes[torch.tensor([True, False, True])], codes[[0, 2]])
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of 3"):
            codes[index]


def test_a_loop_over_codes_ends() -> None:
    codes = Codes(embedding=torch.eye(3))
    assert same(Codes.cat(list(codes)), codes)  # type: ignore[call-overload]  # iteration by index


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4))
def test_joined_rows_are_the_rows(parts: list[list[int]]) -> None:
    codes = [fragments_of(lengths) for lengths in parts]
    joined = Codes.cat(codes)
    assert len(joined) == sum(map(len, parts))
    assert joined.real().sum(dim=1).tolist() == [length for lengths in parts for length in lengths]
    rows = [(part, row) for part in codes for row in range(len(part))]
    for place, (part, row) in enumerate(rows):
        for name in ("fragments", "boxes"):
            ours, theirs = getattr(joined, name)[place], getattr(part, name)[row]
            assert ours[: len(theirs)].equal(theirs)
            assert (ours[len(theirs) :] == 0).all()


def test_joining_without_masks_makes_one_only_where_needed() -> None:
    short, long = Codes(fragments=torch.ones(1, 2, 3)), Codes(fragments=torch.ones(1, 4, 3))
    assert Codes.cat([long, long]).mask is None
    assert Codes.cat([short, long]).real().tolist() == [[True, True, False, False], [True] * 4]


def test_different_kinds_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="different kinds"):
        Codes.cat([Codes(embedding=torch.zeros(1, 3)), fragments_of([2])])
    with pytest.raises(ValueError, match="nothing"):
        Codes.cat([])


def test_casting_leaves_masks_and_boxes() -> None:
    codes = fragments_of([2, 1]).to(dtype=torch.float16)
    assert codes.fragments is not None
    assert codes.boxes is not None
    assert codes.mask is not None
    assert (codes.fragments.dtype, codes.boxes.dtype, codes.mask.dtype) == (torch.float16, torch.float32, torch.bool)
    assert fragments_of([2]).to("meta").device.type == "meta"


def test_detach() -> None:
    codes = Codes(embedding=torch.zeros(2, 3, requires_grad=True))
    detached = codes.detach().embedding
    assert detached is not None
    assert not detached.requires_grad


def test_real_without_a_mask() -> None:
    assert Codes(fragments=torch.zeros(2, 3, 4)).real().all()
    with pytest.raises(ValueError, match="no fragments"):
        Codes(embedding=torch.zeros(2, 3)).real()


def test_padding_fragments() -> None:
    codes = fragments_of([2, 3])
    padded = codes.pad_fragments(5)
    assert padded.fragments is not None
    assert padded.fragments.shape == (2, 5, 3)
    assert padded.real().sum(dim=1).tolist() == [2, 3]
    embedding = Codes(embedding=torch.zeros(2, 3))
    assert embedding.pad_fragments(5) is embedding


@pytest.mark.parametrize("codes", [Codes(embedding=torch.randn(4, 3)), fragments_of([2, 1, 3])])
def test_saved_codes_are_the_same(tmp_path: Path, codes: Codes) -> None:
    codes.save(tmp_path / "codes.safetensors")
    assert same(Codes.load(tmp_path / "codes.safetensors"), codes)


def test_a_view_is_saved_whole(tmp_path: Path) -> None:
    codes = Codes(embedding=torch.randn(3, 4).T, fragments=torch.randn(4, 6, 2)[:, ::2])
    codes.save(tmp_path / "codes.safetensors")
    assert same(Codes.load(tmp_path / "codes.safetensors"), codes)


def test_files_that_are_no_codes(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(QuintetError, match="does not exist"):
        Codes.load(tmp_path / "absent")
    (tmp_path / "broken").write_bytes(b"abc")
    with pytest.raises(QuintetError, match="does not hold Codes"):
        Codes.load(tmp_path / "broken")
    save_file({"weight": torch.zeros(1)}, tmp_path / "weights")
    with pytest.raises(QuintetError, match="does not hold Codes"):
        Codes.load(tmp_path / "weights")
    save_file({}, tmp_path / "nothing")
    with pytest.raises(QuintetError, match="does not hold Codes"):
        Codes.load(tmp_path / "nothing")
