from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as Images
from safetensors.torch import save_file

from quintet.backbones.create import create_tower
from quintet.backbones.extractor import FeatureExtractor
from quintet.data.corpus import Corpus, Image, Text
from quintet.data.feature_store import FeatureStore
from quintet.data.images import open_image
from quintet.errors import CorpusError, QuintetError
from quintet.features import extract as extraction
from quintet.features import job as feature_job
from quintet.features.extract import ExtractReport, extract_features

COUNT = 11


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(create_tower("small-cnn").state_dict(), path)
    return path


def make_corpus(folder: Path, count: int = COUNT) -> Corpus:
    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir(parents=True)
    for number in range(count):
        shape = (*rng.integers(20, 60, 2), 3)
        Images.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"pictures/{number}.png")
    images = [Image(f"i{number}", f"g{number}", f"pictures/{number}.png") for number in range(count)]
    texts = [Text(f"t{number}", f"g{number}", "noise") for number in range(count)]
    Corpus("noise", images, texts, {"train": [image.group for image in images]}).save(folder)
    return Corpus.open(folder)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return make_corpus(tmp_path / "corpus")


class Killed(BaseException):
    pass


def killer(after: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= after:
            raise Killed

    return progress


def extract(corpus: Corpus, weights: Path, name: str = "f", **arguments: Any) -> ExtractReport:
    return extract_features(
        corpus, "small-cnn", name=name, weights=weights, **({"batch_size": 2, "device": "cpu"} | arguments)
    )


def read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("features.npy", "boxes.npy", "ids.json", "rows.npy")}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_store_holds_what_the_extractor_computes(corpus: Corpus, weights: Path, dtype: str) -> None:
    calls: list[tuple[int, int]] = []
    report = extract(corpus, weights, dtype=dtype, batch_size=4, progress=lambda *both: calls.append(both))
    assert (report.images, report.written, report.resumed, report.skipped) == (COUNT, COUNT, 0, [])
    assert calls == [(0, COUNT), (4, COUNT), (8, COUNT), (COUNT, COUNT)]
    store = FeatureStore(report.folder)
    assert (len(store), store.fragments, store.dim) == (COUNT, 36, 128)
    assert np.load(report.folder / "features.npy", mmap_mode="r").dtype == dtype
    extractor = FeatureExtractor.from_state(store.manifest["tower"])
    for image in corpus.images:
        wanted, found = extractor([open_image(corpus.image_path(image))]), store.batch([image.id])
        assert torch.allclose(found.fragments, wanted.fragments, rtol=2e-3, atol=2e-3)  # type: ignore[arg-type]
        assert torch.equal(found.boxes, wanted.boxes)  # type: ignore[arg-type]


def test_bad_images_are_listed_and_left_out(corpus: Corpus, weights: Path) -> None:
    pictures = corpus.root / "pictures"
    (pictures / "1.png").write_bytes((pictures / "1.png").read_bytes()[:200])
    (pictures / "2.png").unlink()
    (pictures / "3.png").write_bytes(b"")
    (pictures / "10.png").write_text("not an image")
    report = extract(corpus, weights)
    assert [entry.id for entry in report.skipped] == ["i1", "i2", "i3", "i10"]
    assert all(entry.reason for entry in report.skipped)
    written = json.loads((report.folder / "skipped.json").read_text())
    assert [entry["id"] for entry in written] == ["i1", "i2", "i3", "i10"]
    store = FeatureStore(report.folder)
    assert len(store) == report.written == COUNT - 4
    assert "i1" not in store
    extractor = FeatureExtractor.from_state(store.manifest["tower"])
    for id_ in ("i0", "i4", "i9"):  # the others are in their right places
        wanted = extractor([open_image(pictures / f"{id_[1:]}.png")])
        assert torch.allclose(store.batch([id_]).fragments, wanted.fragments, atol=2e-3)  # type: ignore[arg-type]


def test_an_interrupted_extraction_goes_on_without_doing_anything_twice(
    corpus: Corpus, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (corpus.root / "pictures/1.png").write_bytes(b"")
    whole = extract(corpus, weights, "whole")
    seen = 0
    original = FeatureExtractor.features

    def counted(self: FeatureExtractor, pixels: torch.Tensor) -> np.ndarray:
        nonlocal seen
        seen += len(pixels)
        return original(self, pixels)

    monkeypatch.setattr(FeatureExtractor, "features", counted)
    for after in (4, 6, 10):
        with pytest.raises(Killed):
            extract(corpus, weights, "parts", progress=killer(after))
        assert not (corpus.root / "features/parts").exists()
    report = extract(corpus, weights, "parts")
    assert report.resumed == 10
    assert seen == COUNT - 1
    assert [entry.id for entry in report.skipped] == ["i1"]
    assert read(report.folder) == read(whole.folder)
    assert not list((corpus.root / "features").glob(".*"))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), after=st.integers(0, COUNT))
def test_a_journal_cut_at_any_byte_is_no_harm(
    tmp_path_factory: pytest.TempPathFactory, weights: Path, cut: int, after: int
) -> None:
    corpus = make_corpus(tmp_path_factory.mktemp("cut") / "corpus")
    (corpus.root / "pictures/3.png").write_bytes(b"")
    with pytest.raises(Killed):
        extract(corpus, weights, progress=killer(after))
    journal = corpus.root / "features/.f.partial/journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:cut])
    report = extract(corpus, weights)
    assert [entry.id for entry in report.skipped] == ["i3"]
    assert read(report.folder) == read(extract(corpus, weights, "whole").folder)


SCRIPT = """
import sys, time
from quintet.data.corpus import Corpus
from quintet.features.extract import extract_features
def progress(done, total):
    print(done, flush=True)
    time.sleep(0.05)
corpus, weights = Corpus.open(sys.argv[1]), sys.argv[2]
extract_features(corpus, "small-cnn", name="f", weights=weights, batch_size=2, device="cpu", progress=progress)
"""


@pytest.mark.slow
def test_kill_minus_nine(corpus: Corpus, weights: Path) -> None:
    for wait in (0.0, 0.03, 0.12):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(corpus.root), str(weights)],
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with pytest.raises(CorpusError, match="no finished features"):
            FeatureStore(corpus.root / "features/f")
    report = extract(corpus, weights)
    assert read(report.folder) == read(extract(corpus, weights, "whole").folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"grid": (3, 3)}, r"grid \[6, 6\], now \[3, 3\]"),
        ({"dtype": "float32"}, "dtype float16, now float32"),
        ({"crop": "center"}, "crop squeeze, now center"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_are_refused_unless_overwriting(
    corpus: Corpus, weights: Path, change: dict[str, Any], named: str, finished: bool
) -> None:
    if finished:
        extract(corpus, weights)
    else:
        with pytest.raises(Killed):
            extract(corpus, weights, progress=killer(4))
    with pytest.raises(CorpusError, match=rf"other settings \({named}\).*--overwrite"):
        extract(corpus, weights, **change)
    report = extract(corpus, weights, overwrite=True, **change)
    assert report.resumed == 0
    assert read(report.folder) == read(extract(corpus, weights, "whole", **change).folder)


def test_other_weights_and_other_images_are_other_settings(corpus: Corpus, weights: Path, tmp_path: Path) -> None:
    extract(corpus, weights)
    torch.manual_seed(5)
    save_file(create_tower("small-cnn").state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(CorpusError, match=r"\(the weights\)"):
        extract(corpus, tmp_path / "other.safetensors")
    fewer = Corpus("noise", corpus.images[:-1], corpus.texts[:-1], {}, root=corpus.root)
    with pytest.raises(CorpusError, match="list of images"):
        extract(fewer, weights)
    copy = tmp_path / "copy.safetensors"  # the same weights somewhere else
    copy.write_bytes(weights.read_bytes())
    assert extract(corpus, copy).resumed == COUNT


def test_a_second_call_finds_everything_done_and_overwriting_keeps_the_old_until_the_new_is_whole(
    corpus: Corpus, weights: Path
) -> None:
    first = extract(corpus, weights)
    assert extract(corpus, weights, progress=killer(0)).resumed == COUNT
    with pytest.raises(Killed):
        extract(corpus, weights, grid=(2, 2), overwrite=True, progress=killer(6))
    assert FeatureStore(first.folder).fragments == 36
    report = extract(corpus, weights, grid=(2, 2), overwrite=True)
    assert report.resumed == 6, "an interrupted overwrite goes on as well"
    assert FeatureStore(first.folder).fragments == 4


def test_nothing_readable_is_an_error_and_is_looked_at_again(corpus: Corpus, weights: Path) -> None:
    away = (corpus.root / "pictures").rename(corpus.root / "elsewhere")
    with pytest.raises(CorpusError, match=f"the {COUNT} images"):
        extract(corpus, weights)
    away.rename(corpus.root / "pictures")
    assert extract(corpus, weights).written == COUNT


def test_a_full_disk_is_reported_and_resumed(corpus: Corpus, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = feature_job.write_synced, 0

    def full(file: Any, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 7:  # the features of the third batch
            file.write(data[:100])
            raise OSError(28, "No space left on device")
        original(file, data)

    monkeypatch.setattr(feature_job, "write_synced", full)
    with pytest.raises(CorpusError, match="No space left"):
        extract(corpus, weights)
    report = extract(corpus, weights)
    assert report.resumed == 4
    assert read(report.folder) == read(extract(corpus, weights, "whole").folder)


def test_too_small_a_disk_is_reported_before_the_work(
    corpus: Corpus, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_job.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(CorpusError, match="GiB are free"):
        extract(corpus, weights)


def test_two_processes_do_not_write_one_folder(corpus: Corpus, weights: Path) -> None:
    def second(done: int, total: int) -> None:
        with pytest.raises(CorpusError, match="another process"):
            extract(corpus, weights)

    extract(corpus, weights, progress=second)


def test_features_that_overflow_are_not_written(corpus: Corpus, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FeatureExtractor.features
    monkeypatch.setattr(FeatureExtractor, "features", lambda self, pixels: original(self, pixels) * 1e6)
    with pytest.raises(CorpusError, match=r"'i0' .*float16.*float32"):
        extract(corpus, weights)
    assert extract(corpus, weights, dtype="float32", overwrite=True).written == COUNT


def test_a_folder_stands_for_its_corpus(corpus: Corpus, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus.save(corpus.root)
    report = extract_features(corpus.root, "small-cnn", weights=weights, grid="2x3", device="cpu", progress=True)
    assert report.folder == corpus.root / "features" / "small-cnn"
    assert FeatureStore(report.folder).fragments == 6
    assert "small-cnn" in capsys.readouterr().out, "a bar was drawn"


def test_bad_requests(corpus: Corpus, weights: Path) -> None:
    for name in ("../up", "a/b", ".hidden"):
        with pytest.raises(CorpusError, match="folder name"):
            extract(corpus, weights, name)
    with pytest.raises(CorpusError, match="float16 or float32"):
        extract(corpus, weights, dtype="float64")
    with pytest.raises(CorpusError, match="at least one image"):
        extract(corpus, weights, batch_size=0)
    with pytest.raises(CorpusError, match="workers=0"):
        extract(corpus, weights, workers=0)
    for grid in ("4x", "0", "1x2x3", 65, (0, 6)):
        with pytest.raises(QuintetError, match=r"4x8 .*4 rows"):
            extract(corpus, weights, grid=grid)
    with pytest.raises(QuintetError, match="did you mean 'small-cnn'"):
        extract_features(corpus, "smal-cnn")
    bare = Corpus("bare", [Image("i", "g")], [Text("t", "g", "x")], {}, root=corpus.root)
    with pytest.raises(CorpusError, match="no image files"):
        extract(bare, weights)


def test_a_damaged_line_of_the_journal_is_done_again(corpus: Corpus, weights: Path) -> None:
    with pytest.raises(Killed):
        extract(corpus, weights, progress=killer(6))
    journal = corpus.root / "features/.f.partial/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1].replace(b'"stop": 6', b'"stop": 8')  # would leave two images out
    journal.write_bytes(b"".join(lines))
    report = extract(corpus, weights)
    assert report.resumed == 4
    assert read(report.folder) == read(extract(corpus, weights, "whole").folder)


def test_left_overs_of_a_killed_extraction_are_removed(corpus: Corpus, weights: Path) -> None:
    with pytest.raises(Killed):
        extract(corpus, weights, progress=killer(4))
    (corpus.root / "features/.f.partial/.settings.json.abcdefgh.partial").write_text("half")
    report = extract(corpus, weights)
    assert sorted(path.name for path in report.folder.parent.iterdir()) == ["f"]
    assert not [path for path in report.folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("limit", [100, 2000, 5000])
def test_a_limit_of_file_sizes_is_an_error_and_the_next_try_goes_on(corpus: Corpus, weights: Path, limit: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(QuintetError, match="could not write"):
            extract(corpus, weights)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert extract(corpus, weights).written == COUNT


@pytest.mark.parametrize("content", ["null", "{}", "[1]", "[" * 5000, '{"tower": 3, "dtype": 1, "pictures": []}'])
@pytest.mark.parametrize("name", [".f.partial/settings.json", "f/settings.json", "f/skipped.json"])
def test_hostile_settings_are_an_error(corpus: Corpus, weights: Path, name: str, content: str) -> None:
    if name.startswith("."):
        with pytest.raises(Killed):
            extract(corpus, weights, progress=killer(4))
    else:
        extract(corpus, weights)
    (corpus.root / "features" / name).write_text(content)
    with pytest.raises(QuintetError, match="json"):
        extract(corpus, weights)


@pytest.mark.parametrize("name", ["diary.txt", "journal.jsonl", "features.npy", "manifest.json", "link"])
def test_a_folder_of_somebody_else_is_not_taken_for_an_extraction(corpus: Corpus, weights: Path, name: str) -> None:
    partial, photo = corpus.root / "features" / ".f.partial", corpus.root / "photo.png"
    partial.mkdir(parents=True)
    photo.write_bytes(b"mine")
    if name == "link":
        (partial / "boxes.npy").symlink_to(photo)
    else:
        (partial / name).write_bytes(b"mine")
    with pytest.raises(CorpusError, match="no extraction makes"):
        extract(corpus, weights)
    assert [path.read_bytes() for path in (photo, *partial.iterdir())] == [b"mine"] * 2
    assert [path.name for path in partial.parent.iterdir()] == [partial.name]


def test_an_extraction_that_cannot_begin_leaves_nothing(
    corpus: Corpus, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_job, "_make_array", fails)
    with pytest.raises(CorpusError, match="No space"):
        extract(corpus, weights)
    assert not (corpus.root / "features").exists()


def fails(*_: object) -> None:
    raise OSError(28, "No space left on device")


def arrays(report: ExtractReport) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(report.folder.glob("*.npy"))}


def test_workers_make_the_very_features_of_one_process_whoever_dies(
    corpus: Corpus, weights: Path, tmp_path: Path, flaky_workers: Any
) -> None:
    (corpus.root / "pictures/4.png").write_bytes(b"no image")
    options: dict[str, Any] = {"weights": weights, "grid": 2, "batch_size": 2}
    alone = extract_features(corpus, "small-cnn", name="alone", device="cpu", **options)
    flaky_workers(extraction, deaths=(2, 5))
    shared = extract_features(corpus, "small-cnn", name="shared", ray="local", **options)
    assert arrays(shared) == arrays(alone)
    assert shared.skipped == alone.skipped


def test_an_image_that_kills_its_worker_is_skipped_and_named(corpus: Corpus, weights: Path, flaky_workers: Any) -> None:
    flaky_workers(extraction, poison=lambda image: image.path is not None and image.path.name == "3.png")
    report = extract_features(corpus, "small-cnn", weights=weights, grid=2, batch_size=4, ray="local")
    assert [(entry.id, "exit code 139" in entry.reason) for entry in report.skipped] == [("i3", True)]
    assert report.written == COUNT - 1


def test_images_that_only_the_driver_sees_are_an_error(
    corpus: Corpus, weights: Path, flaky_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky_workers(extraction)

    def blind(self: Any, task: Any) -> Any:
        made = self.batches.made([extraction._Image(each.id, None) for each in task.items], len(task.items), 1)
        return replace(next(made), missing=list(range(len(task.items))))

    monkeypatch.setattr(extraction.FeatureWorker, "work", blind)
    with pytest.raises(CorpusError, match="every node"):
        extract_features(corpus, "small-cnn", weights=weights, grid=2, ray="local")
