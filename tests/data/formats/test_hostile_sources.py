"""Whatever is in a source: a corpus, or a `QuintetError`; one damaged file does not stop an import."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quintet.data.corpus import Corpus
from quintet.data.formats import import_corpus
from quintet.data.formats.assembly import image_name
from quintet.errors import QuintetError


def png(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 3), "red").save(path)
    return path


def make_flickr(folder: Path) -> Path:
    png(folder / "images" / "1.jpg")
    (folder / "x.token").write_text("1.jpg#0\tA dog.\n1.jpg#1\tA red dog.\n")
    for name in ("train", "dev", "test"):
        (folder / f"{name}.txt").write_text("1.jpg\n" if name == "train" else "")
    return folder / "x.token"


def make_karpathy(folder: Path) -> Path:
    png(folder / "images" / "1.png")
    row = {"filename": "1.png", "split": "train", "imgid": 1, "sentences": [{"raw": "A dog."}]}
    (folder / "dataset_x.json").write_text(json.dumps({"images": [row], "dataset": "x"}))
    return folder / "dataset_x.json"


def make_cuhk(folder: Path) -> Path:
    png(folder / "imgs" / "1.png")
    row = {"split": "train", "file_path": "1.png", "captions": ["A man."], "id": 7}
    (folder / "reid_raw.json").write_text(json.dumps([row]))
    return folder / "reid_raw.json"


def make_table(name: str, content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        png(folder / "1.png")
        (folder / name).write_text(content)
        return folder / name

    return make


def make_sidecar(folder: Path) -> Path:
    png(folder / "1.png")
    (folder / "1.txt").write_text("A dog.\n")
    return folder / "1.txt"


def make_parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    png(folder / "1.png")
    parquet.write_table(pyarrow.table({"image": ["1.png"], "caption": ["A dog."]}), folder / "t.parquet")
    return folder / "t.parquet"


def make_tar(mode: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files = {"1.png": png(folder / "x.png").read_bytes(), "1.txt": b"A dog.", "1.json": b'{"caption": ["Red."]}'}
        (folder / "x.png").unlink()
        with tarfile.open(folder / "train.tar", mode) as tar:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.pax_headers = len(data), {"comment": "x" * 9}
                tar.addfile(member, io.BytesIO(data))
        return folder / "train.tar"

    return make


def make_precomp(file: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "train_caps.txt").write_text("A dog.\nA cat.\n")
        np.save(folder / "train_ims.npy", np.ones((2, 2, 3), np.float32))
        np.save(folder / "train_boxes.npy", np.ones((2, 2, 4), np.float32))
        np.save(folder / "train_img_sizes.npy", np.full((2, 2), 9))
        (folder / "train_ids.txt").write_text("a\nb\n")
        return folder / file

    return make


SOURCES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "flickr": ("flickr", make_flickr),
    "karpathy": ("karpathy", make_karpathy),
    "cuhk": ("cuhk", make_cuhk),
    "csv": ("folder", make_table("t.csv", 'image,caption,split,group\n1.png,"A dog, red.",train,g\n')),
    "tsv": ("folder", make_table("t.tsv", "image\tcaption\n1.png\tA dog.\n")),
    "jsonl": ("folder", make_table("t.jsonl", '{"image": "1.png", "caption": ["A dog."], "group": 3}\n')),
    "parquet": ("folder", make_parquet),
    "sidecar": ("folder", make_sidecar),
    "tar": ("webdataset", make_tar("w")),
    "tar.gz": ("webdataset", make_tar("w:gz")),
    "ims": ("precomp", make_precomp("train_ims.npy")),
    "boxes": ("precomp", make_precomp("train_boxes.npy")),
    "sizes": ("precomp", make_precomp("train_img_sizes.npy")),
    "ids": ("precomp", make_precomp("train_ids.txt")),
}
TOKENS = [
    b"\xff",
    b"\0",
    b"null",
    b"[" * 3000,
    b"9" * 5000,
    b"1e999",
    b"{}",
    b'"',
    b"\\ud800",
    b"-1",
    b"\n",
    b"#",
    b"\t",
]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut, doubled, or replaced by something hostile."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 1:
                changed[at : at + rng.randint(0, 8)] = rng.choice(TOKENS)
            case 2:
                del changed[at:]
            case _:
                changed[at:at] = changed[at : at + 40]
    return bytes(changed)


@pytest.mark.parametrize("name", SOURCES)
def test_a_mutated_source_gives_a_corpus_or_an_error(tmp_path: Path, name: str) -> None:
    format, make = SOURCES[name]
    source = tmp_path / "source"
    source.mkdir()
    path = make(source)
    content = path.read_bytes()
    assert isinstance(import_corpus(format, source, tmp_path / "good"), Corpus)
    rng = random.Random(name)
    for number in range(15):
        path.write_bytes(mutated(content, rng))
        with suppress(QuintetError):
            import_corpus(format, source, tmp_path / f"out{number}")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("karpathy", {"images": [3]}, r"images\[0\] must be"),
        ("karpathy", {"images": [{"filename": 3, "split": "train", "sentences": []}]}, "'filename' must be"),
        ("karpathy", {"images": [{"filename": "a", "split": None, "sentences": []}]}, "'split' must be"),
        ("karpathy", {"images": [{"filename": "a", "split": "train", "sentences": [1]}]}, r"sentences\[0\] must be"),
        ("cuhk", [[]], "image 0 must be"),
        ("cuhk", [{"split": 1, "file_path": "a", "captions": [], "id": 1}], "'split' must be"),
        ("cuhk", [{"split": "train", "file_path": [], "captions": [], "id": 1}], "'file_path' must be"),
        ("cuhk", [{"split": "train", "file_path": "a", "captions": [], "id": 1.5}], "'id' must be"),
    ],
)
def test_a_wrong_type_names_file_row_and_field(tmp_path: Path, name: str, change: Any, message: str) -> None:
    format, make = SOURCES[name]
    path = make(tmp_path)
    path.write_text(json.dumps(change))
    with pytest.raises(QuintetError, match=message) as error:
        import_corpus(format, tmp_path, tmp_path / "out")
    assert str(path) in str(error.value)


def test_damaged_captions_and_names_in_a_shard_are_listed_and_the_rest_goes_on(tmp_path: Path) -> None:
    shard = tmp_path / "train.tar"
    picture = png(tmp_path / "x.png").read_bytes()
    files = {
        b"good.png": picture, b"good.txt": b"Red.", b"bad.png": picture, b"bad.txt": b"caf\xe9",
        b"deep.png": picture, b"deep.json": b"[" * 100_000, b"caf\xe9.png": picture, b"caf\xe9.txt": b"Red.",
        b"a.png/b.png": picture, b"a.png/b.txt": b"Inside.", b"a.png": picture, b"a.txt": b"Beside.",
        b"l" * 300 + b".png": picture, b"l" * 300 + b".txt": b"Long.",
    }  # fmt: skip
    with tarfile.open(shard, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(os.fsdecode(name))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        device = tarfile.TarInfo("null.png")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    corpus = import_corpus("webdataset", shard, tmp_path / "out")
    assert {image.id for image in corpus.images} == {"good", "a.png/b", "a", "l" * 300}
    assert all(corpus.image_path(image).read_bytes() == picture for image in corpus.images)
    notes = "\n".join(corpus.notes)
    for listed in ("2 files in shards whose names are not UTF-8", "2 caption files that are damaged", "1 links"):
        assert listed in notes
    with pytest.raises(QuintetError, match=r"bad\.txt"):
        import_corpus("webdataset", shard, tmp_path / "strict", strict=True)


def test_a_header_of_gigabytes_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 6 * 2**30
    (tmp_path / "x.tar").write_bytes(member.tobuf() + b"\0" * 2**20)
    with pytest.raises(QuintetError, match="header of"):
        import_corpus("webdataset", tmp_path / "x.tar", tmp_path / "out")


def test_names_links_and_folders_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("good.png", "loop.png", "pipe.png"):
        png(source / name)
        (source / name).with_suffix(".txt").write_text("A dog.")
    (source / "loop.png").unlink()
    (source / "loop.png").symlink_to("loop.png")
    (source / "pipe.txt").unlink()
    os.mkfifo(source / "pipe.txt")
    (source / "bad.txt").write_bytes(b"\xff")
    png(source / "bad.png")
    with suppress(OSError):  # a file system that takes UTF-8 only
        os.rename(png(source / "z.png"), os.fsencode(source) + b"/caf\xe9.png")  # noqa: PTH104
    (source / "self").symlink_to(source)
    deep = source
    for _ in range(300):
        deep /= "d"
    deep.mkdir(parents=True)
    corpus = import_corpus("folder", source, tmp_path / "out")
    assert [image.id for image in corpus.images] == ["good.png"]
    notes = "\n".join(corpus.notes)
    assert "1 images whose caption file is damaged" in notes
    assert "1 images that do not exist" in notes


def test_a_folder_is_never_called_like_an_image_and_names_stay_short() -> None:
    taken: set[str] = set()
    assert image_name("a.jpg/b", ".jpg", taken) == "a.jpg_/b.jpg"
    assert len(image_name("x/" * 3000, ".jpg", taken)) < 100
    assert len(image_name("x" * 3000, ".jpg", taken)) < 100


def test_a_second_import_into_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_sidecar(source)
    real = Corpus.save

    def save(self: Corpus, folder: Path) -> None:
        monkeypatch.setattr(Corpus, "save", real)
        with pytest.raises(QuintetError, match="another process"):
            import_corpus("folder", source, tmp_path / "out")
        real(self, folder)

    monkeypatch.setattr(Corpus, "save", save)
    import_corpus("folder", source, tmp_path / "out")
    assert not (tmp_path / "out" / ".quintet.lock").exists()


def test_what_a_killed_import_left_is_removed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_sidecar(source)
    pictures = tmp_path / "out" / "images"
    pictures.mkdir(parents=True)
    (pictures / ".1.png.abcdefgh.partial").write_bytes(b"half")
    (pictures / ".mine.abcdefgh.partial").write_bytes(b"someone's")
    import_corpus("folder", source, tmp_path / "out", copy=True)
    assert sorted(path.name for path in pictures.iterdir()) == [".mine.abcdefgh.partial", "1.png"]
