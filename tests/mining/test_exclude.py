from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.mining.exclude import Exclusions, normalise


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("A dog runs.", "a  dog RUNS", True),
        ("a dog, running", "a dog running!", True),
        ("a dog", "a dog .", True),
        ("Straße", "STRASSE", True),
        ("a dog", "a dogs", False),
        ("!!", "??", False),
    ],
)
def test_normalise(one: str, other: str, alike: bool) -> None:
    assert (normalise(one) == normalise(other)) == alike


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), sentences=st.sampled_from([0, 1, 4]), duplicates=st.booleans())
def test_pairs_are_those_of_two_loops(case: Any, seed: int, sentences: int, duplicates: bool) -> None:
    split = case(9, seed, sentences=sentences).split
    owned = {
        group: {normalise(text.text) for text, of in zip(split.texts, split.text_groups, strict=True) if of == group}
        for group in range(len(split.groups))
    }
    expected = {
        (i, t)
        for i, group in enumerate(split.image_groups.tolist())
        for t, of in enumerate(split.text_groups.tolist())
        if group == of or (duplicates and normalise(split.texts[t].text) in owned[group])
    }
    exclusions = Exclusions(split, duplicates)
    rng = np.random.default_rng(seed)
    images = rng.permutation(len(split.images))[: rng.integers(1, len(split.images) + 1)]
    texts = rng.permutation(len(split.texts))[: rng.integers(1, len(split.texts) + 1)]
    found = [(int(images[i]), int(texts[t])) for i, t in zip(*exclusions.inside(images, texts), strict=True)]
    assert len(found) == len(set(found))
    assert set(found) == {(i, t) for i, t in expected if i in images and t in texts}
    counts = exclusions.counts()
    positives = set(zip(*(rows.tolist() for rows in exclusions.positives()), strict=True))
    assert positives == {(i, t) for i, t in expected if split.image_groups[i] == split.text_groups[t]}
    assert counts == {"positive_pairs": len(positives), "duplicate_sentence_pairs": len(expected) - len(positives)}


def test_an_empty_block_has_no_pairs(case: Any) -> None:
    split = case(3, 0).split
    rows, columns = Exclusions(split).inside(np.array([], dtype=np.int64), np.arange(2))
    assert len(rows) == len(columns) == 0
