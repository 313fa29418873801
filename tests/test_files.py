from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from quintet.errors import CorpusError, QuintetError
from quintet.files import (
    MARK,
    atomic_write,
    begin_folder,
    check_output,
    checksums,
    file_checksum,
    header_format,
    output_text,
    read_bytes,
    read_header,
    read_json,
    read_jsonl,
    remove_partials,
    verify_checksums,
    write_json,
    write_jsonl,
    write_text,
)


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename across disks would not be one step
    assert path.read_text() == "half"
    assert os.listdir(path.parent) == ["file.txt"]  # noqa: PTH208


def write_and_fail(path: Path, error: BaseException) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        raise error


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_and_fail(path, KeyboardInterrupt())
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


def test_a_full_disk_is_reported_and_the_old_file_survives(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(QuintetError, match=r"file\.txt: No space"):
        write_and_fail(path, OSError(errno.ENOSPC, "No space left on device"))
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_really_full_device(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="could not write"), atomic_write(tmp_path / "file.txt"):
        Path("/dev/full").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")}
    assert len(modes) == 1


def test_json_round_trip_in_utf8(tmp_path: Path) -> None:
    value = {"word": "Hündchen 走る", "numbers": [1, 2.5, None]}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "Hündchen 走る" in (tmp_path / "a.json").read_bytes().decode("utf-8")


def test_jsonl_round_trip(tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": "line\nbreak \u2028 é"} for number in range(3)]
    write_jsonl(tmp_path / "a.jsonl", rows)
    assert list(read_jsonl(tmp_path / "a.jsonl")) == rows


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_broken_json_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(QuintetError, match=r"a\.json .*JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n\n{"a": \n', r"a\.jsonl, line 3: not a JSON row"),
        (b'{"a": 1}\n{"a": "\xe9"}\n', r"line 2: not a JSON row in UTF-8"),
        (b'{"a": 1}\n[1]\n', "line 2: expected an object, found list"),
    ],
)
def test_broken_rows_name_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(QuintetError, match=message):
        list(read_jsonl(tmp_path / "a.jsonl"))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match=r"absent\.json does not exist"):
        read_json(tmp_path / "absent.json")
    with pytest.raises(QuintetError, match=r"absent\.jsonl does not exist"):
        list(read_jsonl(tmp_path / "absent.jsonl"))


def test_rows_that_fail_half_way_leave_no_file(tmp_path: Path) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield {"a": 1}
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_jsonl(tmp_path / "a.jsonl", rows())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["head.json", "rows.npy"])
@pytest.mark.parametrize("content", ["mine", '{"format": "something else"}'])
def test_a_folder_of_someone_else_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=f"{name} .*the way"):
        begin_folder(tmp_path, "head.json", "things", ["rows.npy"])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: content}


def test_a_folder_of_ours_is_unfinished_until_its_header_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    for _ in range(2):  # new, then again
        begin_folder(folder, "head.json", "things", ["rows.npy"])
        (folder / "rows.npy").write_text("rows")
        assert header_format(folder / "head.json") != "things"
        begin_folder(folder, "head.json", "things", ["rows.npy"])  # after a kill
        with pytest.raises(CorpusError, match="make it"):
            read_header(folder / "head.json", "things", 1, missing="make it")
        write_json(folder / "head.json", {"format": "things", "version": 1})
        assert read_header(folder / "head.json", "things", 1, missing="make it")["version"] == 1
    with pytest.raises(CorpusError, match="version 1"):
        read_header(folder / "head.json", "things", 0, missing="make it")
    with pytest.raises(CorpusError, match="'things'"):
        read_header(folder / "head.json", "others", 1, missing="make it")


def test_the_temporary_file_of_a_killed_writer_goes_with_the_next_write(tmp_path: Path) -> None:
    left, other, link = (tmp_path / f".{name}.abcd_123.partial" for name in ("file.txt", "other.txt", "link.txt"))
    left.touch()
    other.touch()
    link.symlink_to(other)
    write_text(tmp_path / "file.txt", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"file.txt", other.name, link.name}
    remove_partials(tmp_path, {"other.txt", "link.txt"})
    assert {path.name for path in tmp_path.iterdir()} == {"file.txt", link.name}
    remove_partials(tmp_path / "missing", {"file.txt"})


def test_the_temporary_file_of_a_living_writer_stays(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "file.txt") as first:
        first.write_text("first")
        write_text(tmp_path / "file.txt", "second")
        assert first.exists()
    assert (tmp_path / "file.txt").read_text() == "first"


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "loop", Path("/dev/zero"), tmp_path / ("a" * 5000), "a\0b"):
        for read in (read_json, file_checksum, lambda path: list(read_jsonl(path)), lambda path: read_bytes(path, 9)):
            with pytest.raises(QuintetError):
                read(path)  # type: ignore[no-untyped-call]


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123456")
    assert read_bytes(tmp_path / "file", 6) == b"123456"
    with pytest.raises(QuintetError, match="too large"):
        read_bytes(tmp_path / "file", 5)


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000, r'"\ud800"', r'{"\uDC00": 1}'])
def test_hostile_json_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(QuintetError, match=r"file\.json"):
        read_json(tmp_path / "file.json")
    (tmp_path / "file.json").write_text(f'{{"a": {content}}}\n' if content[0] != "{" else content)
    with pytest.raises(QuintetError, match="line 1"):
        list(read_jsonl(tmp_path / "file.json"))


def test_surrogate_pairs_and_escaped_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(r'["\ud83d\ude00", "\\ud800"]')
    assert read_json(tmp_path / "file.json") == ["😀", r"\ud800"]


@dataclass(frozen=True)
class Part:
    name: str
    rows: int = 0


@dataclass(frozen=True)
class Header:
    parts: list[Part]
    dim: int


def test_values_are_checked_and_made(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"parts": [{"name": "a", "rows": 2}, {"name": "b"}], "dim": 3})
    assert read_json(tmp_path / "file.json", Header) == Header([Part("a", 2), Part("b")], 3)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "file.json: "),
        ({"parts": []}, "dim: field required"),
        ({"parts": [{"name": "a"}, {"name": 1}], "dim": 3}, r"parts\.1\.name.*not 1"),
        ({"parts": [], "dim": "3"}, "dim.*not '3'"),
        ({"parts": [], "dim": True}, "dim.*not True"),
        ({"parts": [], "dim": 1.5}, r"dim.*not 1\.5"),
    ],
)
def test_a_value_of_another_shape_is_named(tmp_path: Path, value: object, field: str) -> None:
    write_json(tmp_path / "file.json", value)
    with pytest.raises(QuintetError, match=field):
        read_json(tmp_path / "file.json", Header)


def test_checksums_notice_any_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"")
    sums = checksums(tmp_path, ["a", "b"])
    assert sums["a"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    verify_checksums(tmp_path, sums, "make it again")
    (tmp_path / "a").write_bytes(b"abd")
    with pytest.raises(QuintetError, match=r"a .*make it again"):
        verify_checksums(tmp_path, sums, "make it again")
    (tmp_path / "a").unlink()
    with pytest.raises(QuintetError, match="does not exist"):
        verify_checksums(tmp_path, sums, "make it again")


@pytest.mark.parametrize("kind", ["link", "folder", "FIFO"])
def test_only_files_are_replaced(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "result.json", tmp_path / "other"
    other.write_text("mine")
    {"link": lambda: path.symlink_to(other), "folder": path.mkdir, "FIFO": lambda: os.mkfifo(path)}[kind]()
    before = path.lstat()
    with pytest.raises(QuintetError, match="does not replace"):
        write_text(path, "new")
    assert (path.lstat().st_ino, other.read_text()) == (before.st_ino, "mine")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "result.json"]


def test_a_failure_leaves_no_folder_that_was_made_for_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_and_fail(tmp_path / "a" / "b" / "file.txt", KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"mine", b'{"format": "mine"}', b"\xff" * 5000, b" " * 5000 + MARK.encode()])
def test_an_output_of_somebody_else_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(content)
    with pytest.raises(QuintetError, match="is in the way"):
        output_text(path, f"<!-- {MARK} -->")
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [f"<!-- {MARK} -->", '{\n  "format": "quintet-result"\n}'])
def test_an_output_of_ours_is_replaced_unless_it_is_a_link(tmp_path: Path, content: str) -> None:
    for _ in range(2):
        output_text(tmp_path / "page.html", content)
    (tmp_path / "link").symlink_to("page.html")
    with pytest.raises(QuintetError, match="is in the way"):
        check_output(tmp_path / "link")
