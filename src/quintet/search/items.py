"""What an index is about: images and texts, kept in one SQLite file per generation that is never changed."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from quintet.search.errors import SearchError, StaleIndex, UnknownItem
from quintet.search.stores import Scalar

Kind = Literal["image", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LONGEST = 1_000  # characters of a text that filters see
AT_ONCE = 10_000  # ids in one statement; SQLite allows some 32,000

_SCHEMA = """
CREATE TABLE items (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, root INTEGER, path TEXT, text TEXT, metadata TEXT NOT NULL,
    content TEXT NOT NULL, stamp TEXT NOT NULL, segment INTEGER NOT NULL, row INTEGER NOT NULL
) WITHOUT ROWID;
"""
_COLUMNS = "id, kind, root, path, text, metadata, content, stamp, segment, row"


@dataclass(frozen=True)
class Item:
    """An image or a text of an index. Its id comes from its content, so a file that moves keeps it."""

    id: str
    kind: Kind
    path: str | None = None  # of an image, relative to its root
    root: int | None = None  # which of the index's roots
    text: str | None = None  # of a text
    metadata: dict[str, Scalar] = field(default_factory=dict)

    def facts(self) -> dict[str, Scalar]:
        """What filters look at: the metadata, `kind`, and `path` or `text`."""
        text = None if self.text is None else self.text[:LONGEST]
        named = {"kind": self.kind, "path": self.path, "text": text}
        return self.metadata | {key: value for key, value in named.items() if value is not None}


@dataclass(frozen=True)
class Hit:
    item: Item
    score: float


@dataclass(frozen=True, order=True)
class Place:
    """Where the codes of an item are: a segment of the index, and a row of it."""

    segment: int
    row: int


@dataclass(frozen=True)
class Entry:
    """An item with what only the index needs to know of it."""

    item: Item
    place: Place
    content: str  # checksum of the image file or of the text
    stamp: str  # size and time of change of the file when it was read; the same stamp, the same content


class ItemTable:
    """The items of one generation, for any number of threads."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise StaleIndex(f"{path} is missing; build the index again")
        self._lock = threading.Lock()
        # `immutable`: the file never changes, so SQLite need not lock it and works where nothing may be written.
        self._connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
        )
        try:
            rows = self._connection.execute("SELECT kind, count(*) FROM items GROUP BY kind").fetchall()
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise StaleIndex(f"{path} is damaged ({error}); build the index again") from None
        self.counts: dict[Kind, int] = dict.fromkeys(KINDS, 0) | dict(rows)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def entry(self, item_id: str) -> Entry:
        found = self.entries([item_id])
        if not found:
            raise UnknownItem(f"the index has no item {item_id!r:.80}; it may have been dropped since")
        return found[item_id]

    def entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Those of the ids that the index has."""
        found: dict[str, Entry] = {}
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            marks = ",".join("?" * len(some))
            with self._lock:
                rows = self._connection.execute(f"SELECT {_COLUMNS} FROM items WHERE id IN ({marks})", some).fetchall()
            found |= {row[0]: _entry(row) for row in rows}
        return found

    def all(self, kind: Kind | None = None) -> Iterator[Entry]:
        """Every item, in the order of ids."""
        where, values = ("WHERE kind = ?", (kind,)) if kind else ("", ())
        with self._lock:
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM items {where} ORDER BY id", values).fetchall()
        return map(_entry, rows)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def write_items(path: Path, entries: Iterable[Entry]) -> None:
    """A new table; the caller makes it appear in its place when it is whole."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(_SCHEMA)
            connection.executemany(f"INSERT INTO items VALUES ({','.join('?' * 10)})", map(_row, entries))
            connection.commit()
    except sqlite3.Error as error:  # a full disk, say
        raise SearchError(f"could not write {path}: {error}; the index is as it was") from error


def _row(entry: Entry) -> tuple[object, ...]:
    item, place = entry.item, entry.place
    metadata = json.dumps(item.metadata, ensure_ascii=False)
    named = (item.id, item.kind, item.root, item.path, item.text, metadata)
    return (*named, entry.content, entry.stamp, place.segment, place.row)


def _entry(row: Sequence[object]) -> Entry:
    id_, kind, root, path, text, metadata, content, stamp, segment, place = row
    item = Item(id_, kind, path, root, text, json.loads(metadata))  # type: ignore[arg-type]
    return Entry(item, Place(segment, place), content, stamp)  # type: ignore[arg-type]
