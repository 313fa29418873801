"""The table of a folder store against a dictionary, whatever is added and removed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from quintet.search.errors import StoreError
from quintet.search.stores import table as module
from quintet.search.stores.table import Placed, Table
from quintet.search.stores.where import Scalar, parse_where

ids = st.sampled_from(["", "a", "b", "ba", "ü", "😀", "z"])
scalars = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.booleans() | st.integers(-5, 5) | st.just(0.5)
)
fields = st.dictionaries(st.sampled_from(["x", "ids", "rows"]), scalars, max_size=3)
steps = st.lists(st.tuples(st.sets(ids, max_size=3), st.dictionaries(ids, fields, max_size=4)), max_size=4)


def same(table: Table, twin: dict[str, tuple[int, dict[str, Scalar]]]) -> None:
    assert table.ids.tolist() == sorted(twin)
    assert [(int(row), table.metadata(place)) for place, row in enumerate(table.rows)] == [
        twin[id_] for id_ in sorted(twin)
    ]
    for place in range(len(table)):
        for name, value in table.metadata(place).items():
            assert type(value) is type(twin[table.ids[place]][1][name])
    for id_ in ["", "a", "nobody", "ü"]:
        assert table.find([id_]).tolist() == [sorted(twin).index(id_) if id_ in twin else -1]
    for text in ("x>0", "x=true", "x!=a", "ids~*a*", "rows<=1", "y=1"):
        where = parse_where(text)
        expected = [id_ for id_ in sorted(twin) if where.matches(twin[id_][1])]
        assert [table.ids[int(place)] for place in np.flatnonzero(table.select(where))] == expected


@given(steps)
@settings(max_examples=50, deadline=None)
def test_a_table_is_a_dictionary_that_is_saved_and_loaded(
    tmp_path_factory: object, changes: list[tuple[set[str], dict[str, dict[str, Scalar]]]]
) -> None:
    table, twin, row = Table.empty(), {}, 0
    path: Path = tmp_path_factory.mktemp("table") / "items.safetensors"  # type: ignore[attr-defined]
    for removed, added in changes:
        placed = {id_: Placed(row + number, item) for number, (id_, item) in enumerate(added.items())}
        table = table.merged(removed, placed)
        twin = {id_: item for id_, item in twin.items() if id_ not in removed} | {
            i: tuple(p) for i, p in placed.items()
        }
        row += len(added)
        same(table, twin)
    table.save(path)
    same(Table.load(path), twin)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(StoreError, match=r"No space left.*unchanged"):
        Table.empty().save(tmp_path / "items.safetensors")
    assert list(tmp_path.iterdir()) == []
