"""An index never writes over or removes what somebody else has put in its way."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from quintet.cli.main import app
from quintet.errors import QuintetError
from quintet.runs.run import load
from quintet.search import SearchError, StoreError
from quintet.search.index_batches import BatchEncoder
from quintet.search.index_folder import Manifest
from quintet.search.indexing import BuildReport, build_index
from quintet.search.items import ItemDatabase
from quintet.search.searcher import Searcher
from quintet.search.stores import open_store
from quintet.search.vectors import announce
from quintet.serve.decoder import Decoders
from quintet.serve.thumbnails import Thumbnails


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def build(run: Path, pictures: Path, index: Path, **options: Any) -> BuildReport:
    return build_index(run, [pictures], index, **{"device": "cpu", "batch_size": 2, "workers": 2, **options})


def files(folder: Path) -> dict[str, bytes]:
    """Everything below a folder; of links, where they lead."""
    return {
        str(path.relative_to(folder)): bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def found(index: Path) -> int:
    with Searcher.open(index, device="cpu") as searcher:
        return len(searcher.search_text(["a red thing"], k=1000)[0])


# What happened


def test_a_typing_error_does_not_cost_an_album(pixel_vse: Path, tmp_path: Path, make_images: Any) -> None:
    album = tmp_path / "album"
    album.mkdir()
    with pytest.raises(SearchError, match="does not exist"):
        build(pixel_vse, tmp_path / "typo", album)
    assert not list(album.iterdir())
    make_images(album / "pictures" / "2024", count=10)
    before = files(album)
    for overwrite in (False, True):
        with pytest.raises(SearchError, match="folder of the index"):
            build(pixel_vse, album / "pictures", album, overwrite=overwrite)
    assert files(album) == before


def test_a_typing_error_on_the_command_line(
    pixel_vse: Path, tmp_path: Path, make_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("album").mkdir()

    def call(*arguments: str) -> int:
        result = CliRunner().invoke(app, ["index", str(pixel_vse), *arguments, "-o", "album", "--device", "cpu"])
        assert isinstance(result.exception, QuintetError | SystemExit)
        return result.exit_code

    assert call("./typo")
    make_images(Path("album/pictures/2024"), count=10)
    before = files(Path("album"))
    assert call("album/pictures")
    assert call("album/pictures", "--overwrite")
    assert files(Path("album")) == before
    assert len(before) == 10


# What is not an index


FOREIGN = {
    "an empty lock": ("lock", ""),
    "a lock of another program": ("lock", "4711\n"),
    "a lock that is JSON": ("lock", '{"format": "something", "name": "x"}'),
    "a token alone": ("lock", "0123456789abcdef"),
    "another index.json": ("index.json", '{"format": "a web site"}'),
    "an index.json that is a list": ("index.json", "[1, 2]"),
    "an index.json that is no JSON": ("index.json", "<html>"),
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_a_file_of_that_name_is_not_an_index(
    pixel_vse: Path, pictures: Path, index: Path, make_images: Any, name: str, overwrite: bool
) -> None:
    make_images(index / "pictures" / "2024", count=2)
    make_images(index / "runs" / "marathon", count=2)
    file, text = FOREIGN[name]
    (index / file).write_text(text)
    before = files(index)
    with pytest.raises(SearchError, match=r"a Quintet index|other things"):
        build(pixel_vse, pictures, index, overwrite=overwrite)
    assert files(index) == before


@pytest.mark.parametrize("file", ["index.json", "lock"])
def test_a_foreign_file_in_a_real_index_is_not_written_over(
    pixel_vse: Path, pictures: Path, index: Path, file: str
) -> None:
    build(pixel_vse, pictures, index)
    (index / file).write_text("mine")
    before = files(index)
    with pytest.raises(QuintetError, match=r"move (that file away|it)"):
        build(pixel_vse, pictures, index, overwrite=True)
    assert files(index) == before
    (index / file).unlink()
    build(pixel_vse, pictures, index)
    assert found(index) == 6


@pytest.mark.parametrize("file", ["index.json", "lock"])
def test_a_link_is_no_mark(pixel_vse: Path, pictures: Path, index: Path, tmp_path: Path, file: str) -> None:
    build(pixel_vse, pictures, tmp_path / "other")
    (tmp_path / "other" / "lock").write_text('{"format": "quintet-lock"}')
    index.mkdir()
    (index / file).symlink_to(tmp_path / "other" / file)
    before = files(index), files(tmp_path / "other")
    with pytest.raises(QuintetError, match=r"of a Quintet index|symbolic link"):
        build(pixel_vse, pictures, index, overwrite=True)
    assert (files(index), files(tmp_path / "other")) == before


def test_an_empty_folder_becomes_an_index(pixel_vse: Path, pictures: Path, index: Path) -> None:
    index.mkdir()
    build(pixel_vse, pictures, index)
    assert json.loads((index / "index.json").read_text())["format"] == "quintet-index"
    assert not (index / "lock").exists()


def test_a_file_is_not_a_folder_for_an_index(pixel_vse: Path, pictures: Path, index: Path) -> None:
    index.write_text("mine")
    with pytest.raises(QuintetError, match="could not write"):
        build(pixel_vse, pictures, index, overwrite=True)
    assert index.read_text() == "mine"


# What is in an index and not of it


PLACES = [
    "mine.png",
    "images/mine.png",
    "images/2024/mine.png",
    "images/ab/mine.png",
    "images/ab/ab" + "0" * 30 + ".png",  # named by another checksum
    "images/ab/.ab" + "0" * 30 + ".png.partial",
    "pictures/mine.png",
    "runs/mine.png",
    "runs/marathon/mine.png",
    "runs/" + "a" * 64 + "/mine.png",
    "runs/.mine.partial/mine.png",
    "towers/eiffel/mine.png",
    "towers/" + "b" * 64 + "/mine.png",
    "vectors/mine.png",
    "vectors/image-2-run0-embedding.bin",  # the next name that the index would give
    "vectors/image-3-run0-lengths.bin",
    "vectors/text-1-run0-embedding.bin",
    "vectors/image-1-1.faiss",
    "segments/image-000001/segment.json",
    "generation-7/mine.png",
    "generation-8/items.sqlite",
    "generation-x/mine.png",
    ".generation-2.partial/mine.png",
    ".generation-9.01234567.partial/mine.png",
]


def place_everywhere(index: Path) -> dict[str, bytes]:
    put = {}
    for number, name in enumerate(PLACES):
        path = index / name
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        Image.new("RGB", (5, 5), (number, 0, 0)).save(buffer, "PNG")
        path.write_bytes(buffer.getvalue())
        put[name] = buffer.getvalue()
    return put


def test_photos_in_an_index_survive_everything(
    pixel_vse: Path, make_run: Any, pictures: Path, index: Path, make_images: Any
) -> None:
    build(pixel_vse, pictures, index)
    put = place_everywhere(index)
    (old,) = [path.parent.name for path in index.glob("runs/*/weights.safetensors")]
    Image.new("RGB", (5, 5)).save(index / "runs" / old / "mine.png")
    put[f"runs/{old}/mine.png"] = (index / "runs" / old / "mine.png").read_bytes()

    def check(count: int) -> None:
        now = files(index)
        assert {name: now.get(name) for name in put} == put
        assert found(index) == count

    assert build(pixel_vse, pictures, index).encoded == 0
    check(6)
    make_images(pictures / "more", count=3, seed=1)
    build(pixel_vse, pictures, index)
    check(9)
    for number in range(6):
        (pictures / f"{number}.png").unlink()
    build(pixel_vse, pictures, index)
    check(3)
    build(make_run("vse++", seed=9, word_dim=6, pixels=True), pictures, index, overwrite=True)
    check(3)
    build(pixel_vse, pictures, index, overwrite=True)
    check(3)


def test_what_the_index_made_itself_is_still_removed(
    pixel_vse: Path, make_run: Any, pictures: Path, index: Path, make_images: Any
) -> None:
    build(pixel_vse, pictures, index)
    killed = index / "runs" / ("c" * 64)
    killed.mkdir()
    with closing(ItemDatabase.open_writer(index / "items.sqlite")) as database, database.transaction():
        announce(database, [f"runs/{killed.name}/{name}" for name in ("model.json", "weights.safetensors")])
    for name in ("model.json", ".weights.safetensors.abcd1234.partial"):
        (killed / name).write_text("{}")
    build(make_run("vse++", seed=9, word_dim=6, pixels=True), pictures, index, overwrite=True)
    assert not list(index.glob(".*"))
    assert len(list((index / "runs").iterdir())) == 1
    assert [path.name for path in (index / "vectors").iterdir()] == ["image-2-run0-embedding.bin"]


def test_weights_that_the_index_does_not_know_are_somebody_elses(
    pixel_vse: Path, make_run: Any, pictures: Path, index: Path
) -> None:
    build(pixel_vse, pictures, index)
    other = make_run("vse++", seed=9, word_dim=6, pixels=True)
    mine = [index / "runs" / ("d" * 64) / "weights.safetensors", index / "towers" / ("d" * 64) / "config.json"]
    mine.append(index / "runs" / load(other, device="cpu").weights_checksum / "model.json")
    for path in mine:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"mine")
    with pytest.raises(SearchError, match="is in the way"):
        build(other, pictures, index, overwrite=True)
    build(pixel_vse, pictures, index)
    assert [path.read_bytes() for path in mine] == [b"mine"] * 3
    mine[2].unlink()
    build(other, pictures, index, overwrite=True)
    build(pixel_vse, pictures, index, overwrite=True)
    assert [path.read_bytes() for path in mine[:2]] == [b"mine"] * 2


def test_links_in_an_index_are_not_followed(
    pixel_vse: Path, make_run: Any, pictures: Path, index: Path, tmp_path: Path
) -> None:
    build(pixel_vse, pictures, index)
    other = tmp_path / "other"
    build(pixel_vse, pictures, other)
    data = (pictures / "0.png").read_bytes()
    name = hashlib.sha256(data).hexdigest()[:32]
    (other / "images" / name[:2]).mkdir(parents=True)
    (other / "images" / name[:2] / f"{name}.png").write_bytes(data)
    before = files(other)
    (index / "images").symlink_to(other / "images")
    (index / "runs" / ("a" * 64)).symlink_to(next((other / "runs").iterdir()))
    (index / "towers").symlink_to(other / "runs")
    build(make_run("vse++", seed=9, word_dim=6, pixels=True), pictures, index, overwrite=True)
    assert files(other) == before
    assert found(index) == 6


@pytest.mark.parametrize("name", ["vectors", "items.sqlite"])
def test_an_index_does_not_write_through_a_link(
    pixel_vse: Path, pictures: Path, index: Path, tmp_path: Path, name: str
) -> None:
    build(pixel_vse, pictures, index)
    build(pixel_vse, pictures, tmp_path / "other")
    (index / name).rename(tmp_path / "away")
    (index / name).symlink_to(tmp_path / "other" / name)
    before = files(tmp_path / "other")
    for overwrite in (False, True):
        with pytest.raises(SearchError, match="is a link"):
            build(pixel_vse, pictures, index, overwrite=overwrite)
    assert files(tmp_path / "other") == before


def test_images_of_shards_go_and_others_beside_them_stay(
    pixel_vse: Path, pictures: Path, index: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "shards" / "a.tar"
    shard.parent.mkdir()
    with tarfile.open(shard, "w") as tar:
        for number in range(3):
            tar.add(pictures / f"{number}.png", f"{number}.png")
    build(pixel_vse, shard, index)
    (unpacked, *_) = (index / "images").glob("*/*.png")
    mine = unpacked.with_name("mine.png")
    mine.write_bytes(b"mine")
    linked = unpacked.with_name(unpacked.stem[:2] + "0" * 30 + ".png")
    linked.symlink_to(pictures / "5.png")
    build(pixel_vse, pictures / "5.png", index)
    assert set((index / "images").glob("*/*")) == {mine, linked}
    assert (pictures / "5.png").is_file()


# The index and what it indexes


def test_an_index_does_not_lie_in_its_sources_nor_they_in_it(
    pixel_vse: Path, pictures: Path, index: Path, tmp_path: Path, make_images: Any
) -> None:
    before = files(pictures)
    (tmp_path / "link").symlink_to(pictures)
    for out in (pictures / "index", pictures / "deep" / "index", tmp_path / "link" / "index", pictures):
        for source in (pictures, tmp_path / "link"):
            with pytest.raises(SearchError, match=r"would lie inside|in the folder"):
                build(pixel_vse, source, out, overwrite=True)
    assert files(pictures) == before
    assert not (pictures / "deep").exists()

    build(pixel_vse, pictures, index)
    (photo,) = make_images(index / "holiday", count=1)
    (tmp_path / "door").symlink_to(index / "holiday")
    (index / "a.tar").write_bytes(b"")
    for source in (index, index / "holiday", photo, tmp_path / "door", index / "a.tar"):
        with pytest.raises(SearchError, match="folder of the index"):
            build(pixel_vse, source, index, overwrite=True)
    assert photo.is_file()
    assert found(index) == 6


def test_an_index_beside_a_shard_is_fine(pixel_vse: Path, pictures: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(pictures / "0.png", "0.png")
    build(pixel_vse, tmp_path / "a.tar", tmp_path / "index")
    assert (tmp_path / "a.tar").is_file()


# A build that fails


@pytest.mark.parametrize("there", [False, True])
def test_a_failed_build_leaves_nothing(
    pixel_vse: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    index = tmp_path / "new" / "deep" / "index"
    if there:
        index.mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("\n")
    cases: list[tuple[Path, dict[str, Any]]] = [
        (tmp_path / "nowhere", {}),
        (tmp_path / "empty", {}),
        (pictures, {"texts": tmp_path / "nowhere.txt"}),
        (pictures, {"texts": tmp_path / "text.txt"}),
        (pictures, {"store": "exakt"}),
    ]
    for source, options in cases:
        with pytest.raises(SearchError):
            build(pixel_vse, source, index, **options)
        assert index.exists() == there
        assert (tmp_path / "new").exists() == there
        assert not there or not list(index.iterdir())

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # the run is there already, no image is coded yet
        patch.setattr(BatchEncoder, "_encode", stop)
        with pytest.raises(KeyboardInterrupt):
            build(pixel_vse, pictures, index)
    assert (tmp_path / "new").exists() == there
    assert not there or not list(index.iterdir())


def test_a_failed_build_leaves_what_somebody_put_there_meanwhile(
    pixel_vse: Path, pictures: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        (index / "pictures").mkdir()
        (index / "pictures" / "mine.png").write_bytes(b"mine")
        raise KeyboardInterrupt

    monkeypatch.setattr(BatchEncoder, "_encode", stop)
    with pytest.raises(KeyboardInterrupt):
        build(pixel_vse, pictures, index)
    assert files(index) == {"pictures/mine.png": b"mine"}


def test_a_failed_update_leaves_the_index(pixel_vse: Path, pictures: Path, index: Path, tmp_path: Path) -> None:
    build(pixel_vse, pictures, index)
    before = files(index)
    for overwrite in (False, True):
        with pytest.raises(SearchError, match="as it was"):
            build(pixel_vse, tmp_path / "nowhere", index, overwrite=overwrite)
    assert files(index) == before
    with pytest.raises(SearchError, match="no store"):
        build(pixel_vse, pictures, index, store="exakt")
    assert Manifest.read(index).generation == 1


# Other folders that are tidied


def test_a_store_is_not_made_among_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "holiday.png").write_bytes(b"mine")
    with pytest.raises(StoreError, match="other things"):
        open_store(f"local:{folder}", 4, create=True)
    assert files(folder) == {"holiday.png": b"mine"}
    (folder / "holiday.png").rename(folder / "lock")
    with pytest.raises(StoreError, match="in the way"):
        open_store(f"local:{folder}", 4, create=True)
    assert files(folder) == {"lock": b"mine"}


def test_a_store_tidies_only_its_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = open_store(f"local:{folder}", 4, create=True)
    names = ["a.png", ".film.partial", "vectors/mine.bin", "vectors/image-2-run0-embedding.bin", "vectors/me.faiss"]
    for name in names:
        (folder / name).write_bytes(b"mine")
    store.add(["a"], [[1.0, 0, 0, 0]], [{}])  # type: ignore[arg-type]
    store.close()
    assert all((folder / name).read_bytes() == b"mine" for name in names)


def test_small_copies_are_dropped_and_photos_in_their_folder_are_not(tmp_path: Path, make_images: Any) -> None:
    cache = tmp_path / "cache"
    photos = make_images(cache, count=3)
    (picture,) = make_images(tmp_path / "pictures", count=1)
    Thumbnails(cache, 1, Decoders(1, timeout_s=30)).get(picture, 160)
    assert sorted(cache.iterdir()) == photos
