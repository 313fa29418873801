from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.models.dual_path import every_shift, place_words, random_starts, shift_counts

TEXTS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=12), min_size=1, max_size=5)


def padded(texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(ids) for ids in texts])
    longest = int(lengths.max())
    tokens = torch.tensor([ids + [7] * (longest - len(ids)) for ids in texts])  # rubbish after the end
    return tokens, lengths


@settings(deadline=None)
@given(TEXTS, st.integers(1, 10), st.data())
def test_words_stand_where_they_should(texts: list[list[int]], places: int, data: st.DataObject) -> None:
    tokens, lengths = padded(texts)
    counts = shift_counts(lengths, places).tolist()
    starts = [data.draw(st.integers(0, count - 1)) for count in counts]
    placed = place_words(tokens, lengths, torch.tensor(starts), places).tolist()
    for row, ids, start in zip(placed, texts, starts, strict=True):
        kept = ids[:places]
        assert row == [0] * start + kept + [0] * (places - start - len(kept))


def test_position_shift_is_uniform_over_all_shifts() -> None:
    """A text of 10 words has 23 places in 32, each with the same probability; one of 32 has one."""
    chances = torch.rand(46_000, generator=torch.Generator().manual_seed(0))
    starts = random_starts(chances, torch.full((46_000,), 10), 32)
    counts = torch.bincount(starts, minlength=23)
    assert len(counts) == 23
    chi_square = ((counts - 2000).square() / 2000.0).sum()
    assert chi_square < 48.3  # the 99.9 % point with 22 degrees of freedom
    assert not random_starts(chances, torch.full((46_000,), 32), 32).any()
    assert not random_starts(chances, torch.full((46_000,), 50), 32).any()


def test_the_largest_chance_stays_inside() -> None:
    almost_one = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    for places in (3, 32, 56):
        assert int(random_starts(almost_one[None], torch.tensor([1]), places)) == places - 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 10))
def test_every_shift_is_every_shift(lengths: list[int], places: int) -> None:
    rows, starts = every_shift(torch.tensor(lengths), places)
    expected = [(row, start) for row, length in enumerate(lengths) for start in range(places - min(length, places) + 1)]
    assert list(zip(rows.tolist(), starts.tolist(), strict=True)) == expected
