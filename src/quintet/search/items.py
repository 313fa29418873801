"""The items of an index, images and texts, in one SQLite database (`items.sqlite`, in WAL mode).

A build changes the database by transactions: a kill leaves the last commit. A reader holds one read transaction from
its opening to its end, so it sees one generation whatever is committed meanwhile, and never waits for the writer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import IO, Any, Literal, NamedTuple, get_args

import numpy as np

from quintet.files import atomic_write
from quintet.search import SearchError, StaleIndex, StoreError, UnknownItem
from quintet.search.stores.where import Clause, Scalar, Where, glob

Facts = dict[str, Scalar]
Kind = Literal["image", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LONGEST = 1_000  # characters of a text that filters see
AT_ONCE = 10_000  # values in one statement; SQLite allows some 32,000
CACHE_KIB = 65_536  # of the database that a connection keeps in memory, as far as it was read
# What sqlite3 raises: also where a message quotes damaged bytes, and where a record cannot be as long as it says.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
RESUMES = "what was committed is unchanged: make room and run the same command again, it resumes"

APPLICATION, SCHEMA = 0x514E5458, 4  # in the head of the file: it is ours, and how its tables are
# The last column of a checked table is the checksum of the others.
CHECKED = ("head", "files", "blocks", "codes", "items")
_TABLES = """
CREATE TABLE IF NOT EXISTS head (name TEXT PRIMARY KEY, value TEXT NOT NULL, sum INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, encoder TEXT NOT NULL, parts TEXT NOT NULL, rows INTEGER NOT NULL,
    norm REAL NOT NULL, sum INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    file TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL, first INTEGER NOT NULL, rows INTEGER NOT NULL,
    checksum INTEGER NOT NULL, sum INTEGER, PRIMARY KEY (file, start, size)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unused (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS codes (
    file TEXT NOT NULL, content TEXT NOT NULL, row INTEGER NOT NULL, facts TEXT NOT NULL, sum INTEGER,
    PRIMARY KEY (file, content)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, root INTEGER, path TEXT, text TEXT, metadata TEXT NOT NULL,
    content TEXT NOT NULL, stamp TEXT NOT NULL, row INTEGER NOT NULL, number INTEGER PRIMARY KEY, sum INTEGER
);
CREATE INDEX IF NOT EXISTS items_by_row ON items (kind, row);
CREATE TABLE IF NOT EXISTS fields (
    field TEXT NOT NULL, value NOT NULL, item INTEGER NOT NULL, PRIMARY KEY (field, value, item)
) WITHOUT ROWID;
"""
_COLUMNS = "id, kind, root, path, text, metadata, content, stamp, row"
# `fields` is what filters search: a row for each field of each item. SQLite sorts numbers before texts before blobs;
# true and false are stored as blobs, so the values of one kind are one range of the primary key.
BOOLEANS = {False: b"\x00", True: b"\x01"}


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
    """An item that was found. `file` is the absolute path of its image file, None for texts; `path` is it as a `Path`.

    `weak`: random words reach such a score, too (`quintet.search.chance`). `duplicates`: the hits that nearly equal it
    and came behind.
    """

    item: Item
    score: float
    file: str | None = None
    weak: bool = False
    duplicates: tuple[Hit, ...] = ()

    @property
    def path(self) -> Path | None:
        return None if self.file is None else Path(self.file)

    @property
    def text(self) -> str | None:
        return self.item.text


class Entry(NamedTuple):
    """An item with what only the index needs to know of it."""

    item: Item
    row: int  # of the files that hold the codes of its kind
    content: str  # checksum of the image file or of the text
    stamp: str  # size and time of change of the file when it was read; the same stamp, the same content


def content_of(data: bytes | IO[bytes]) -> str:
    """The checksum by which an image is known, wherever it lies."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()[:32]
    return hashlib.file_digest(data, "sha256").hexdigest()[:32]  # type: ignore[arg-type]


class ItemDatabase:
    """`items.sqlite`, for any number of threads: opened to read one snapshot, or by the one writer."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, facts: Callable[[Item], Facts], copied: Path | None = None
    ) -> None:
        """Use `open_snapshot` or `open_writer`. `facts`: what filters see of an item."""
        self.path, self._connection, self._facts = path, connection, facts
        self._end = weakref.finalize(self, _end, connection, copied)
        self._same_for_a_kind = set(facts(Item("", "image")))  # not in `fields`
        self._lock = threading.RLock()
        connection.isolation_level = None  # transactions begin and end where this class says
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.create_function("fits", 2, _fits, deterministic=True)

    @classmethod
    def open_snapshot(cls, path: Path, facts: Callable[[Item], Facts] = Item.facts) -> ItemDatabase:
        """Read what was committed up to now, and nothing later."""
        if not path.is_file():
            raise StaleIndex(f"{path} is missing; build the index again")
        copied = None if _is_writable(path) else _copy(path)
        try:
            source = path if copied is None else copied / path.name
            connection = sqlite3.connect(f"{source.resolve().as_uri()}?mode=rw", uri=True, check_same_thread=False)
        except SQLITE_ERRORS as error:
            _remove(copied)
            raise StaleIndex(f"{path} cannot be opened ({_why(error)}); build the index again") from None
        try:
            database = cls(connection, path, facts, copied)
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA trusted_schema = 0")
            connection.execute("BEGIN")
            database.query("SELECT count(*) FROM items WHERE id = ''")  # from here on the snapshot is held
        except (*SQLITE_ERRORS, SearchError) as error:
            connection.close()
            _remove(copied)
            raise StaleIndex(f"{path} is damaged ({_why(error)}); build the index again") from None
        return database

    @classmethod
    def open_writer(cls, path: Path, facts: Callable[[Item], Facts] = Item.facts, journal: str = "WAL") -> ItemDatabase:
        """Make the database where there is none. The caller holds the lock of the folder."""
        try:
            connection = sqlite3.connect(path, check_same_thread=False)
        except sqlite3.Error as error:
            raise _failed(path, error) from error
        try:
            database = cls(connection, path, facts)
            _check_ours(connection, path)
            connection.execute(f"PRAGMA journal_mode = {journal}")
            connection.execute("PRAGMA synchronous = FULL")  # a commit outlives a power cut
            with database.transaction():
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
        except (*SQLITE_ERRORS, SearchError) as error:
            connection.close()
            damaged = isinstance(error, UnicodeDecodeError | MemoryError)
            if damaged or "not a database" in str(error) or "malformed" in str(error):
                raise StaleIndex(
                    f"{path} is damaged ({_why(error)}); move that file away and build it again"
                ) from error
            raise error if isinstance(error, SearchError) else _failed(path, error) from error
        return database

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is changed inside is committed at the end, or nothing is."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                if isinstance(error, SQLITE_ERRORS):
                    raise _failed(self.path, error) from error
                raise

    def query(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """The rows of a SELECT."""
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.ProgrammingError:
            raise StaleIndex(f"{self.path} was closed; open the index again") from None
        except SQLITE_ERRORS as error:
            raise StaleIndex(f"{self.path} cannot be read ({_why(error)}); build the index again") from error

    def change(self, statement: str, values: Iterable[Sequence[object]] = ((),)) -> None:
        """A statement for each of `values`, inside of a transaction."""
        self._connection.executemany(statement, values)

    def insert(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Into one of the checked tables, inside of a transaction; a row of the same key is replaced."""
        marks = ",".join("?" * len(self.query(f"SELECT * FROM pragma_table_info('{table}')")))
        checked = ((*row, row_sum(row)) for row in rows)
        self._connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", checked)

    def copy_to(self, path: Path) -> None:
        """Another database with what this one sees."""
        try:
            with self._lock, closing(sqlite3.connect(path)) as target:
                self._connection.backup(target)
        except SQLITE_ERRORS as error:
            raise SearchError(f"could not copy {self.path}: {error}") from error

    # The head: named JSON values

    def head(self, name: str) -> Any:
        """None where it was never set."""
        rows = self.query("SELECT * FROM head WHERE name = ?", (name,))
        try:
            return json.loads(rows[0][1]) if self.checked(rows) else None
        except (ValueError, TypeError, RecursionError) as error:
            raise StaleIndex(f"{self.path} is damaged ({_why(error)}); build the index again") from None

    def set_head(self, name: str, value: object) -> None:
        self.insert("head", [(name, json.dumps(value, ensure_ascii=False))])

    def checked(self, rows: list[Any]) -> list[Any]:
        """Whole rows of a checked table, which raises where one is not as it was written."""
        if any(not _is_intact(row) for row in rows):
            raise StaleIndex(f"{self.path} is damaged: a row is not as it was written; build the index again")
        return rows

    def damage(self) -> list[str]:
        """What is not as it was written."""
        lines: list[str] = []
        try:
            with self._lock:
                lines += [line for (line,) in self._connection.execute("PRAGMA integrity_check(3)") if line != "ok"]
                for table in CHECKED:
                    rows = self._connection.execute(f"SELECT * FROM {table}")
                    if bad := sum(not _is_intact(row) for row in rows):
                        lines.append(f"{bad} rows of {table} are not as they were written")
                items = self._connection.execute(f"SELECT {_COLUMNS}, number FROM items")
                expected = (row for *item, number in items for row in self._fields(number, _entries([item])[0]))
                if _total(expected) != _total(self._connection.execute("SELECT field, value, item FROM fields")):
                    lines.append("what filters search is not what the items are")
        except (*SQLITE_ERRORS, SearchError, ValueError, TypeError) as error:
            lines.append(_why(error))
        return lines

    # Items

    def counts(self) -> dict[Kind, int]:
        return dict.fromkeys(KINDS, 0) | dict(self.query("SELECT kind, count(*) FROM items GROUP BY kind"))

    def entry(self, item_id: str) -> Entry:
        found = self.entries([item_id])
        if not found:
            raise UnknownItem(f"the index has no item {item_id!r:.80}; it may have been dropped since")
        return found[item_id]

    def entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Those of the ids that the index has."""
        return {entry.item.id: entry for entry in _entries(self._select_in("id", ids, _COLUMNS))}

    def all(self, kind: Kind | None = None, where: Where | None = None) -> list[Entry]:
        """Every item, in the order of ids."""
        text, values = ("1", []) if kind is None else ("kind = ?", [kind])
        return self._that_match(self.query(f"SELECT {_COLUMNS} FROM items WHERE {text} ORDER BY id", values), where)

    def rows(self, kind: Kind, where: Where | None = None) -> np.ndarray:
        """(n,) int64: the rows of a kind's items that match, each once, ascending."""
        if where is None:
            return self._rows_of(kind, ())
        return np.unique(np.concatenate([self._rows_of(kind, clauses) for clauses in where.alternatives]))

    def field_names(self) -> list[str]:
        """Every field that some item has."""
        found, name = {*Item("", "image", path="", text="").facts()}, ""
        while rows := self.query("SELECT min(field) FROM fields WHERE field > ?", (name,)):
            if (name := rows[0][0]) is None:
                break
            found.add(name)
        return sorted(found)

    def lowest_number(self, field: str) -> int | float | None:
        """The least value of a field that holds numbers in every item that has it."""
        ((lowest, highest),) = self.query("SELECT min(value), max(value) FROM fields WHERE field = ?", (field,))
        return lowest if isinstance(highest, int | float) else None  # in SQLite's order texts are behind numbers

    def newest(self, kind: Kind) -> np.ndarray:
        """(n,) int64: the rows of a kind's items, each once, by `date` and `time`, the latest first."""
        date, time = (
            dict(self.query("SELECT item, value FROM fields WHERE field = ? AND value >= '' AND value < x''", (name,)))
            for name in ("date", "time")
        )
        found = self.query("SELECT number, row FROM items INDEXED BY items_by_row WHERE kind = ? ORDER BY row", (kind,))
        found.sort(key=lambda each: (date.get(each[0], ""), time.get(each[0], "")), reverse=True)
        return np.array(list(dict.fromkeys(row for _, row in found)), dtype=np.int64)

    def count(self, kind: Kind, where: Where) -> int:
        condition, values = self._that_hold(kind, where)
        ((found,),) = self.query(f"SELECT count(*) FROM ({condition})", values)
        return int(found)

    def counts_of(self, name: str, kind: Kind, where: Where | None = None) -> dict[Scalar, int]:
        """How many of a kind's items that match have each value of a field."""
        condition, values = self._that_hold(kind, where)
        statement = f"SELECT value, count(*) FROM fields WHERE field = ? AND item IN ({condition}) GROUP BY value"
        found = self.query(statement, [name, *values])
        return {value: count for value, count in found if not isinstance(value, bytes)}

    def numbers_of(self, name: str, kind: Kind, where: Where | None = None) -> dict[int, float]:
        """The numeric values of a field, by the number of the item."""
        condition, values = self._that_hold(kind, where)
        statement = f"SELECT item, value FROM fields WHERE field = ? AND value < '' AND item IN ({condition})"
        return dict(self.query(statement, [name, *values]))

    def _that_hold(self, kind: Kind, where: Where | None) -> tuple[str, list[object]]:
        """A statement that selects the numbers of items, and its parameters."""
        alternatives = where.alternatives if where else ((),)
        parts = [found for clauses in alternatives if (found := self._condition(kind, clauses))]
        text = " OR ".join(f"({text})" for text, _ in parts) or "0"
        return f"SELECT number FROM items WHERE {text}", [value for _, some in parts for value in some]

    def _rows_of(self, kind: Kind, clauses: Sequence[Clause]) -> np.ndarray:
        if (condition := self._condition(kind, clauses)) is None:
            return np.empty(0, np.int64)
        text, values = condition
        # This index alone answers: the items themselves, with their metadata, are not read.
        statement = f"SELECT DISTINCT row FROM items INDEXED BY items_by_row WHERE {text} ORDER BY row"
        try:
            return np.array([row for (row,) in self.query(statement, values)], dtype=np.int64)
        except (ValueError, TypeError) as error:
            raise StaleIndex(f"{self.path} is damaged ({_why(error)}); build the index again") from None

    def _condition(self, kind: Kind, clauses: Sequence[Clause]) -> tuple[str, list[object]] | None:
        """A condition on the items of a kind for which all clauses hold, and its parameters; None where it is none."""
        text, values = "kind = ?", list[object]([kind])
        for clause in clauses:
            if clause.field in self._same_for_a_kind:
                if not clause.holds(self._facts(Item("", kind))[clause.field]):
                    return None
                continue
            parts = []
            for condition, some in (_range(clause, reading) for reading in clause.readings):
                parts.append(f"SELECT item FROM fields WHERE field = ? AND {condition}")
                values += [clause.field, *some]
            text += f" AND number IN ({' UNION ALL '.join(parts)})"
        return text, values

    def at_rows(self, kind: Kind, rows: Sequence[int], where: Where | None = None) -> list[Entry]:
        """The items at these rows; equal images share one."""
        return self._that_match(self._select_in("row", rows, _COLUMNS, "kind = ?", [kind]), where)

    def move(self, kind: Kind, rows: Sequence[int]) -> None:
        """What is at `rows[n]` (ascending) is at row n from now on; inside of a transaction."""
        for start in range(0, len(rows), AT_ONCE):
            new = {row: number for number, row in enumerate(rows[start : start + AT_ONCE], start)}
            found = self._select_in("row", list(new), "*", "kind = ?", [kind])
            self.insert("items", ((*row[:8], new[row[8]], row[9]) for row in found))

    def remove(self, ids: Iterable[str]) -> None:
        found = self._select_in("id", list(ids), f"{_COLUMNS}, number")
        entries = _entries([row[:-1] for row in found])
        fields = (row for entry, found_ in zip(entries, found, strict=True) for row in self._fields(found_[-1], entry))
        self.change("DELETE FROM fields WHERE field = ? AND value = ? AND item = ?", fields)
        self.change("DELETE FROM items WHERE number = ?", ((row[-1],) for row in found))

    def remove_all(self) -> None:
        self.change("DELETE FROM items")
        self.change("DELETE FROM fields")

    def put(self, entries: Iterable[Entry]) -> None:
        """Insert, or replace by id."""
        waiting = iter(entries)
        while some := list({entry.item.id: entry for entry in islice(waiting, AT_ONCE)}.values()):
            self.remove([entry.item.id for entry in some])
            ((first,),) = self.query("SELECT 1 + coalesce(max(number), 0) FROM items")
            self.insert("items", ((*_row(entry), number) for number, entry in enumerate(some, first)))
            fields = [row for number, entry in enumerate(some, first) for row in self._fields(number, entry)]
            fields.sort(key=lambda row: (row[0], type(row[1]).__name__, row[1]))  # neighbours on disk
            self.change("INSERT INTO fields VALUES (?, ?, ?)", fields)

    def close(self) -> None:
        with self._lock:
            self._end()

    # Inside

    def _select_in(
        self, column: str, wanted: Sequence[object], columns: str, more: str = "1", values: Sequence[object] = ()
    ) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(wanted), AT_ONCE):
            some = wanted[start : start + AT_ONCE]
            marks = ",".join("?" * len(some))
            found += self.query(f"SELECT {columns} FROM items WHERE {column} IN ({marks}) AND {more}", [*some, *values])
        return found

    def _that_match(self, rows: Sequence[Sequence[Any]], where: Where | None) -> list[Entry]:
        return [entry for entry in _entries(rows) if where is None or where.matches(self._facts(entry.item))]

    def _fields(self, number: int, entry: Entry) -> list[tuple[str, Any, int]]:
        facts = self._facts(entry.item).items()
        return [
            (field, BOOLEANS[value] if isinstance(value, bool) else value, number)
            for field, value in facts
            if field not in self._same_for_a_kind
        ]


def _range(clause: Clause, reading: Scalar) -> tuple[str, list[object]]:
    """A condition on `value`, one range of the primary key, and its parameters. It holds where `Clause.holds` does.

    Every value is a parameter: nothing of a filter becomes part of the statement.
    """
    sign = clause.operator
    if isinstance(reading, bool):
        return "value = ?", [BOOLEANS[reading == (sign == "=")]]
    if sign == "~":
        start = re.split(r"[*?]", clause.literal, maxsplit=1)[0]
        # No byte of UTF-8 is FF: behind every text that begins so.
        return "value >= ? AND value < ? || CAST(x'FF' AS TEXT) AND fits(value, ?)", [start, start, clause.literal]
    lowest, behind = ("value >= ''", "value < x''") if isinstance(reading, str) else ("value < ''", "value < ''")
    if sign == "=":
        return "value = ?", [reading]
    return f"{lowest if sign in ('<', '<=') else behind} AND value {sign} ?" + (
        f" AND {lowest}" if sign == "!=" else ""
    ), [reading]


def _fits(text: object, pattern: str) -> bool:
    return isinstance(text, str) and glob(pattern).match(text) is not None


def row_sum(values: Sequence[object]) -> int:
    return zlib.crc32("\x1f".join(map(str, values)).encode("utf-8", "surrogatepass"))


def _is_intact(row: Sequence[Any]) -> bool:
    return bool(row[-1] == row_sum(row[:-1]))


def _total(rows: Iterable[Sequence[Any]]) -> tuple[int, int]:
    """The same for the same rows in another order."""
    count = total = 0
    for row in rows:
        count, total = count + 1, total + row_sum((*row, type(row[1]).__name__))
    return count, total


def _row(entry: Entry) -> tuple[object, ...]:
    item = entry.item
    metadata = json.dumps(item.metadata, ensure_ascii=False)
    return (item.id, item.kind, item.root, item.path, item.text, metadata, entry.content, entry.stamp, entry.row)


# What SQLite may give for each of _COLUMNS, where the database is not damaged.
_TYPES: tuple[set[type], ...] = (
    {str},
    {str},
    {int, NoneType},
    {str, NoneType},
    {str, NoneType},
    {str},
    {str},
    {str},
    {int},
)


def _entries(rows: Sequence[Sequence[Any]]) -> list[Entry]:
    """The metadata of all rows are read at once, in a fifth of the time."""
    try:
        metadata = json.loads(f"[{','.join([row[5] for row in rows])}]")
        found = [
            Entry(Item(id_, kind, path, root, text, fields), number, content, stamp)
            for (id_, kind, root, path, text, _, content, stamp, number), fields in zip(rows, metadata, strict=True)
        ]
    except (ValueError, TypeError, RecursionError) as error:
        raise StaleIndex(f"an item of the index is damaged ({_why(error)}); build the index again") from None
    columns = [set(map(type, column)) for column in zip(*rows, strict=True)]
    is_plain = all(types <= allowed for types, allowed in zip(columns, _TYPES, strict=bool(rows)))
    if not (is_plain and {dict}.issuperset(map(type, metadata)) and {*KINDS}.issuperset(row[1] for row in rows)):
        raise StaleIndex("an item of the index is damaged; build the index again")
    return found


def _check_ours(connection: sqlite3.Connection, path: Path) -> None:
    """An empty file, or a database that says it is ours."""
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((schema,),) = connection.execute("PRAGMA user_version").fetchall()
    ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    if tables and application != APPLICATION:
        raise StoreError(f"{path} is another program's database; nothing was changed: move that file away")
    if tables and schema != SCHEMA:
        raise StoreError(f"{path} was written by another version of Quintet; nothing was changed: build another index")


def rescue(path: Path) -> None:
    """Write a damaged database anew, of the rows that are as they were written: nothing is encoded twice for it."""
    with atomic_write(path) as temporary:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with (
            closing(sqlite3.connect(uri, uri=True)) as old,
            closing(ItemDatabase.open_writer(temporary, journal="MEMORY")) as fresh,
            fresh.transaction(),
        ):
            for table in ("head", "files", "blocks", "codes"):
                fresh.insert(table, (row[:-1] for row in _rows_of(old, table) if _is_intact(row)))
            fresh.put(entry for row in _rows_of(old, "items") if _is_intact(row) for entry in _entries([row[:9]]))
            fresh.change("INSERT OR REPLACE INTO unused VALUES (?)", _rows_of(old, "unused"))
            lost = (
                "file NOT IN (SELECT file FROM blocks, files WHERE substr(file, 1, length(name) + 4) = name || '-run')"
            )
            fresh.change(f"INSERT OR REPLACE INTO unused SELECT DISTINCT file FROM blocks WHERE {lost}")
            fresh.change(f"DELETE FROM blocks WHERE {lost}")
            fresh.change("DELETE FROM codes WHERE file NOT IN (SELECT name FROM files)")
        for name in ("items.sqlite-wal", "items.sqlite-shm"):
            path.with_name(name).unlink(missing_ok=True)


def _rows_of(connection: sqlite3.Connection, table: str) -> Iterator[Any]:
    """As many as can be read."""
    with suppress(*SQLITE_ERRORS):
        yield from connection.execute(f"SELECT * FROM {table}")


def _failed(path: Path, error: Exception) -> StoreError:
    return StoreError(f"could not write {path}: {_why(error)}; {RESUMES}")


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__  # a MemoryError says nothing


def _is_writable(path: Path) -> bool:
    """Whether SQLite may keep its log beside the database, as reading needs, too."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _copy(path: Path) -> Path:
    """The database in a temporary folder. Somebody who may write may do so meanwhile: then it is copied again."""
    folder = Path(tempfile.mkdtemp(prefix="quintet-index-"))
    files = [path, path.with_name(path.name + "-wal")]
    try:
        while True:
            before = [_state(file) for file in files]
            for file in files:
                (folder / file.name).unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    shutil.copyfile(file, folder / file.name)
            if before == [_state(file) for file in files]:
                return folder
    except OSError as error:
        _remove(folder)
        raise SearchError(f"could not copy {path} for reading: {error.strerror or error}") from error


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _end(connection: sqlite3.Connection, copied: Path | None) -> None:
    connection.close()
    _remove(copied)


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
