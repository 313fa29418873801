"""Metadata by field, in arrays: quick to filter, small in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quintet.search.stores.strings import Strings
from quintet.search.stores.where import COMPARE, Clause, Scalar, kind_of

ABSENT, BOOLEAN, INTEGER, FLOAT, TEXT = range(5)
PARTS = ("kinds", "values", "text", "ends")  # the arrays of a column


@dataclass(frozen=True)
class Column:
    """One field of n items. Every number that a store takes is a double; a text is its place among `strings`."""

    kinds: np.ndarray  # (n,) int8
    values: np.ndarray  # (n,) float64
    strings: Strings  # each once

    @staticmethod
    def build(values: Sequence[Scalar | None]) -> Column:
        places: dict[str, int] = {}
        kinds, numbers = np.zeros(len(values), dtype=np.int8), np.zeros(len(values))
        for row, value in enumerate(values):
            if value is not None:
                kinds[row] = _stored_kind(value)
                numbers[row] = places.setdefault(value, len(places)) if isinstance(value, str) else value
        return Column(kinds, numbers, Strings.pack(places))

    @staticmethod
    def absent(n: int) -> Column:
        return Column(np.zeros(n, dtype=np.int8), np.zeros(n), Strings.pack([]))

    def arrays(self) -> dict[str, np.ndarray]:
        return dict(zip(PARTS, (self.kinds, self.values, self.strings.text, self.strings.ends), strict=True))

    @staticmethod
    def of(arrays: Mapping[str, np.ndarray]) -> Column:
        return Column(arrays["kinds"], arrays["values"], Strings(arrays["text"], arrays["ends"]))

    def join(self, other: Column) -> Column:
        """This column's items, then the other's."""
        places = {text: place for place, text in enumerate(self.strings.tolist())}
        theirs = np.array([places.setdefault(text, len(places)) for text in other.strings.tolist()], dtype=np.float64)
        values, texts = other.values.copy(), other.kinds == TEXT
        values[texts] = theirs[values[texts].astype(np.int64)]
        strings = self.strings if len(places) == len(self.strings) else Strings.pack(places)
        return Column(np.concatenate([self.kinds, other.kinds]), np.concatenate([self.values, values]), strings)

    def take(self, rows: np.ndarray) -> Column:
        """Some items, in the order given; strings that nobody uses are dropped."""
        kinds, values = self.kinds[rows], self.values[rows]
        texts = kinds == TEXT
        used, places = np.unique(values[texts].astype(np.int64), return_inverse=True)
        if len(used) == len(self.strings):
            return Column(kinds, values, self.strings)
        values[texts] = places
        return Column(kinds, values, Strings.pack(self.strings[int(place)] for place in used))

    def get(self, row: int) -> Scalar | None:
        kind, value = int(self.kinds[row]), float(self.values[row])
        if kind == TEXT:
            return self.strings[int(value)]
        return None if kind == ABSENT else {BOOLEAN: bool, INTEGER: int, FLOAT: float}[kind](value)

    def select(self, clause: Clause) -> np.ndarray:
        """(n,) bool: the items of which the clause holds, as `clause.holds` says of each."""
        chosen = np.zeros(len(self.kinds), dtype=bool)
        for reading in clause.readings:
            if kind_of(reading) is str:
                rows = np.flatnonzero(self.kinds == TEXT)
                holds = np.array([clause.holds(text) for text in self.strings.tolist()], dtype=bool)
                chosen[rows] = holds[self.values[rows].astype(np.int64)]
            else:
                same = (self.kinds == BOOLEAN) if kind_of(reading) is bool else np.isin(self.kinds, (INTEGER, FLOAT))
                chosen |= same & COMPARE[clause.operator](self.values, reading)
        return chosen


def _stored_kind(value: Scalar) -> int:
    if isinstance(value, bool):
        return BOOLEAN
    return TEXT if isinstance(value, str) else INTEGER if isinstance(value, int) else FLOAT
