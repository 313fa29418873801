from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.sampling import epoch_batches
from quintet.errors import CorpusError


def split_of(images: list[int], texts: list[int], own: bool = False) -> Split:
    """Groups with so many images and texts each; with `own`, every text names its group's first image."""
    rows = [Image(f"i{g}.{n}", str(g)) for g, count in enumerate(images) for n in range(count)]
    captions = [
        Text(f"t{g}.{n}", str(g), "a word", f"i{g}.0" if own else None)
        for g, count in enumerate(texts)
        for n in range(count)
    ]
    return Corpus("x", rows, captions, {"train": [str(g) for g in range(len(images))]}).split("train")


COUNTS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=2, max_size=8)


@given(counts=COUNTS, size=st.integers(2, 7), seed=st.integers(0, 99))
def test_an_epoch_visits_every_text_once_with_a_image_of_its_group(
    counts: list[tuple[int, int]], size: int, seed: int
) -> None:
    split = split_of([i for i, _ in counts], [t for _, t in counts])
    batches = epoch_batches(split, size, seed=(seed,))
    pairs = np.concatenate(batches)
    left_out = len(split.texts) - len(pairs)
    assert left_out in (0, 1), "only a last batch of one pair is left out"
    assert len(set(pairs[:, 1])) == len(pairs)
    assert (split.image_groups[pairs[:, 0]] == split.text_groups[pairs[:, 1]]).all()
    assert all(2 <= len(batch) <= size for batch in batches)


@given(counts=COUNTS, seed=st.integers(0, 99))
def test_an_epoch_over_images_visits_every_image_once(counts: list[tuple[int, int]], seed: int) -> None:
    split = split_of([i for i, _ in counts], [t for _, t in counts])
    pairs = np.concatenate(epoch_batches(split, 1000, seed=(seed,), per="images"))
    assert sorted(pairs[:, 0]) == list(range(len(split.images)))
    assert (split.image_groups[pairs[:, 0]] == split.text_groups[pairs[:, 1]]).all()


def test_a_text_with_a_image_of_its_own_keeps_it() -> None:
    split = split_of([3, 3], [2, 2], own=True)
    pairs = np.concatenate(epoch_batches(split, 10, seed=(0,)))
    assert {split.images[image].id for image in pairs[:, 0]} == {"i0.0", "i1.0"}
    per_image = np.concatenate(epoch_batches(split, 10, seed=(0,), per="images"))
    assert {split.images[image].id for image in per_image[:, 0]} == {"i0.0", "i1.0"}, (
        "images without a text are passed over"
    )


def test_the_plan_depends_on_the_seed_alone() -> None:
    split = split_of([1] * 20, [2] * 20)
    first, again, other = (np.concatenate(epoch_batches(split, 8, seed=seed)) for seed in ((1, 2), (1, 2), (1, 3)))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_drop_last_keeps_full_batches_only() -> None:
    split = split_of([1] * 10, [1] * 10)
    assert [len(batch) for batch in epoch_batches(split, 4, seed=(0,))] == [4, 4, 2]
    assert [len(batch) for batch in epoch_batches(split, 4, seed=(0,), drop_last=True)] == [4, 4]


def test_one_pair_is_no_training_set() -> None:
    with pytest.raises(CorpusError, match="at least two"):
        epoch_batches(split_of([1], [1]), 4, seed=(0,))
