"""An index whose images and texts are encoded by workers: the very files of one process, whoever dies."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.search.test_shards import pack

from quintet.data.corpus import Corpus, Image, Text
from quintet.errors import QuintetError
from quintet.features.extract import extract_features
from quintet.search import SearchError, index_batches, indexing, shard_sources
from quintet.search.index_folder import Manifest
from quintet.search.indexing import build_index
from quintet.search.searcher import Searcher
from quintet.search.stores import open_store
from quintet.search.stores.choice import store_address


def files(index: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((index / "vectors").iterdir())}


def found(index: Path) -> dict[str, float]:
    with Searcher.open(index, device="cpu") as searcher:
        return {hit.item.id: hit.score for hit in searcher.search_text(["a red thing"], k=999)[0]}


@pytest.fixture
def many(pictures: Path, make_images: Any, tmp_path: Path) -> Path:
    """Equal images in one batch and in two, an image that cannot be read, and texts."""
    make_images(pictures / "more", count=9, seed=1)
    shutil.copy(pictures / "0.png", pictures / "0-again.png")
    shutil.copy(pictures / "1.png", pictures / "zz.png")
    shutil.copy(pictures / "more/3.png", pictures / "zzz.png")
    (pictures / "2-bad.png").write_bytes(b"no image")
    (tmp_path / "texts.txt").write_text("a cat\na dog\na house\na cat\n")
    return pictures


def test_workers_make_the_very_files_of_one_process(vse: Path, many: Path, tmp_path: Path, flaky_workers: Any) -> None:
    options: dict[str, Any] = {"texts": tmp_path / "texts.txt", "batch_size": 3}
    alone = build_index(vse, many, tmp_path / "alone", device="cpu", **options)
    flaky_workers(indexing, deaths=(1, 4, 9))
    shared = build_index(vse, many, tmp_path / "shared", ray="local", **options)
    assert files(tmp_path / "shared") == files(tmp_path / "alone")
    assert found(tmp_path / "shared") == found(tmp_path / "alone")
    names = ("added", "kept", "unreadable", "encoded")
    assert all(getattr(shared, name) == getattr(alone, name) for name in names)
    again = build_index(vse, many, tmp_path / "shared", ray="local", **options)
    assert (again.added, again.encoded) == (0, 0)


@pytest.mark.parametrize("deaths", [(), (1, 3, 8)])
def test_shards_are_unpacked_by_workers(
    vse: Path, many: Path, tmp_path: Path, flaky_workers: Any, deaths: tuple[int, ...]
) -> None:
    shards = tmp_path / "shards"
    for number, path in enumerate(sorted(many.rglob("*.png"))):
        pack(shards / f"{number}.tar", {path.name: path.read_bytes(), "note.txt": b"", f"{path.stem}.json": b"{}"})
    whole = (shards / "3.tar").read_bytes()
    (shards / "4.tar").write_bytes(whole[:600])
    alone = build_index(vse, [many, shards], tmp_path / "alone", device="cpu", batch_size=3)
    flaky_workers(indexing, deaths=deaths, poison=lambda item: getattr(item, "name", "") == "7.tar")
    shared = build_index(vse, [many, shards], tmp_path / "shared", ray="local", batch_size=3)
    damaged = [str(shards / "4.tar")]
    assert [path for path, _ in alone.unreadable if path.endswith(".tar")] == damaged
    assert [path for path, _ in shared.unreadable if path.endswith(".tar")] == [*damaged, str(shards / "7.tar")]
    assert files(tmp_path / "shared") == files(tmp_path / "alone")  # the same images are in a folder
    assert found(tmp_path / "shared").keys() < found(tmp_path / "alone").keys()
    flaky_workers(indexing)
    assert build_index(vse, [many, shards], tmp_path / "shared", ray="local", batch_size=3).added == 1
    assert found(tmp_path / "shared") == found(tmp_path / "alone")


def test_a_node_that_does_not_see_a_shard_or_the_index_is_named(
    vse: Path, many: Path, tmp_path: Path, flaky_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(tmp_path / "shards/a.tar", {"0.png": (many / "0.png").read_bytes()})
    flaky_workers(indexing)
    read = shard_sources._unpack
    with monkeypatch.context() as other:
        other.setattr(shard_sources, "_unpack", lambda packed, path, index: read(packed, Path("/absent.tar"), index))
        with pytest.raises(SearchError, match="same path on every"):
            build_index(vse, tmp_path / "shards", tmp_path / "index", ray="local")
    monkeypatch.setattr(shard_sources, "atomic_write", lambda path: nullcontext(tmp_path / "elsewhere"))
    with pytest.raises(SearchError, match="all nodes see"):
        build_index(vse, tmp_path / "shards", tmp_path / "index", ray="local")
    assert not (tmp_path / "index" / "index.json").exists()


def test_a_build_that_stopped_goes_on_with_the_same_files(
    vse: Path, many: Path, tmp_path: Path, flaky_workers: Any
) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def stop(done: int, total: int | None) -> None:
        if done >= 7:
            raise Stop

    build_index(vse, many, tmp_path / "alone", device="cpu", batch_size=3)
    flaky_workers(indexing)
    with pytest.raises(Stop):
        build_index(vse, many, tmp_path / "shared", ray="local", batch_size=3, progress=stop)
    report = build_index(vse, many, tmp_path / "shared", ray="local", batch_size=3)
    assert report.encoded < 15, "what was encoded is kept"
    assert files(tmp_path / "shared") == files(tmp_path / "alone")


def test_an_image_that_kills_its_worker_is_listed_and_the_rest_is_indexed(
    vse: Path, many: Path, tmp_path: Path, flaky_workers: Any
) -> None:
    flaky_workers(indexing, poison=lambda image: image.path == "more/4.png")
    report = build_index(vse, many, tmp_path / "index", ray="local", batch_size=4)
    told = dict(report.unreadable)
    assert sorted(Path(path).name for path in told) == ["2-bad.png", "4.png"]
    assert "exit code 139" in told[str(many / "more/4.png")]
    (many / "more/4.png").unlink()
    build_index(vse, many, tmp_path / "without", device="cpu", batch_size=4)
    assert found(tmp_path / "index").keys() == found(tmp_path / "without").keys()


def test_images_that_only_the_driver_sees_are_an_error_not_a_list(
    vse: Path, pictures: Path, tmp_path: Path, flaky_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(self: Any, task: Any) -> Any:
        gone = [index_batches.NotThereError("does not exist", "node-2") for _ in task.items]
        return index_batches.Batch(gone, [], [])

    flaky_workers(indexing)
    monkeypatch.setattr(index_batches.IndexWorker, "_images", blind)
    with pytest.raises(SearchError, match="node-2"):
        build_index(vse, pictures, tmp_path / "index", ray="local")


def test_features_of_a_corpus_are_read_by_the_workers(
    vse: Path, pictures: Path, tower: dict[str, Any], tmp_path: Path, flaky_workers: Any
) -> None:
    corpus = pictures
    images = [Image(f"i{number}", f"g{number}", f"{number}.png") for number in range(6)]
    texts = [Text(f"t{number}", f"g{number}", "noise") for number in range(6)]
    Corpus("six", images, texts, {"train": [image.group for image in images]}).save(corpus)
    options: dict[str, Any] = {"name": "small", "weights": tower["weights"], "grid": (2, 3), "dtype": "float32"}
    extract_features(corpus, "small-cnn", device="cpu", **options)
    build_index(vse, corpus, tmp_path / "alone", device="cpu", batch_size=2)
    flaky_workers(indexing, deaths=(2,))
    build_index(vse, corpus, tmp_path / "shared", ray="local", batch_size=2)
    assert files(tmp_path / "shared") == files(tmp_path / "alone")


def test_workers_write_to_a_store_of_many_writers_and_the_driver_to_others(
    vse: Path, pictures: Path, tmp_path: Path, flaky_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, int] = {}

    def record(self: Any, task: Any) -> None:
        assert task.vectors.shape == (len(task.ids), 8)
        written.update(dict.fromkeys(task.ids, len(task.ids)))

    monkeypatch.setattr(index_batches.IndexWorker, "_store", record)
    monkeypatch.setattr(indexing, "AT_ONCE", 2)
    flaky_workers(indexing)
    build_index(vse, pictures, tmp_path / "one", ray="local", store=f"local:{tmp_path / 'vectors'}")
    assert not written, "a folder has one writer"
    manifest = Manifest.read(tmp_path / "one")
    ids = open_store(store_address(manifest.store, "image"), manifest.dim).ids()
    monkeypatch.setattr(indexing, "takes_many_writers", lambda store: True)
    build_index(vse, pictures, tmp_path / "many", ray="local", store=f"local:{tmp_path / 'others'}")
    assert sorted(written) == ids
    assert set(written.values()) == {2}


def test_a_device_beside_a_cluster_is_refused(vse: Path, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match="no effect"):
        build_index(vse, pictures, tmp_path / "index", ray="local", device="cpu")
    assert not (tmp_path / "index").exists()
