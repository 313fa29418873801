from __future__ import annotations

import pytest
import torch

from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch


def test_from_ids_pads_to_the_longest() -> None:
    batch = TextBatch.from_ids([[1, 5, 2], [1, 2], [7]])
    assert batch.tokens.tolist() == [[1, 5, 2], [1, 2, 0], [7, 0, 0]]
    assert batch.lengths.tolist() == [3, 2, 1]
    assert batch.real().tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    assert len(batch) == 3


def test_from_ids_of_nothing() -> None:
    assert len(TextBatch.from_ids([])) == 0


def test_lengths_may_be_a_plain_list() -> None:
    batch = TextBatch(torch.ones(2, 3, dtype=torch.int64), [3, 1])  # type: ignore[arg-type]
    assert batch.lengths.tolist() == [3, 1]


@pytest.mark.parametrize("lengths", [[0, 2], [1, 4], [2], [-1, 1]])
def test_impossible_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        TextBatch(torch.ones(2, 3, dtype=torch.int64), torch.tensor(lengths))


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.\."):
        TextBatch.from_ids([[1, 2], []])


def test_tokens_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(n, L\)"):
        TextBatch(torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64))


def test_images_hold_fragments_or_pixels() -> None:
    fragments, pixels = torch.zeros(2, 5, 8), torch.zeros(2, 3, 4, 4)
    assert len(ImageBatch(fragments=fragments)) == len(ImageBatch(pixels=pixels)) == 2
    for arguments in ({}, {"fragments": fragments, "pixels": pixels}):
        with pytest.raises(ValueError, match="either fragments or pixels"):
            ImageBatch(**arguments)
    with pytest.raises(ValueError, match=r"\(n, L, d\)"):
        ImageBatch(fragments=torch.zeros(2, 8))
    with pytest.raises(ValueError, match=r"\(n, 3, height, width\)"):
        ImageBatch(pixels=torch.zeros(2, 3, 4))


def test_real_fragments_with_and_without_a_mask() -> None:
    fragments = torch.zeros(2, 3, 8)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    assert ImageBatch(fragments=fragments).real().all()
    assert ImageBatch(fragments=fragments, mask=mask).real() is mask
    with pytest.raises(ValueError, match="pixels"):
        ImageBatch(pixels=torch.zeros(1, 3, 4, 4)).real()


def test_a_pair_batch_moves_with_all_its_parts() -> None:
    rows = torch.arange(2)
    images = ImageBatch(fragments=torch.zeros(2, 3, 8), mask=torch.ones(2, 3, dtype=torch.bool))
    pairs = PairBatch(images, TextBatch.from_ids([[1, 2], [1]]), rows, rows, rows, rows)
    moved = pairs.to("meta")
    assert len(moved) == 2
    assert moved.images.fragments is not None
    assert moved.images.mask is not None
    tensors = (moved.images.fragments, moved.images.mask, moved.texts.tokens, moved.texts.lengths, moved.image_groups)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.images.boxes is None
    assert pairs.image_rows.device.type == "cpu"


def test_some_texts_of_a_batch() -> None:
    whole = TextBatch(torch.tensor([[4, 5], [6, 0], [7, 8]]), torch.tensor([2, 1, 2]), position_noise=torch.rand(3))
    assert whole.position_noise is not None
    for rows in (torch.tensor([2, 1]), slice(1, 3)):
        part = whole.take(rows)
        assert part.position_noise is not None
        assert torch.equal(part.tokens, whole.tokens[rows])
        assert torch.equal(part.position_noise, whole.position_noise[rows])
        assert part.features is None
    with pytest.raises(ValueError, match="position_noise of shape"):
        TextBatch(whole.tokens, whole.lengths, position_noise=torch.rand(2))


def test_more_padding_changes_no_text() -> None:
    batch = TextBatch(torch.tensor([[4, 5], [6, 9]]), torch.tensor([2, 1]), features=torch.ones(2, 2, 3))
    wide = batch.padded_to(4, pad=9)
    assert wide.tokens.tolist() == [[4, 5, 9, 9], [6, 9, 9, 9]]
    assert torch.equal(wide.lengths, batch.lengths)
    assert wide.features is not None
    assert wide.features.sum(dim=(1, 2)).tolist() == [6.0, 6.0], "features of padding are zero"


def test_batches_of_texts_are_joined_at_the_longest() -> None:
    first, second = TextBatch.from_ids([[4, 5, 6]]), TextBatch.from_ids([[7], [8, 9]])
    joined = TextBatch.cat([first, second])
    assert joined.tokens.tolist() == [[4, 5, 6], [7, 0, 0], [8, 9, 0]]
    assert joined.lengths.tolist() == [3, 1, 2]


def test_batches_of_images_are_joined_with_a_mask_where_any_has_one() -> None:
    whole = ImageBatch(fragments=torch.ones(1, 2, 3))
    partly = ImageBatch(fragments=torch.zeros(2, 2, 3), mask=torch.tensor([[True, False], [True, True]]))
    assert ImageBatch.cat([whole, whole]).mask is None
    joined = ImageBatch.cat([whole, partly])
    assert joined.real().tolist() == [[True, True], [True, False], [True, True]]
    assert len(ImageBatch.cat([ImageBatch(pixels=torch.zeros(2, 3, 4, 4))] * 2)) == 4
    with pytest.raises(ValueError, match="the same things"):
        ImageBatch.cat([whole, ImageBatch(pixels=torch.zeros(1, 3, 4, 4))])


def test_a_batch_and_its_offline_negatives_get_one_length() -> None:
    images, rows = ImageBatch(fragments=torch.ones(1, 2, 3)), torch.zeros(1, dtype=torch.int64)
    texts = [TextBatch.from_ids([[4] * length]) for length in (2, 5, 3)]
    offline = OfflineBatch(texts=texts[1], images=images, derived_images=images, derived_texts=texts[2])
    batch = PairBatch(images, texts[0], rows, rows, rows, rows, offline=offline).of_one_length(pad=1)
    assert batch.offline is not None
    assert batch.texts.tokens.tolist() == [[4, 4, 1, 1, 1]]
    assert batch.offline.texts.tokens.shape == batch.offline.derived_texts.tokens.shape == (1, 5)
