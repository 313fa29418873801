from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.errors import QuintetError
from quintet.mining.journal import Journal, remove_journal


def test_what_is_left_to_do(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"top": 3})
    assert journal.to_do(10, 4) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    for start, stop in ((4, 8), (0, 2)):
        journal.write(slice(start, stop), {"rows": np.arange(start, stop)})
    again = Journal(tmp_path, {"top": 3})
    assert again.finished == [(0, 2), (4, 8)]
    assert again.to_do(10, 3) == [slice(2, 4), slice(8, 10)]
    assert again.read(4, 8)["rows"].tolist() == [4, 5, 6, 7]
    again.remove()
    assert not tmp_path.exists()


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    Journal(tmp_path, {"top": 3, "split": "a"})
    with pytest.raises(QuintetError, match="split"):
        Journal(tmp_path, {"top": 3, "split": "b"})


def test_a_damaged_stripe_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    journal.write(slice(0, 2), {"rows": np.arange(2)})
    (path,) = tmp_path.glob("*.npz")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(QuintetError, match=path.name):
        journal.read(0, 2)
    assert journal.kept("nothing") is None


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_an_error_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder, {})
    arrays = {"rows": np.arange(6), "scores": np.linspace(0, 1, 4)}
    journal.write(slice(0, 2), arrays)
    (path,) = folder.glob("*.npz")
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        found = journal.read(0, 2)
    except QuintetError:
        return
    for name in arrays.keys() & found.keys():
        assert np.array_equal(found[name], arrays[name])


@pytest.mark.parametrize("content", ["null", "[]", "{}", "[" * 5000, '{"format": 1, "version": 3, "settings": {}}'])
def test_a_hostile_head_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "journal.json").write_text(content)
    with pytest.raises(QuintetError, match=r"journal\.json"):
        Journal(tmp_path, {})


@pytest.mark.parametrize("name", ["journal.json", "beginning.npz", "images-000000000-000000024.npz", "notes.txt"])
def test_a_folder_of_somebody_else_is_neither_used_nor_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(QuintetError, match="journal"):
        Journal(tmp_path, {"top": 3})
    remove_journal(tmp_path)
    assert (tmp_path / name).read_bytes() == b"mine"


def test_a_journal_that_was_removed_in_part_is_still_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"top": 3})
    journal.write(slice(0, 4), {"rows": np.arange(4)})
    (tmp_path / ".journal.json.abcdefgh.partial").write_text("{")
    (tmp_path / "images-000000000-000000004.npz").unlink()
    Journal(tmp_path, {"top": 3}).remove()
    assert not tmp_path.exists()
