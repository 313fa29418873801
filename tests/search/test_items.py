from __future__ import annotations

from pathlib import Path

import pytest

from quintet.search import items as module
from quintet.search.errors import SearchError, StaleIndex, UnknownItem
from quintet.search.items import Entry, Item, ItemTable, Place, write_items

ENTRIES = [
    Entry(Item("a", "image", "x/ä.jpg", 0, metadata={"width": 3, "ok": True, "album": "sea"}), Place(0, 1), "c", "1:2"),
    Entry(Item("b", "text", text="a dog"), Place(0, 0), "d", ""),
]


def test_items_come_back_as_they_were(tmp_path: Path) -> None:
    write_items(tmp_path / "items.sqlite", ENTRIES)
    table = ItemTable(tmp_path / "items.sqlite")
    assert list(table.all()) == ENTRIES
    assert list(table.all("text")) == ENTRIES[1:]
    assert table.entry("a") == ENTRIES[0]
    assert table.counts == {"image": 1, "text": 1}
    assert len(table) == 2
    with pytest.raises(UnknownItem, match="'c'"):
        table.entry("c")


def test_any_number_of_ids_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    entries = [Entry(Item(f"{n}", "text", text="a"), Place(0, n), "", "") for n in range(10)]
    write_items(tmp_path / "items.sqlite", entries)
    found = ItemTable(tmp_path / "items.sqlite").entries([f"{n}" for n in range(2, 14)])
    assert sorted(found, key=int) == [f"{n}" for n in range(2, 10)]


def test_filters_see_kind_path_and_the_beginning_of_a_text() -> None:
    assert ENTRIES[0].item.facts() == {"width": 3, "ok": True, "album": "sea", "kind": "image", "path": "x/ä.jpg"}
    assert Item("b", "text", text="x" * 5000).facts() == {"kind": "text", "text": "x" * 1000}


def test_a_table_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="as it was"):
        write_items(tmp_path / "nowhere" / "items.sqlite", ENTRIES)


def test_a_table_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(StaleIndex, match="missing"):
        ItemTable(tmp_path / "items.sqlite")
    (tmp_path / "items.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(StaleIndex, match="damaged"):
        ItemTable(tmp_path / "items.sqlite")
