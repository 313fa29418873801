"""Many strings in two arrays: a million paths take their bytes and 8 more each, not a hundred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import overload

import numpy as np


class Strings(Sequence[str]):
    """Immutable; `bisect` works on it.

    >>> names = Strings.pack(["a", "", "ü"])
    >>> names[2], len(names), list(names)
    ('ü', 3, ['a', '', 'ü'])
    """

    def __init__(self, text: np.ndarray, ends: np.ndarray) -> None:
        self.text = text  # (bytes,) uint8: UTF-8, one after the other
        self.ends = ends  # (n + 1,) int64: string i is text[ends[i]:ends[i + 1]]

    @staticmethod
    def pack(strings: Iterable[str]) -> Strings:
        encoded = [string.encode() for string in strings]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return Strings(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return self.text[self.ends[place] : self.ends[place + 1]].tobytes().decode()

    def tolist(self) -> list[str]:
        text, ends = self.text.tobytes(), self.ends.tolist()
        return [text[start:end].decode() for start, end in pairwise(ends)]
