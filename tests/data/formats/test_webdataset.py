from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from quintet.data.formats import import_corpus, webdataset
from quintet.data.formats.shards import read_ahead
from quintet.errors import CorpusError


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3), colour).save(buffer, "PNG")
    return buffer.getvalue()


def write_shard(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_images_are_unpacked_beside_their_captions(tmp_path: Path) -> None:
    source = tmp_path / "shards"
    write_shard(
        source / "train-000.tar",
        {
            "0001.png": png("red"),
            "0001.txt": "A red square.\nNoch größer.\n".encode(),
            "0001.json": json.dumps({"width": 3}).encode(),
            "sub/0002.PNG": png("blue"),
            "sub/0002.json": json.dumps({"caption": "A blue square."}).encode(),
            "sub/0002.cls": b"7",
        },
    )
    files = {"0003.png": png("lime"), "0003.json": b'{"texts": ["Green.", "A green square."]}'}
    write_shard(source / "val-000.tar.gz", files, "w:gz")
    corpus = import_corpus("webdataset", source, tmp_path / "out")
    assert corpus.splits == {"train": ["0001", "sub/0002"], "dev": ["0003"]}
    assert [text.text for text in corpus.texts] == [
        "A red square.",
        "Noch größer.",
        "A blue square.",
        "Green.",
        "A green square.",
    ]
    assert [image.path for image in corpus.images] == [
        "images/0001.png",
        "images/sub/0002.png",
        "images/0003.png",
    ]
    assert corpus.image_path(corpus.images[1]).read_bytes() == png("blue")


def test_shards_without_a_split_in_their_name_are_split_by_hash(tmp_path: Path) -> None:
    files = {f"{n}.{kind}": data for n in range(40) for kind, data in (("png", png()), ("txt", b"Red."))}
    corpus = import_corpus(
        "webdataset", write_shard(tmp_path / "x.tar", files), tmp_path / "out", fractions="0.5,0,0.5"
    )
    assert set(corpus.splits) == {"train", "test"}
    assert sum(map(len, corpus.splits.values())) == 40


def test_a_split_may_be_a_folder(tmp_path: Path) -> None:
    files = {"1.png": png(), "1.txt": b"Red."}
    write_shard(tmp_path / "s" / "test" / "000.tar", files)
    assert import_corpus("webdataset", tmp_path / "s", tmp_path / "out").splits == {"test": ["1"]}


def test_names_that_point_outside_and_links_are_never_written(tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "train.tar",
        {
            "../evil.png": png(),
            "/tmp/quintet-evil.png": png(),
            "a/../../evil.png": png(),
            "fine.png": png(),
            "fine.txt": b"Red.",
        },
    )
    with tarfile.open(shard, "a") as tar:
        for kind, name in (
            (tarfile.SYMTYPE, "link.png"),
            (tarfile.LNKTYPE, "hard.png"),
            (tarfile.FIFOTYPE, "pipe.png"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    corpus = import_corpus("webdataset", shard, tmp_path / "deep" / "out")
    written = list(tmp_path.rglob("*.png"))
    assert written == [tmp_path / "deep" / "out" / "images" / "fine.png"]
    assert not Path("/tmp/quintet-evil.png").exists()
    assert [image.id for image in corpus.images] == ["fine"]
    assert any("skipped 3 links" in note and "train.tar:link.png" in note for note in corpus.notes)
    assert any("skipped 3 files" in note and "train.tar:../evil.png" in note for note in corpus.notes)


def test_a_huge_member_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webdataset, "MAX_BYTES", 2**20)
    files = {"1.png": png() + b"\0" * 2**20, "1.txt": b"Huge.", "2.png": png(), "2.txt": b"Red."}
    corpus = import_corpus("webdataset", write_shard(tmp_path / "train.tar", files), tmp_path / "out")
    assert [image.id for image in corpus.images] == ["2"]
    assert any("1 MiB" in note for note in corpus.notes)


def test_samples_without_image_or_caption_are_noted(tmp_path: Path) -> None:
    files = {
        "1.png": png(),
        "1.txt": b"Red.",
        "2.txt": b"Alone.",
        "3.png": png(),
        "4.png": png(),
        "4.json": b"[]",
    }
    corpus = import_corpus("webdataset", write_shard(tmp_path / "train.tar", files), tmp_path / "out")
    assert [image.id for image in corpus.images] == ["1"]
    assert corpus.notes[:2] == [
        "split 'dev' came out empty and was left out",
        "split 'test' came out empty and was left out",
    ]
    assert any("skipped 1 samples" in note and "train.tar:2" in note for note in corpus.notes)
    assert any("skipped 2 images" in note and "first 3" in note for note in corpus.notes)


def test_a_key_in_two_shards(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        write_shard(tmp_path / "s" / name, {"1.png": png(), "1.txt": b"Red."})
    with pytest.raises(CorpusError, match=r"'1' .*a\.tar .*b\.tar"):
        import_corpus("webdataset", tmp_path / "s", tmp_path / "out")


def test_a_caption_that_is_not_utf8(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "x.tar", {"1.png": png(), "1.txt": b"fine\ncaf\xe9"})
    with pytest.raises(CorpusError, match=r"x\.tar:1\.txt, line 2"):
        import_corpus("webdataset", shard, tmp_path / "out")


@pytest.mark.parametrize(("data", "message"), [(b"{", "not valid JSON"), (b'{"caption": 3}', "not text")])
def test_a_bad_json(tmp_path: Path, data: bytes, message: str) -> None:
    shard = write_shard(tmp_path / "x.tar", {"1.png": png(), "1.json": data})
    with pytest.raises(CorpusError, match=rf"x\.tar:1\.json.*{message}"):
        import_corpus("webdataset", shard, tmp_path / "out")


def test_names_of_a_folder_are_one_key_however_they_are_written(tmp_path: Path) -> None:
    files = {"./a/1.png": png(), "a//1.txt": b"one", "a/./b.c/2.png": png(), "a/b.c/2.txt": b"two"}
    corpus = import_corpus("webdataset", write_shard(tmp_path / "a.tar", files), tmp_path / "out")
    assert [(text.group, text.text) for text in corpus.texts] == [("a/1", "one"), ("a/b.c/2", "two")]


def test_what_comes_before_damage_is_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> Iterator[tuple[str, bytes]]:
        yield "1.png", png()
        yield "1.png", png()
        raise CorpusError("cut")

    monkeypatch.setattr(webdataset, "shard_files", damaged)
    with pytest.raises(CorpusError, match="unique"):
        import_corpus("webdataset", write_shard(tmp_path / "a.tar", {}), tmp_path / "out")


@pytest.mark.parametrize("part", [1, 2, 1000])
def test_parts_of_any_size_hold_every_file(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(webdataset, "PART", part)
    files = [(str(number), b"x" * number) for number in range(5)]
    assert [file for files in read_ahead(webdataset._parts(iter(files))) for file in files] == files


@pytest.mark.parametrize("kept", [1, 3, 3.5, 4, 4.7, 6])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_truncated_shard(tmp_path: Path, mode: str, kept: float) -> None:
    # Cut after so many blocks of 512 bytes: in a header, in a file, and exactly where the next header would begin.
    files = {"1.png": png(), "1.txt": b"Red.", "2.png": png(), "2.txt": b"Red."}
    shard = write_shard(tmp_path / "x.tar", files, mode)
    whole = shard.read_bytes()
    shard.write_bytes(whole[: int(512 * kept)] if mode == "w" else whole[: int(len(whole) * kept / 6.1)])
    with pytest.raises(CorpusError, match="damaged or cut short"):
        import_corpus("webdataset", shard, tmp_path / "out")
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "x.tar", {"1.png": png(), "1.txt": b"Red.", "2.png": png(), "2.txt": b"Red."})
    data = bytearray(shard.read_bytes())
    data[4 * 512 : 4 * 512 + 5] = b"?????"
    shard.write_bytes(data)
    with pytest.raises(CorpusError, match="damaged or cut short"):
        import_corpus("webdataset", shard, tmp_path / "out")


def test_a_folder_without_shards(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(CorpusError, match="no tar shards"):
        import_corpus("webdataset", tmp_path / "s", tmp_path / "out")
