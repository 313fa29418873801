from __future__ import annotations

from pathlib import Path

import pytest
from PIL.Image import Exif

from quintet.search.fields import exif_date, plain_fields, sidecar


@pytest.mark.parametrize("value", ["", "0000:00:00 00:00:00", "yesterday", "2024:13:01 00:00:00", "\0" * 19])
def test_a_date_that_is_none_is_left_out(value: str) -> None:
    exif = Exif()
    exif[0x0132] = value
    assert exif_date(exif) is None


def test_when_it_was_taken_comes_before_when_it_was_changed() -> None:
    exif = Exif()
    exif[0x0132] = "2024:01:01 00:00:00"
    exif.get_ifd(0x8769)[0x9003] = "2020:02:03 04:05:06"
    found = exif_date(exif)
    assert found is not None
    assert found.year == 2020


def test_a_damaged_sidecar_is_no_sidecar(tmp_path: Path) -> None:
    (tmp_path / "a.jpg.json").write_text("{")
    (tmp_path / "a.json").write_text('{"album": "sea"}')
    fields, refused = sidecar(tmp_path / "a.jpg", str(tmp_path))
    assert fields == {"album": "sea"}
    assert [Path(path).name for path, _ in refused] == ["a.jpg.json"]
    assert sidecar(tmp_path / "b.jpg", str(tmp_path)) == ({}, [])


def test_only_what_every_store_can_hold_is_kept() -> None:
    fields = {
        "big": 2**60,
        "inf": float("inf"),
        "text": "a\0b",
        "half": "\ud800",
        "1st": True,
        "größe": 2,
        "x": "y" * 2000,
    }
    assert plain_fields(fields) == {"_1st": True, "gr__e": 2}
    assert plain_fields(["a"]) == {}
