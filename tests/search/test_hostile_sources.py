"""One bad file is listed with its reason, and the others are indexed."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.Image import Exif
from tests.search.test_shards import pack

from quintet.data.images import image_header
from quintet.search import encoded
from quintet.search.fields import LARGEST_SIDECAR, exif_date, file_facts, parse_fields
from quintet.search.index_folder import path_text, text_path
from quintet.search.indexing import BuildReport, build_index
from quintet.search.searcher import Searcher

FIELDS = {"width", "height", "bytes", "modified", "date", "time", "year", "date_from", "orientation", "folder"}


def build(run: Path, source: Path, index: Path) -> BuildReport:
    return build_index(run, source, index, device="cpu", workers=2)


def metadata(index: Path) -> dict[str, Any]:
    with Searcher.open(index, device="cpu") as searcher:
        return {str(hit.item.path): hit.item.metadata for hit in searcher.search("a red thing", k=99, duplicates=True)}


NESTED = "[" * 100_000 + "]" * 100_000
SIDECARS: dict[str, tuple[Callable[[Path], object], str]] = {
    "FIFO": (os.mkfifo, "not a file"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "leads out"),
    "link out": (lambda path: path.symlink_to("/etc/passwd"), "leads out"),
    "link to itself": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "nested": (lambda path: path.write_text(NESTED), "nested"),
    "large": (lambda path: path.write_text('"' + "x" * LARGEST_SIDECAR + '"'), "too large"),
    "digits": (lambda path: path.write_text('{"a": ' + "9" * 5000 + "}"), "JSON"),
    "no UTF-8": (lambda path: path.write_bytes(b'{"a": "\xff"}'), "JSON"),
    "many fields": (lambda path: path.write_text(json.dumps({f"field{n}": n for n in range(9000)})), "bytes"),
    "folder": (lambda path: path.mkdir(), "not a file"),
}


@pytest.mark.parametrize("kind", SIDECARS)
def test_a_bad_sidecar_is_listed(pixel_vse: Path, pictures: Path, tmp_path: Path, kind: str) -> None:
    make, reason = SIDECARS[kind]
    make(pictures / "0.json")
    (pictures / "1.json").write_text('{"album": "sea"}')
    report = build(pixel_vse, pictures, tmp_path / "index")
    assert report.added == 6
    ((path, why),) = report.unreadable
    assert Path(path).name == "0.json"
    assert reason in why
    found = metadata(tmp_path / "index")
    assert set(found["0.png"]) == FIELDS
    assert found["1.png"]["album"] == "sea"


def test_a_sidecar_may_be_a_link_inside_of_the_folder(pixel_vse: Path, pictures: Path, tmp_path: Path) -> None:
    (pictures / "shared.txt").write_text('{"album": "sea"}')
    (pictures / "0.json").symlink_to("shared.txt")
    assert build(pixel_vse, pictures, tmp_path / "index").unreadable == []
    assert metadata(tmp_path / "index")["0.png"]["album"] == "sea"


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # a socket's path is short


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "link to itself": (lambda path: path.symlink_to(path.name), "link to itself"),
    "link in a ring": (lambda path: (path.symlink_to("ring"), (path.parent / "ring").symlink_to(path.name)), "itself"),
    "link to nothing": (lambda path: path.symlink_to("nowhere"), "link to nothing"),
    "link out": (lambda path: path.symlink_to("/etc/passwd"), "leads out"),
    "FIFO": (os.mkfifo, "not a file"),
    "socket": (listen, "not a file"),
    "link to a device": (lambda path: path.symlink_to("/dev/zero"), "leads out"),
    "empty": (lambda path: path.touch(), "empty"),
    "large": (lambda path: (path.touch(), os.truncate(path, 2**33)), "MiB"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_is_listed(
    pixel_vse: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(pictures)
    make, reason = FILES[kind]
    make(pictures / "x.png")
    report = build(pixel_vse, pictures, tmp_path / "index")
    assert report.added == 6
    ((path, why),) = report.unreadable
    assert Path(path).name == "x.png"
    assert reason in why


@pytest.mark.parametrize("year", [-3000, 0, 1, 1970, 9999, 10_000, 300_000])
def test_a_file_may_be_of_any_year(pixel_vse: Path, pictures: Path, tmp_path: Path, year: int) -> None:
    when = (year - 1970) * 31_556_952 + 86_400
    try:
        os.utime(pictures / "0.png", (0, when))
    except (OSError, OverflowError):
        pytest.skip("this file system has no such time")
    assert build(pixel_vse, pictures, tmp_path / "index").added == 6
    stamped = (pictures / "0.png").stat().st_mtime == when  # some file systems take the nearest time that they have
    day = metadata(tmp_path / "index")["0.png"].get("modified")
    assert not stamped or (day is None) == (not 1 <= year <= 9999)
    assert build(pixel_vse, pictures, tmp_path / "index").kept == 6


@pytest.mark.parametrize("seconds", [-(10**13), -(2**36), 2**38, 10**13])
def test_days_that_no_calendar_has_are_left_out(seconds: int, tmp_path: Path) -> None:
    values = [0o100644, 1, 1, 1, 0, 0, 5, 0, seconds, 0]
    facts = os.stat_result(values, {"st_mtime_ns": seconds * 10**9})
    assert file_facts(facts) == {"bytes": 5}


def test_a_file_that_goes_away_while_it_is_indexed_is_listed(
    pixel_vse: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = encoded.ImageEncoder.encode

    def late(self: Any, *arguments: Any) -> Any:
        (pictures / "3.png").unlink()
        return original(self, *arguments)

    monkeypatch.setattr(encoded.ImageEncoder, "encode", late)
    report = build(pixel_vse, pictures, tmp_path / "index")
    assert report.added == 5
    assert "does not exist" in report.unreadable[0][1]


def test_ten_thousand_nested_folders(pixel_vse: Path, pictures: Path, tmp_path: Path) -> None:
    here = os.open(pictures, os.O_RDONLY)
    for _ in range(10_000):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (pictures / "deep" / "deep" / "x.png").write_bytes((pictures / "0.png").read_bytes())
    try:
        report = build(pixel_vse, pictures, tmp_path / "index")
        assert report.added == 7
        ((told,),) = [report.unlisted]
        assert "too long" in told.why
        assert build(pixel_vse, pictures, tmp_path / "index").kept == 7
    finally:
        flatten(pictures)


def flatten(folder: Path) -> None:
    """So that pytest, which recurses, can remove it."""
    number = 0
    (folder / "deep").rename(folder / "0")
    while (folder / str(number) / "deep").is_dir():
        (folder / str(number) / "deep").rename(folder / str(number + 1))
        number += 1


def test_a_member_whose_name_is_not_utf8(pixel_vse: Path, pictures: Path, tmp_path: Path) -> None:
    data = (pictures / "0.png").read_bytes()
    for number, kind in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)):
        (tmp_path / "shards").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "shards" / f"{number}.tar", "w", format=kind, encoding="latin-1") as archive:
            member = tarfile.TarInfo("caf\xe9.png")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            member.name = "good.png"
            archive.addfile(member, io.BytesIO(data))
    report = build(pixel_vse, tmp_path / "shards", tmp_path / "index")
    assert report.encoded == 1
    assert report.added + len(report.unreadable) == 6  # a reader may leave such names out, with a note
    assert {f"{number}.tar/good.png" for number in range(3)} <= set(metadata(tmp_path / "index"))
    assert build(pixel_vse, tmp_path / "shards", tmp_path / "index").kept == report.added


def test_a_bad_member_of_a_shard_is_listed(pixel_vse: Path, pictures: Path, tmp_path: Path) -> None:
    data = (pictures / "0.png").read_bytes()
    bad = {"0.json": NESTED.encode(), "1.json": b"\xff", "2.json": b'{"a": 1e999, "b": 3}', "3.png": data[:60]}
    pack(tmp_path / "shards" / "a.tar", {"0.png": data, "1.png": data, "2.png": data, **bad})
    report = build(pixel_vse, tmp_path / "shards", tmp_path / "index")
    assert report.added == 3
    assert sorted(Path(path).name for path, _ in report.unreadable)[:2] == ["0.json", "1.json"]
    assert len(report.unreadable) == 3
    assert metadata(tmp_path / "index")["a.tar/2.png"]["b"] == 3


# Parsers, against anything


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([0x0132, 0x8769, 0x9003, 0x0112]))
def test_any_exif_is_a_date_or_none(data: bytes, tag: int) -> None:
    image = Exif()
    image.load(b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + tag.to_bytes(2, "big") + data)
    date = exif_date(image)
    assert date is None or 1 <= date.year <= 9999


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_exif_does_not_hide_the_image(data: st.DataObject) -> None:
    exif = Exif()
    exif[0x0112], exif[0x0132], exif[0x010F] = 6, "2020:02:03 04:05:06", "maker" * 9
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20)).save(buffer, "JPEG", exif=exif)
    damaged = bytearray(buffer.getvalue())
    size = int.from_bytes(damaged[4:6], "big")
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(12, 4 + size - 1))] = data.draw(st.integers(0, 255))
    assert sorted(image_header(bytes(damaged))[0]) == [20, 30]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_path_is_kept_as_text(name: bytes) -> None:
    path = os.fsdecode(name)
    text = path_text(path)
    assert text_path(text) == path
    text.encode()
    assert "\0" not in text


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.none() | st.floats() | st.text() | st.integers() | st.lists(st.none())))
def test_any_json_is_fields_that_every_store_can_hold(value: Any) -> None:
    from quintet.search.stores.store import checked_items

    fields = parse_fields(json.dumps(value).encode())
    checked_items(["a"], [[1.0]], [fields], 1)  # type: ignore[arg-type]
