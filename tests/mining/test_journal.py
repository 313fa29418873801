from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quintet.errors import QuintetError
from quintet.mining.journal import Journal


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
