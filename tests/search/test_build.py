from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from quintet.backbones.extractor import FeatureExtractor
from quintet.cli.main import app
from quintet.errors import QuintetError
from quintet.files import file_checksum
from quintet.runs.run import load
from quintet.search import SearchError, StaleIndex, encoded, indexing, vectors
from quintet.search.index_batches import BatchEncoder
from quintet.search.index_folder import Manifest
from quintet.search.indexing import BuildReport, build_index
from quintet.search.ownership import writing
from quintet.search.searcher import Searcher


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


def build(run: Path, pictures: Path, index: Path, **options: Any) -> BuildReport:
    return build_index(run, [pictures], index, **{"device": "cpu", "batch_size": 2, "workers": 2, **options})


def paths(index: Path) -> set[str]:
    with Searcher.open(index, device="cpu") as searcher:
        (hits,) = searcher.search_text(["a red thing"], k=1000)
        return {str(hit.item.path) for hit in hits}


def counts(report: BuildReport) -> tuple[int, int, int, int]:
    return report.added, report.kept, report.dropped, report.encoded


def test_the_next_build_adds_what_is_new_and_drops_what_is_gone(
    pixel_vse: Path, pictures: Path, index: Path, make_images: Any
) -> None:
    assert counts(build(pixel_vse, pictures, index)) == (6, 0, 0, 6)
    (pictures / "1.png").unlink()
    make_images(pictures / "more", count=2, seed=1)
    assert counts(build(pixel_vse, pictures, index)) == (2, 5, 1, 2)
    assert paths(index) == {"0.png", "2.png", "3.png", "4.png", "5.png", "more/0.png", "more/1.png"}


def test_nothing_changed_makes_no_new_generation(pixel_vse: Path, pictures: Path, index: Path) -> None:
    build(pixel_vse, pictures, index)
    before = (index / "index.json").read_bytes()
    report = build(pixel_vse, pictures, index)
    assert counts(report) == (0, 6, 0, 0)
    assert (index / "index.json").read_bytes() == before


def test_a_moved_file_keeps_its_code_and_its_id(pixel_vse: Path, pictures: Path, index: Path) -> None:
    build(pixel_vse, pictures, index)
    with Searcher.open(index, device="cpu") as searcher:
        before = {hit.item.path: hit.item.id for hit in searcher.search_text(["a red thing"], k=9)[0]}
    (pictures / "deep" / "er").mkdir(parents=True)
    (pictures / "3.png").rename(pictures / "deep" / "er" / "renamed.png")
    assert counts(build(pixel_vse, pictures, index)) == (0, 6, 0, 0)
    with Searcher.open(index, device="cpu") as searcher:
        after = {hit.item.path: hit.item.id for hit in searcher.search_text(["a red thing"], k=9)[0]}
    assert after["deep/er/renamed.png"] == before["3.png"]
    assert "3.png" not in after


def test_a_changed_file_is_looked_at_again(pixel_vse: Path, pictures: Path, index: Path) -> None:
    build(pixel_vse, pictures, index)
    Image.new("RGB", (9, 9), "teal").save(pictures / "0.png")
    assert counts(build(pixel_vse, pictures, index)) == (1, 5, 1, 1)


def test_equal_images_are_coded_once_and_found_twice(pixel_vse: Path, pictures: Path, index: Path) -> None:
    shutil.copy(pictures / "0.png", pictures / "copy of 0.png")
    assert counts(build(pixel_vse, pictures, index)) == (7, 0, 0, 6)
    assert {"0.png", "copy of 0.png"} <= paths(index)
    (pictures / "0.png").unlink()
    assert counts(build(pixel_vse, pictures, index))[3] == 0
    assert "copy of 0.png" in paths(index)


def test_what_cannot_be_read_is_listed_with_its_reason(pixel_vse: Path, pictures: Path, index: Path) -> None:
    (pictures / "text.jpg").write_text("not an image")
    (pictures / "empty.png").touch()
    (pictures / "phone.HEIC").write_bytes(b"anything")
    (pictures / "bomb.ppm").write_bytes(b"P6 30000 30000 255\n")
    (pictures / "link.png").symlink_to(Path(__file__))
    (pictures / ".hidden.png").write_text("passed over")
    (pictures / "notes.txt").write_text("passed over")
    (pictures / "IMG_1.MOV").write_text("the video of a live photo")
    report = build(pixel_vse, pictures, index)
    assert (report.added, report.videos) == (6, 1)
    reasons = {Path(path).name: why for path, why in report.unreadable}
    assert set(reasons) == {"text.jpg", "empty.png", "phone.HEIC", "bomb.ppm", "link.png"}
    assert "not an image" in reasons["text.jpg"]
    assert "decompression bomb" in reasons["bomb.ppm"]
    assert "leads out" in reasons["link.png"]
    assert "not an image" in reasons["phone.HEIC"]


def test_a_name_that_is_not_utf8_is_indexed_shown_and_found(
    pixel_vse: Path, pictures: Path, index: Path, tmp_path: Path
) -> None:
    pictures = pictures.rename(os.fsdecode(os.fsencode(tmp_path) + b"/alb\xfcm"))
    strange = os.fsdecode(os.fsencode(pictures) + b"/\xff.png")
    try:
        (pictures / "0.png").rename(strange)
    except OSError:
        pytest.skip("this file system allows only UTF-8 names")
    (pictures / r"\xff.png").write_bytes((pictures / "1.png").read_bytes())  # looks like the other when it is shown
    assert counts(build(pixel_vse, pictures, index)) == (7, 0, 0, 6)
    assert counts(build(pixel_vse, pictures, index)) == (0, 7, 0, 0)
    with Searcher.open(index, device="cpu") as searcher:
        found = {hit.item.path: hit for hit in searcher.search("a red thing", where=r"path~*xff.png")}
        assert set(found) == {r"\xff.png", r"\x5cxff.png"}
        hit = found[r"\xff.png"]
        assert str(hit.path) == strange
        assert str(searcher.image_path(hit.item.id)) == strange
    line = ["search", str(index), "a red thing", "--json", "--device", "cpu"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    hits = json.loads(result.stdout)[0]["hits"]
    assert r"\xff.png" in [hit["path"] for hit in hits]
    assert hits[0]["root"].endswith(r"/alb\xfcm")


def test_an_index_or_a_run_whose_path_is_not_utf8_is_refused(pixel_vse: Path, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="not UTF-8"):
        build(pixel_vse, pictures, tmp_path / "in\udcffdex")
    assert not (tmp_path / "in\udcffdex").exists()
    try:
        run = shutil.copytree(pixel_vse, tmp_path / "run\udcff")
    except OSError:
        pytest.skip("this file system allows only UTF-8 names")
    with pytest.raises(QuintetError, match="not UTF-8"):
        load(run)


def test_an_index_inside_the_images_is_refused(pixel_vse: Path, pictures: Path) -> None:
    with pytest.raises(SearchError, match="would lie inside"):
        build(pixel_vse, pictures, pictures / "index")
    assert not (pictures / "index").exists()


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_source_without_images_changes_nothing(pixel_vse: Path, pictures: Path, index: Path, name: str) -> None:
    """A disk that is not mounted must not empty the index."""
    build(pixel_vse, pictures, index)
    (pictures.parent / "empty").mkdir()
    with pytest.raises(SearchError, match="as it was"):
        build(pixel_vse, pictures.parent / name, index)
    assert len(paths(index)) == 6


def test_a_folder_of_other_things_is_refused(pixel_vse: Path, pictures: Path, make_images: Any, index: Path) -> None:
    make_images(index)
    with pytest.raises(SearchError, match="other things"):
        build(pixel_vse, pictures, index)
    assert len(list(index.iterdir())) == 6


def test_dates_sizes_and_sidecars_become_metadata(pixel_vse: Path, pictures: Path, index: Path) -> None:
    exif = Image.Exif()
    exif[0x0132] = "2023:07:09 12:13:14"
    Image.new("RGB", (30, 20), "navy").save(pictures / "sea.jpg", exif=exif)
    (pictures / "sea.jpg.json").write_text(json.dumps({"album": "sea", "stars": 4, "people": ["a"], "width": "lie"}))
    build(pixel_vse, pictures, index)
    with Searcher.open(index, device="cpu") as searcher:
        found = {hit.item.path: hit.item.metadata for hit in searcher.search_text(["a thing"], k=9)[0]}
    facts = found["sea.jpg"]
    assert {key: facts[key] for key in ("width", "height", "date", "time", "year", "album", "stars")} == {
        "width": 30,
        "height": 20,
        "date": "2023-07-09",
        "time": "12:13:14",
        "year": 2023,
        "album": "sea",
        "stars": 4,
    }
    assert "people" not in facts
    (pictures / "sea.jpg.json").write_text('{"album": "lake"}')
    assert counts(build(pixel_vse, pictures, index)) == (0, 7, 0, 0)
    with Searcher.open(index, device="cpu") as searcher:
        from quintet.search.stores import parse_where

        (hits,) = searcher.search_text(["a thing"], where=parse_where("album=lake"))
    assert [hit.item.path for hit in hits] == ["sea.jpg"]


def test_a_photo_without_a_date_has_that_of_its_file(pixel_vse: Path, pictures: Path, index: Path) -> None:
    (pictures / "2019" / "sea").mkdir(parents=True)
    for name, fields in (("old.png", "{}"), ("noted.png", '{"date": "1999-12-31"}')):
        Image.new("RGB", (30, 20 + len(name)), "navy").save(pictures / "2019/sea" / name)
        (pictures / "2019/sea" / f"{name}.json").write_text(fields)
        os.utime(pictures / "2019/sea" / name, (1_553_000_000, 1_553_000_000))  # 2019-03-19 12:53:20 UTC
    build(pixel_vse, pictures, index)
    with Searcher.open(index, device="cpu") as searcher:
        found = {hit.item.path: hit.item.metadata for hit in searcher.search_text(["a thing"], k=9)[0]}
    old = found["2019/sea/old.png"]
    assert {name: old[name] for name in ("date", "time", "year", "date_from", "modified", "folder", "orientation")} == {
        "date": "2019-03-19",
        "time": "12:53:20",
        "year": 2019,
        "date_from": "file",
        "modified": "2019-03-19",
        "folder": "2019/sea",
        "orientation": "landscape",
    }
    assert found["2019/sea/noted.png"]["date"] == "1999-12-31"
    assert "year" not in found["2019/sea/noted.png"]
    assert found["0.png"]["folder"] == "."


def test_a_large_jpeg_keeps_its_size_and_nearly_its_code(pixel_vse: Path, tmp_path: Path, index: Path) -> None:
    (tmp_path / "photos").mkdir()
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    Image.fromarray(small).resize((1600, 1200), Image.Resampling.BICUBIC).save(tmp_path / "photos/a.jpg", quality=90)
    build(pixel_vse, tmp_path / "photos", index)
    with Searcher.open(index, device="cpu") as searcher:
        (hit,) = searcher.search(tmp_path / "photos/a.jpg")
        (whole,) = searcher.search(Image.open(tmp_path / "photos/a.jpg"))
    assert (hit.item.metadata["width"], hit.item.metadata["height"]) == (1600, 1200)
    assert hit.score == pytest.approx(1, abs=1e-6)  # the query is decoded as the index was
    assert 0.999 < whole.score < 1


# Stopped at any moment


class StopError(Exception):
    pass


def test_a_build_that_was_stopped_goes_on_where_it_was(
    pixel_vse: Path, pictures: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = BatchEncoder._encode, 0

    def stop(self: BatchEncoder, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StopError
        return original(self, *arguments)

    monkeypatch.setattr(BatchEncoder, "_encode", stop)
    with pytest.raises(StopError):
        build(pixel_vse, pictures, index)
    with pytest.raises(SearchError, match="not finished"):
        Searcher.open(index)
    monkeypatch.setattr(BatchEncoder, "_encode", original)
    done: list[tuple[int, int]] = []
    report = build(pixel_vse, pictures, index, progress=lambda *at: done.append(at))
    assert counts(report) == (6, 0, 0, 2)
    assert done[-1] == (6, 6)


STEPS = [
    (indexing, "_prepare_indexes"),
    (indexing, "_commit"),
    (Manifest, "put"),  # in the middle of the transaction
    (encoded.EncodedItems, "commit"),
    (encoded.EncodedItems, "compact"),
]


@pytest.mark.parametrize(("where", "step"), STEPS, ids=[step for _, step in STEPS])
def test_a_failure_at_any_step_leaves_the_old_index_serving(
    pixel_vse: Path,
    pictures: Path,
    index: Path,
    make_images: Any,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    step: str,
) -> None:
    build(pixel_vse, pictures, index)
    make_images(pictures / "more", count=3, seed=1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(where, step, full)
        with pytest.raises((QuintetError, OSError), match="No space left"):
            build(pixel_vse, pictures, index)
    assert len(paths(index)) == 6
    assert counts(build(pixel_vse, pictures, index)) == (3, 6, 0, 0)  # coded before the failure
    assert len(paths(index)) == 9
    assert not list(index.glob(".*"))


def test_a_full_disk_while_coding_is_told_and_resumed(
    pixel_vse: Path, pictures: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = vectors.write_synced, 0

    def full(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(*arguments)

    monkeypatch.setattr(vectors, "write_synced", full)
    with pytest.raises(SearchError, match=r"No space left.*resumes"):
        build(pixel_vse, pictures, index)
    monkeypatch.setattr(vectors, "write_synced", original)
    assert counts(build(pixel_vse, pictures, index)) == (6, 0, 0, 2)


# Other runs, other versions, other writers


def test_a_second_writer_is_refused(pixel_vse: Path, pictures: Path, index: Path) -> None:
    build(pixel_vse, pictures, index)
    with writing(index), pytest.raises(SearchError, match="another process"):
        build(pixel_vse, pictures, index)
    assert len(paths(index)) == 6


def test_codes_of_different_runs_are_never_mixed(pixel_vse: Path, make_run: Any, pictures: Path, index: Path) -> None:
    build(pixel_vse, pictures, index)
    other = make_run("vse++", seed=9, word_dim=6, pixels=True)
    with pytest.raises(StaleIndex, match="other runs"):
        build(other, pictures, index)
    assert counts(build(other, pictures, index, overwrite=True)) == (6, 0, 0, 6)
    with Searcher.open(index, device="cpu") as searcher:
        assert searcher.describe()["runs"][0]["name"] == "vse++-9"
    assert len(list((index / "runs").iterdir())) == 1


@pytest.mark.parametrize("change", [{"version": 99}, {"version": 1}, {"version": None}, {"version": "3"}])
def test_an_index_of_another_version_is_not_guessed_at(
    pixel_vse: Path, pictures: Path, index: Path, change: dict[str, Any]
) -> None:
    build(pixel_vse, pictures, index)
    head = json.loads((index / "index.json").read_text())
    (index / "index.json").write_text(json.dumps(head | change))
    with pytest.raises(StaleIndex):
        Searcher.open(index)
    before = sorted(index.rglob("*"))
    for overwrite in (False, True):
        with pytest.raises(StaleIndex):
            build(pixel_vse, pictures, index, overwrite=overwrite)
    assert sorted(index.rglob("*")) == before


def test_overwriting_keeps_the_old_one_until_the_new_one_is_whole(
    pixel_vse: Path, make_run: Any, pictures: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(pixel_vse, pictures, index)
    other = make_run("vse++", seed=9, word_dim=6, pixels=True)

    def stop(*_: Any) -> None:
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "put", stop)
        with pytest.raises(StopError):
            build(other, pictures, index, overwrite=True)
    assert len(paths(index)) == 6


def test_damaged_vectors_are_encoded_again(pixel_vse: Path, pictures: Path, index: Path, make_images: Any) -> None:
    build(pixel_vse, pictures, index)
    (path,) = (index / "vectors").glob("*-embedding.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StaleIndex, match="build the index again"):
        Searcher.open(index)
    make_images(pictures / "more", count=1, seed=1)
    assert counts(build(pixel_vse, pictures, index)) == (1, 6, 0, 7)
    assert len(paths(index)) == 7


def test_codes_of_what_is_gone_do_not_stay_for_ever(pixel_vse: Path, pictures: Path, index: Path) -> None:
    build(pixel_vse, pictures, index)
    for number in range(5):
        (pictures / f"{number}.png").unlink()
    build(pixel_vse, pictures, index)
    (path,) = (index / "vectors").iterdir()
    assert path.stat().st_size == 8 * 4
    assert paths(index) == {"5.png"}


def test_wrong_wishes_are_told(pixel_vse: Path, pictures: Path, index: Path) -> None:
    with pytest.raises(SearchError, match="nothing to index"):
        build_index(pixel_vse, [], index)
    with pytest.raises(SearchError, match="bfloat16"):
        build(pixel_vse, pictures, index, precision="int8")
    with pytest.raises(SearchError, match="no store 'exakt'"):
        build(pixel_vse, pictures, index, store="exakt")
    with pytest.raises(SearchError, match="at least one"):
        build(pixel_vse, pictures, index, batch_size=0)
    assert not index.exists()


def test_a_run_that_is_none_leaves_nothing_behind(pictures: Path, index: Path) -> None:
    with pytest.raises(QuintetError, match="is not a run"):
        build(pictures, pictures, index)
    assert not index.exists()


# An index of the format before


def make_older(index: Path, pictures: Path, run: Path, **more: Any) -> None:
    """An index of format 2, as far as its head goes."""
    weights = file_checksum(run / "weights.safetensors")
    shutil.copytree(run, index / "runs" / weights)
    head = {"format": "quintet-index", "version": 2, "quintet": "0.1.0", "generation": 3, "first": [0], **more}
    head["runs"] = [{"name": "old", "model": "vse++", "weights": weights}]
    head["roots"] = [{"kind": "folder", "path": str(pictures)}]
    (index / "index.json").write_text(json.dumps(head))


def test_an_index_of_the_format_before_is_told_with_the_command_that_builds_a_new_one(
    pixel_vse: Path, pictures: Path, index: Path
) -> None:
    make_older(index, pictures, pixel_vse)
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    with pytest.raises(StaleIndex, match="format 2") as told:
        Searcher.open(index)
    for overwrite in (False, True):
        with pytest.raises(StaleIndex, match="format 2"):
            build(pixel_vse, pictures, index, overwrite=overwrite)
    words = shlex.split(str(told.value).partition("build a new one with: ")[2])
    assert words[:2] == ["quintet", "index"]
    result = CliRunner().invoke(app, [*words[1:], "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert len(paths(Path(f"{index}-new"))) == 6
    assert {path: path.read_bytes() for path in index.rglob("*") if path.is_file()} == before


def test_the_command_for_an_index_of_format_3_is_in_its_database(pixel_vse: Path, pictures: Path, index: Path) -> None:
    build(pixel_vse, pictures, index)
    (index / "index.json").write_text('{"format": "quintet-index", "version": 3}')
    with pytest.raises(StaleIndex, match="format 3") as told:
        Searcher.open(index)
    (run,) = (index / "runs").iterdir()
    assert f"quintet index {run} {pictures} -o {index}-new" in str(told.value)


def test_the_command_names_every_run_and_the_texts(pixel_vse: Path, pictures: Path, index: Path) -> None:
    make_older(index, pictures, pixel_vse, texts="/my/texts.txt")
    head = json.loads((index / "index.json").read_text())
    head["runs"] = [{"weights": name} for name in ("a", "b", "c")]
    (index / "index.json").write_text(json.dumps(head | {"first": [0, 1], "rerank": [2]}))
    with pytest.raises(StaleIndex) as told:
        Searcher.open(index)
    runs = index.resolve() / "runs"
    assert f"index {runs / 'a'} {pictures} --with {runs / 'b'} --rerank-with {runs / 'c'} --texts /my" in str(
        told.value
    )


# From Python


def test_an_opened_run_and_one_source_are_enough(pixel_vse: Path, pictures: Path, index: Path) -> None:
    run = load(pixel_vse, device="cpu")
    assert counts(build_index(run, pictures, index)) == (6, 0, 0, 6)
    assert counts(build_index(str(pixel_vse), str(pictures), str(index), device="cpu")) == (0, 6, 0, 0)
    (pictures / "0.png").unlink()
    assert counts(build_index([run], [pictures], index)) == (0, 5, 1, 0)


def test_a_run_whose_weights_changed_since_it_was_opened_is_refused(make_run: Any, pictures: Path, index: Path) -> None:
    run = load(make_run("vse++", seed=31, word_dim=6, pixels=True), device="cpu")
    (run.folder / "weights.safetensors").write_bytes(b"other")
    with pytest.raises(SearchError, match="have changed"):
        build_index(run, pictures, index)
    assert not index.exists()


def test_a_first_index_without_an_image_that_can_be_read_leaves_nothing(pixel_vse: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_text("not an image")
    with pytest.raises(SearchError, match="none of the images"):
        build(pixel_vse, photos, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_threads_that_encode_side_by_side_give_the_codes_of_one(vse: Path, make_images: Any, tmp_path: Path) -> None:
    make_images(tmp_path / "photos", count=11, seed=3)
    run, threads = load(vse, device="cpu"), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        build(vse, tmp_path / "photos", tmp_path / "index", batch_size=9)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        entries = searcher._opened.items.all("image")
        found = searcher._opened.vectors("image", np.array([entry.row for entry in entries]))
    files = [tmp_path / "photos" / str(entry.item.path) for entry in entries]
    expected = run.encode_images(files, batch_size=1).embedding
    assert expected is not None
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert len(files) == 11


def test_a_text_is_searched_for_without_the_image_tower(
    vse: Path, make_images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path / "photos", count=3, seed=3)
    build(vse, tmp_path / "photos", tmp_path / "index")
    opened = []
    real = FeatureExtractor.from_state

    def from_state(*arguments: Any, **options: Any) -> FeatureExtractor:
        opened.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(FeatureExtractor, "from_state", from_state)
    with Searcher.open(tmp_path / "index", device="cpu") as searcher:
        assert len(searcher.search("a red thing", k=3)) == 3
        assert not opened
        assert searcher.search(tmp_path / "photos" / "1.png", k=1)[0].path == tmp_path / "photos" / "1.png"
        assert opened
