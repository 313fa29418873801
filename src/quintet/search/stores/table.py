"""Which items a folder store holds: ids in order, the row of each one's vector, metadata. Immutable, one file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from quintet.files import atomic_write
from quintet.search.errors import StoreError
from quintet.search.stores.columns import PARTS, Column
from quintet.search.stores.strings import Strings
from quintet.search.stores.where import Scalar, Where


class Placed(NamedTuple):
    """A new item: where its vector is, and its metadata."""

    row: int
    metadata: Mapping[str, Scalar]


@dataclass(frozen=True)
class Table:
    ids: Strings  # sorted, so that an item's place is also its rank among equals
    rows: np.ndarray  # (n,) int64
    columns: dict[str, Column]

    @staticmethod
    def empty() -> Table:
        return Table(Strings.pack([]), np.zeros(0, dtype=np.int64), {})

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, ids: Iterable[str]) -> np.ndarray:
        """The place of each id, -1 where there is none."""
        return np.array([self._find(id_) for id_ in ids], dtype=np.int64)

    def _find(self, id_: str) -> int:
        place = bisect_left(self.ids, id_)
        return place if place < len(self) and self.ids[place] == id_ else -1

    def metadata(self, place: int) -> dict[str, Scalar]:
        fields = {name: column.get(place) for name, column in self.columns.items()}
        return {name: value for name, value in fields.items() if value is not None}

    def select(self, where: Where) -> np.ndarray:
        """(n,) bool: the items that match."""
        chosen = np.ones(len(self), dtype=bool)
        for clause in where.clauses:
            column = self.columns.get(clause.field)
            chosen &= False if column is None else column.select(clause)
        return chosen

    def merged(self, removed: Iterable[str], added: Mapping[str, Placed]) -> Table:
        """Without some items, then with new ones; an old item of a new one's id gives way."""
        gone = self.find([*removed, *added])
        keep = np.ones(len(self), dtype=bool)
        keep[gone[gone >= 0]] = False
        kept = np.flatnonzero(keep)
        old = self.ids.tolist()
        ids = [old[place] for place in kept] + list(added)
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        rows = np.concatenate([self.rows[kept], np.array([item.row for item in added.values()], dtype=np.int64)])
        names = dict.fromkeys([*self.columns, *(name for item in added.values() for name in item.metadata)])
        columns = {}
        for name in names:
            before = self.columns[name].take(kept) if name in self.columns else Column.absent(len(kept))
            column = before.join(Column.build([item.metadata.get(name) for item in added.values()])).take(order)
            if column.kinds.any():
                columns[name] = column
        return Table(Strings.pack(ids[place] for place in order), rows[order], columns)

    def at_rows(self, rows: np.ndarray) -> Table:
        """The same items, their vectors at other rows."""
        return Table(self.ids, rows, self.columns)

    def save(self, path: Path) -> None:
        arrays = {"rows": self.rows, "ids.text": self.ids.text, "ids.ends": self.ids.ends}
        for name, column in self.columns.items():
            arrays |= {f"field.{name}.{part}": array for part, array in column.arrays().items()}
        try:
            with atomic_write(path) as temporary:
                save_file(arrays, temporary)
        except SafetensorError as error:  # a full disk, say
            raise StoreError(f"could not write {path}: {error}; what was flushed before is unchanged") from error

    @staticmethod
    def load(path: Path) -> Table:
        try:
            arrays = load_file(path)
        except SafetensorError as error:
            raise StoreError(f"{path} is damaged ({error}); make the store again") from None
        names = [name.split(".")[1] for name in arrays if name.endswith(".kinds")]
        columns = {name: Column.of({part: arrays[f"field.{name}.{part}"] for part in PARTS}) for name in names}
        return Table(Strings(arrays["ids.text"], arrays["ids.ends"]), arrays["rows"], columns)


def check_table(table: Table, rows: int, path: Path) -> None:
    """A table and a vector file that do not belong together are found before they are searched."""
    if len(table.ids) != len(table) or (len(table) and not 0 <= table.rows.min() <= table.rows.max() < rows):
        raise StoreError(f"{path} does not fit the vectors beside it ({rows} rows); the folder is damaged")
