"""Folders that cannot be listed, are empty or are missing: an index keeps what it has of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.search.test_shards import pack
from typer.testing import CliRunner

from quintet.cli.main import app
from quintet.data.corpus import Corpus, Image, Text
from quintet.search import SearchError
from quintet.search.indexing import BuildReport, build_index
from quintet.search.searcher import Searcher


def build(run: Path, source: Path | list[Path], index: Path, **options: Any) -> BuildReport:
    return build_index(run, source, index, **{"device": "cpu", "workers": 2, **options})


def counts(report: BuildReport) -> tuple[int, int, int]:
    return report.added, report.kept, report.dropped


def paths(index: Path) -> set[str]:
    with Searcher.open(index, device="cpu") as searcher:
        return {str(item.item.path) for item in searcher._opened.items.all("image")}


def told(report: BuildReport) -> list[tuple[str, int]]:
    return [(Path(each.path).name, each.kept) for each in report.unlisted]


@pytest.fixture
def album(tmp_path: Path, make_images: Any) -> Path:
    """Six images, four of them in folders."""
    album = tmp_path / "album"
    make_images(album, count=2)
    make_images(album / "2023" / "may", count=2, seed=1)
    make_images(album / "2024", count=2, seed=2)
    return album


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`fails("scandir", folder)`: asking the system for that fails, as for a folder of somebody else."""

    def fail(call: str, folder: Path, code: int = errno.EACCES) -> None:
        original = getattr(os, call)

        def refused(path: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(path, str | Path) and os.path.realpath(path).startswith(os.path.realpath(folder)):
                raise OSError(code, os.strerror(code), str(path))
            return original(path, *arguments, **options)

        monkeypatch.setattr(os, call, refused)

    return fail


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG])
@pytest.mark.parametrize("prune", [False, True])
def test_a_folder_that_cannot_be_listed_keeps_its_images(
    pixel_vse: Path, album: Path, tmp_path: Path, fails: Any, code: int, prune: bool
) -> None:
    build(pixel_vse, album, tmp_path / "index")
    before = paths(tmp_path / "index")
    (album / "0.png").unlink()
    fails("scandir", album / "2023", code)
    report = build(pixel_vse, album, tmp_path / "index", prune=prune)
    assert counts(report) == (0, 5, 1)
    assert told(report) == [("2023", 2)]
    assert report.unlisted[0].why == os.strerror(code)
    assert paths(tmp_path / "index") == before - {"0.png"}


def test_a_folder_whose_files_cannot_be_looked_at_keeps_its_images(
    pixel_vse: Path, album: Path, tmp_path: Path, fails: Any
) -> None:
    """A folder that may be read, but not searched."""
    build(pixel_vse, album, tmp_path / "index")
    fails("stat", album / "2024")
    report = build(pixel_vse, album, tmp_path / "index")
    assert counts(report) == (0, 6, 0)
    assert told(report) == [("2024", 2)]


def test_a_new_folder_that_cannot_be_listed_is_told(pixel_vse: Path, album: Path, tmp_path: Path, fails: Any) -> None:
    fails("scandir", album / "2024")
    report = build(pixel_vse, album, tmp_path / "index")
    assert counts(report) == (4, 0, 0)
    assert told(report) == [("2024", 0)]


@pytest.mark.parametrize("what", ["subfolder", "root", "missing root"])
def test_what_is_not_mounted_stays_until_it_is_pruned(
    pixel_vse: Path, album: Path, tmp_path: Path, make_images: Any, what: str
) -> None:
    """The folder is there and empty, or gone with its disk. Back again, nothing is encoded anew."""
    make_images(tmp_path / "other", count=2, seed=5)
    sources, index = [album, tmp_path / "other"], tmp_path / "index"
    build(pixel_vse, sources, index)
    before = paths(index)
    disk, count = (album / "2024", 2) if what == "subfolder" else (album, 6)
    disk.rename(tmp_path / "disk")
    if what != "missing root":
        disk.mkdir()
    report = build(pixel_vse, sources, index)
    assert counts(report) == (0, 8, 0)
    assert told(report) == [(disk.name, count)]
    assert report.unlisted[0].gone
    assert paths(index) == before
    if what != "missing root":
        disk.rmdir()
    (tmp_path / "disk").rename(disk)
    again = build(pixel_vse, sources, index)
    assert (counts(again), again.encoded, again.unlisted) == ((0, 8, 0), 0, [])
    shutil.rmtree(disk)
    if what != "missing root":
        disk.mkdir()
    pruned = build(pixel_vse, sources, index, prune=True)
    assert (counts(pruned), pruned.unlisted) == ((0, 8 - count, count), [])


def test_the_only_source_may_be_away_too(pixel_vse: Path, album: Path, tmp_path: Path) -> None:
    build(pixel_vse, album, tmp_path / "index")
    album.rename(tmp_path / "disk")
    assert told(build(pixel_vse, album, tmp_path / "index")) == [("album", 6)]
    with pytest.raises(SearchError, match="nothing would be left"):
        build(pixel_vse, album, tmp_path / "index", prune=True)
    assert len(paths(tmp_path / "index")) == 6
    with pytest.raises(SearchError, match="does not exist"):
        build(pixel_vse, album, tmp_path / "index", overwrite=True)
    with pytest.raises(SearchError, match="does not exist"):
        build(pixel_vse, [album, tmp_path / "typo"], tmp_path / "index")
    assert len(paths(tmp_path / "index")) == 6


def test_files_that_were_moved_out_of_a_folder_are_not_kept_in_it(pixel_vse: Path, album: Path, tmp_path: Path) -> None:
    build(pixel_vse, album, tmp_path / "index")
    shutil.copy(album / "2024" / "1.png", album / "copy.png")  # of an image that was indexed
    build(pixel_vse, album, tmp_path / "index")
    (album / "2024" / "0.png").rename(album / "moved.png")
    (album / "2024" / "1.png").unlink()
    report = build(pixel_vse, album, tmp_path / "index")
    assert told(report) == [("2024", 1)]
    expected = {"0.png", "1.png", "2023/may/0.png", "2023/may/1.png", "copy.png", "moved.png", "2024/1.png"}
    assert paths(tmp_path / "index") == expected


def test_a_folder_without_images_that_is_empty_is_no_matter(pixel_vse: Path, album: Path, tmp_path: Path) -> None:
    (album / "nothing").mkdir()
    (album / "hidden").mkdir()
    (album / "hidden" / ".x").touch()
    build(pixel_vse, album, tmp_path / "index")
    assert build(pixel_vse, album, tmp_path / "index").unlisted == []


@pytest.mark.parametrize(("gone", "refused"), [(10, False), (11, True), (12, True)])
def test_dropping_more_than_a_fifth_and_a_handful_needs_to_be_told(
    pixel_vse: Path, tmp_path: Path, make_images: Any, gone: int, refused: bool
) -> None:
    images = make_images(tmp_path / "album", count=40)
    build(pixel_vse, tmp_path / "album", tmp_path / "index", batch_size=40)
    for path in images[:gone]:
        path.unlink()
    if refused:
        with pytest.raises(SearchError, match=rf"{gone} of 40 images"):
            build(pixel_vse, tmp_path / "album", tmp_path / "index")
        assert len(paths(tmp_path / "index")) == 40
    report = build(pixel_vse, tmp_path / "album", tmp_path / "index", prune=refused)
    assert counts(report) == (0, 40 - gone, gone)


def test_images_that_changed_or_moved_are_not_gone(pixel_vse: Path, tmp_path: Path, make_images: Any) -> None:
    images = make_images(tmp_path / "album", count=24)
    build(pixel_vse, tmp_path / "album", tmp_path / "index", batch_size=40)
    changed = make_images(tmp_path / "changed", count=12, seed=1)
    (tmp_path / "album" / "deep").mkdir()
    for old, new in zip(images[:12], changed, strict=True):
        new.replace(old)
    for path in images[12:]:
        path.rename(path.parent / "deep" / path.name)
    assert counts(build(pixel_vse, tmp_path / "album", tmp_path / "index")) == (12, 12, 12)


def test_new_images_do_not_make_up_for_those_that_are_gone(pixel_vse: Path, tmp_path: Path, make_images: Any) -> None:
    make_images(tmp_path / "a", count=12)
    make_images(tmp_path / "b", count=20, seed=1)
    build(pixel_vse, tmp_path / "a", tmp_path / "index", batch_size=40)
    with pytest.raises(SearchError, match="12 of 12 images"):
        build(pixel_vse, tmp_path / "b", tmp_path / "index", batch_size=40)
    report = build(pixel_vse, [tmp_path / "a", tmp_path / "b"], tmp_path / "index")
    assert (counts(report), report.encoded) == ((20, 12, 0), 0)  # encoded before the refusal


def test_texts_are_not_dropped_by_the_way(pixel_vse: Path, album: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(f"a red thing {number}" for number in range(20)))
    build(pixel_vse, album, tmp_path / "index", texts=tmp_path / "texts.txt")
    with pytest.raises(SearchError, match="20 of 20 texts"):
        build(pixel_vse, album, tmp_path / "index")
    assert counts(build(pixel_vse, album, tmp_path / "index", prune=True)) == (0, 6, 20)


def test_an_index_that_is_replaced_does_not_lose_what_cannot_be_listed(
    pixel_vse: Path, album: Path, tmp_path: Path, fails: Any
) -> None:
    build(pixel_vse, album, tmp_path / "index")
    fails("scandir", album / "2024")
    with pytest.raises(SearchError, match="cannot keep"):
        build(pixel_vse, album, tmp_path / "index", overwrite=True)
    assert len(paths(tmp_path / "index")) == 6
    assert counts(build(pixel_vse, album, tmp_path / "index", overwrite=True, prune=True))[0] == 4


def test_a_damaged_shard_keeps_what_was_in_it(pixel_vse: Path, album: Path, tmp_path: Path) -> None:
    shards, index = tmp_path / "shards", tmp_path / "index"
    data = {f"{number}.png": path.read_bytes() for number, path in enumerate(sorted(album.rglob("*.png")))}
    pack(shards / "deep" / "a.tar", data)
    pack(shards / "b.tar", {"x.png": data["0.png"]})
    build(pixel_vse, shards, index)
    whole = (shards / "deep" / "a.tar").read_bytes()
    (shards / "deep" / "a.tar").write_bytes(whole[: len(whole) // 2])
    report = build(pixel_vse, shards, index)
    assert counts(report) == (0, 7, 0)
    assert [name for name, _ in told(report)] == ["a.tar"]
    assert "cut short" in json.dumps(report.unreadable)
    shutil.rmtree(shards / "deep")
    (shards / "deep").mkdir()
    report = build(pixel_vse, shards, index)
    assert (counts(report), told(report)) == ((0, 7, 0), [("deep", 6)])
    shards.rename(tmp_path / "disk")
    assert told(build(pixel_vse, shards, index)) == [("shards", 7)]
    with Searcher.open(index, device="cpu") as searcher:
        assert all(searcher.image_path(hit.item.id).is_file() for hit in searcher.search("a red thing"))


def test_the_images_of_a_corpus_may_be_away(pixel_vse: Path, album: Path, tmp_path: Path) -> None:
    files = sorted(album.rglob("*.png"))
    images = [Image(f"i{number}", f"g{number}", str(path), {}) for number, path in enumerate(files)]
    texts = [Text(f"t{number}", f"g{number}", "a red thing") for number in range(6)]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    Corpus("small", images, texts, {"test": [f"g{number}" for number in range(6)]}, root=corpus).save(corpus)
    build(pixel_vse, corpus, tmp_path / "index")
    (album / "0.png").unlink()  # out of a folder with other images: deleted
    (album / "2024").rename(tmp_path / "disk")
    report = build(pixel_vse, corpus, tmp_path / "index")
    assert (counts(report), told(report)) == ((0, 5, 1), [("2024", 2)])
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        assert len(searcher.search("a red thing", where="image=i4")) == 1
    assert counts(build(pixel_vse, corpus, tmp_path / "index", prune=True)) == (0, 3, 2)
    (corpus / "corpus.json").unlink()
    with pytest.raises(SearchError, match="was a corpus"):
        build(pixel_vse, corpus, tmp_path / "index")


def test_the_command_says_what_is_kept_and_ends_with_status_3(pixel_vse: Path, album: Path, tmp_path: Path) -> None:
    line = ["index", str(pixel_vse), str(album), "-o", str(tmp_path / "index"), "--device", "cpu"]
    assert CliRunner().invoke(app, line).exit_code == 0
    shutil.rmtree(album / "2024")
    (album / "2024").mkdir()
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 3
    assert "2024: is empty; 2 of its images are kept; to drop them, add --prune" in result.output
    result = CliRunner().invoke(app, [*line, "--json"])
    assert result.exit_code == 3
    facts = json.loads(result.stdout)["unlisted"]
    assert facts == [{"path": str(album / "2024"), "why": "is empty", "gone": True, "kept": 2}]
    assert CliRunner().invoke(app, [*line, "--prune"]).exit_code == 0
