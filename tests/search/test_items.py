from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.search import SearchError, StaleIndex, StoreError, UnknownItem
from quintet.search import items as module
from quintet.search.items import Entry, Item, ItemDatabase
from quintet.search.stores import parse_where

ENTRIES = [
    Entry(Item("a", "image", "x/ä.jpg", 0, metadata={"width": 3, "ok": True, "album": "sea"}), 1, "c", "1:2"),
    Entry(Item("b", "text", text="a dog"), 0, "d", ""),
]


def write(path: Path, entries: list[Entry]) -> ItemDatabase:
    database = ItemDatabase.open_writer(path)
    with database.transaction():
        database.put(entries)
    return database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "items.sqlite"


def test_items_come_back_as_they_were(path: Path) -> None:
    write(path, ENTRIES).close()
    database = ItemDatabase.open_snapshot(path)
    assert database.all() == ENTRIES
    assert database.all("text") == ENTRIES[1:]
    assert database.entry("a") == ENTRIES[0]
    assert database.counts() == {"image": 1, "text": 1}
    assert database.at_rows("image", [0, 1, 2]) == ENTRIES[:1]
    with pytest.raises(UnknownItem, match="'c'"):
        database.entry("c")


def test_a_snapshot_sees_nothing_later_and_the_writer_does_not_wait(path: Path) -> None:
    writer = write(path, ENTRIES)
    reader = ItemDatabase.open_snapshot(path)
    with writer.transaction():
        writer.remove(["a"])
        writer.put([Entry(Item("c", "text", text="a cat"), 1, "e", "")])
    assert reader.all() == ENTRIES
    assert [entry.item.id for entry in ItemDatabase.open_snapshot(path).all()] == ["b", "c"]
    writer.close()
    assert reader.all() == ENTRIES


def test_a_transaction_that_fails_changes_nothing(path: Path) -> None:
    writer = write(path, ENTRIES)
    with contextlib.suppress(KeyboardInterrupt), writer.transaction():
        writer.remove(["a"])
        raise KeyboardInterrupt
    assert writer.all() == ENTRIES


def test_a_full_disk_is_told_and_changes_nothing(path: Path) -> None:
    writer = write(path, ENTRIES)
    pages = writer.query("PRAGMA page_count")[0][0]
    writer.query(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"full.*unchanged.*resumes"), writer.transaction():
        writer.put(Entry(Item(f"{n:040}", "text", text="x" * 500), n, "", "") for n in range(5000))
    assert writer.all() == ENTRIES
    assert writer.query("PRAGMA integrity_check") == [("ok",)]


def test_any_number_of_ids_can_be_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    database = write(path, [Entry(Item(f"{n}", "text", text="a"), n, "", "") for n in range(10)])
    found = database.entries([f"{n}" for n in range(2, 14)])
    assert sorted(found, key=int) == [f"{n}" for n in range(2, 10)]


def test_filters_see_kind_path_and_the_beginning_of_a_text(path: Path) -> None:
    assert ENTRIES[0].item.facts() == {"width": 3, "ok": True, "album": "sea", "kind": "image", "path": "x/ä.jpg"}
    long = Item("t", "text", text="ä" * 1000 + "end", metadata={"kind": "lie", "path": "mine"})
    assert long.facts() == {"kind": "text", "path": "mine", "text": "ä" * 1000}
    database = write(path, [*ENTRIES, Entry(long, 1, "", "")])
    for text in (
        "kind=text", "kind=lie", "path=mine", 'path~"x/*"', "text~*end", "text~ä*", "width>=3", "ok=true", "path!=mine",
    ):  # fmt: skip
        where = parse_where(text)
        expected = [entry for entry in [*ENTRIES, Entry(long, 1, "", "")] if where.matches(entry.item.facts())]
        assert database.all(where=where) == expected, text


def test_a_database_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="unchanged"):
        write(tmp_path / "nowhere" / "items.sqlite", ENTRIES)


def test_a_database_that_is_none_is_told(path: Path) -> None:
    with pytest.raises(StaleIndex, match="missing"):
        ItemDatabase.open_snapshot(path)
    path.write_bytes(b"x" * 5000)
    for opener in (ItemDatabase.open_snapshot, ItemDatabase.open_writer):
        with pytest.raises(StaleIndex, match="damaged"):
            opener(path)


def test_a_damaged_schema_is_told_whatever_its_bytes_are(path: Path) -> None:
    database = ItemDatabase.open_writer(path, journal="DELETE")
    database.close()
    content = path.read_bytes()
    assert content.count(b"tableitemsitems") == 1
    content = content.replace(b"tableitemsitems", b"table\xadtemsitems")  # a name that messages quote
    path.write_bytes(content.replace(b"CREATE TABLE items", b"CREATE TABLX items"))
    for opened in (ItemDatabase.open_snapshot, ItemDatabase.open_writer):
        with pytest.raises(SearchError, match="is damaged"):
            opened(path)


def test_a_record_that_cannot_be_as_long_as_it_says_is_damage(path: Path) -> None:
    class Damaged:
        def execute(self, *_: object) -> None:
            raise MemoryError  # as sqlite3 does for such a record

        close = execute

    database = ItemDatabase.open_writer(path)
    whole, database._connection = database._connection, Damaged()  # type: ignore[assignment]
    with pytest.raises(StaleIndex, match="MemoryError"):
        database.query("SELECT * FROM items")
    assert database.damage() == ["MemoryError"]
    whole.close()


def test_another_programs_database_is_not_written_to(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        ItemDatabase.open_writer(path)
    assert path.read_bytes() == before


READ = """
import os, sys
from pathlib import Path
from quintet.search.items import ItemDatabase
os.setuid(65534) if os.getuid() == 0 else None
path = Path(sys.argv[1])
assert not os.access(path.parent, os.W_OK)
print([entry.item.id for entry in ItemDatabase.open_snapshot(path).all()])
"""


@pytest.mark.parametrize("log", [False, True])
def test_a_folder_that_may_not_be_written_can_be_read(shared_folder: Path, log: bool) -> None:
    """Also where the writer is still there, so that its last commits stand in SQLite's log."""
    path = shared_folder / "items.sqlite"
    writer = write(path, ENTRIES)
    if not log:
        writer.close()
    assert path.with_name("items.sqlite-wal").exists() == log
    for file in (shared_folder, *shared_folder.iterdir()):
        file.chmod(0o555 if file.is_dir() else 0o444)
    before = sorted(shared_folder.iterdir())
    ended = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "['a', 'b']", ended.stderr
    assert sorted(shared_folder.iterdir()) == before
    shared_folder.chmod(0o755)
    writer.close()
