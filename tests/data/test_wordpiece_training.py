from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.wordpiece import learn_pieces

WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 5), max_size=12)


def plain_pieces(words: dict[str, int], size: int) -> list[str]:
    """The same rule, everything counted anew at every step."""
    spelled = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    pieces = sorted({piece for parts in spelled.values() for piece in parts})
    while len(pieces) < size:
        pairs = Counter[tuple[str, str]]()
        for word, parts in spelled.items():
            for index in range(len(parts) - 1):
                pairs[parts[index], parts[index + 1]] += words[word]
        if not pairs:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        joined = left + right[2:]
        for parts in spelled.values():
            index = 0
            while index < len(parts) - 1:
                if (parts[index], parts[index + 1]) == (left, right):
                    parts[index : index + 2] = [joined]
                index += 1
        if joined not in pieces:
            pieces.append(joined)
    return pieces


@settings(deadline=None)
@given(WORDS, st.integers(0, 60))
def test_the_same_as_counting_anew_at_every_step(words: dict[str, int], size: int) -> None:
    assert learn_pieces(words, size) == plain_pieces(words, size)


@settings(deadline=None)
@given(WORDS)
def test_with_room_enough_every_word_is_a_piece(words: dict[str, int]) -> None:
    assert set(words) <= set(learn_pieces(words, 10_000))


def test_letters_are_kept_where_there_is_no_room() -> None:
    assert learn_pieces({"dog": 1}, size=0) == ["##g", "##o", "d"]
    assert learn_pieces({}, size=10) == []
