"""Importing and drawing never cost files that were there before."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quintet.data.corpus import Corpus, Text
from quintet.data.corpus import Image as Row
from quintet.data.feature_store import begin_features
from quintet.data.formats import import_corpus
from quintet.data.scenes.generate import make_scenes
from quintet.errors import CorpusError
from quintet.features.job import FeatureJob
from quintet.mining.journal import Journal, remove_journal


def test_a_copied_image_does_not_replace_another(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    for folder in (source, out / "images"):
        folder.mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(source / "a.png")
    (source / "a.txt").write_text("a red square")
    copied = import_corpus("folder", source, tmp_path / "first", copy=True)
    name = str(copied.images[0].path)
    (out / name).write_bytes(b"mine")
    with pytest.raises(CorpusError, match="in the way"):
        import_corpus("folder", source, out, copy=True)
    assert (out / name).read_bytes() == b"mine"


def test_an_overwriting_copy_replaces_its_own_images_only(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (8, 8), "red").save(source / f"{name}.png")
        (source / f"{name}.txt").write_text("a red square")
    (out / "images").mkdir(parents=True)
    (out / "images" / "b.png").write_bytes((source / "b.png").read_bytes())  # the same image, put there by hand
    import_corpus("folder", source, out, copy=True)
    Image.new("RGB", (8, 8), "blue").save(source / "a.png")
    import_corpus("folder", source, out, copy=True, overwrite=True)
    assert (out / "images" / "a.png").read_bytes() == (source / "a.png").read_bytes()
    Image.new("RGB", (8, 8), "blue").save(source / "b.png")
    before = (out / "images" / "b.png").read_bytes()
    with pytest.raises(CorpusError, match=r"b\.png .*the way"):
        import_corpus("folder", source, out, copy=True, overwrite=True)
    assert (out / "images" / "b.png").read_bytes() == before


def test_unpacking_does_not_replace_another_image(tmp_path: Path) -> None:
    out, shard = tmp_path / "out", tmp_path / "train.tar"
    image = BytesIO()
    Image.new("RGB", (8, 8), "red").save(image, "PNG")
    with tarfile.open(shard, "w") as tar:
        for name, content in (("a.png", image.getvalue()), ("a.txt", b"a red square")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    (out / "images").mkdir(parents=True)
    (out / "images" / "a.png").write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(CorpusError, match="in the way"):
            import_corpus("webdataset", shard, out, overwrite=overwrite)
    assert (out / "images" / "a.png").read_bytes() == b"mine"
    (out / "images" / "a.png").unlink()
    for overwrite in (False, True):
        corpus = import_corpus("webdataset", shard, out, overwrite=overwrite)
        assert corpus.image_path(corpus.images[0]).read_bytes() == image.getvalue()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["corpus.json", "images.jsonl", "texts.jsonl", "splits.json"])
@pytest.mark.parametrize("inside", [False, True], ids=["elsewhere", "in place"])
def test_tables_of_someone_else_are_never_replaced(tmp_path: Path, name: str, overwrite: bool, inside: bool) -> None:
    source = tmp_path / "source"
    out = source if inside else tmp_path / "out"
    for folder in {source, out}:
        folder.mkdir()
    Image.new("RGB", (8, 8), "red").save(source / "a.png")
    (source / "a.txt").write_text("a red square")
    (out / name).write_text('{"id": "mine"}')
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CorpusError, match=f"{name} .*the way"):
        import_corpus("folder", source, out, overwrite=overwrite)
    corpus = Corpus("mine", [Row("a", "a")], [Text("a#0", "a", "A.")], {"test": ["a"]})
    with pytest.raises(CorpusError, match=f"{name} .*the way"):
        corpus.save(out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_scenes_replace_no_corpus_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "corpus.json").write_text('{"texts": 3}')
    for make in (make_scenes, lambda out, **options: import_corpus("scenes", "-", out, **options)):
        with pytest.raises(CorpusError, match=r"empty folder|in the way"):
            make(tmp_path, train=1, dev=0, test=0, size=32, overwrite=True)
    assert (tmp_path / "corpus.json").read_text() == '{"texts": 3}'


def test_imported_features_do_not_replace_other_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "features" / "regions"
    folder.mkdir(parents=True)
    np.save(folder / "rows.npy", np.arange(3))
    before = (folder / "rows.npy").read_bytes()
    with pytest.raises(CorpusError, match=r"rows\.npy .*the way"):
        begin_features(folder, ["train_boxes.npy"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"rows.npy": before}


def test_scenes_replace_only_scenes(tmp_path: Path) -> None:
    out = tmp_path / "scenes"
    make_scenes(out, train=1, dev=0, test=0, size=32)
    (out / "images" / "holiday.png").write_bytes(b"mine")
    with pytest.raises(CorpusError, match="would be lost"):
        make_scenes(out, train=2, dev=0, test=0, size=32, overwrite=True)
    assert (out / "images" / "holiday.png").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["holiday.png", "features.npy", "manifest.json"])
def test_features_do_not_replace_other_files(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "features" / "mine"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"mine")
    with pytest.raises(CorpusError, match="no extraction makes"), FeatureJob(folder, {}, (1, 1, 1), "float32", True):
        pass
    assert (folder / name).read_bytes() == b"mine"


def test_a_journal_with_other_files_stays(tmp_path: Path) -> None:
    Journal(tmp_path, {})
    (tmp_path / "holiday.png").write_bytes(b"mine")
    remove_journal(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "holiday.png").unlink()
    remove_journal(tmp_path)
    assert not tmp_path.exists()


def test_an_import_that_fails_takes_its_images_back(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    (out / "images").mkdir(parents=True)
    source.mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (8, 8), "red").save(source / f"{name}.png")
        (source / f"{name}.txt").write_text("a red square")
    (out / "images" / "b.png").write_bytes(b"mine")
    with pytest.raises(CorpusError, match="in the way"):
        import_corpus("folder", source, out, copy=True)
    assert [(path.name, path.read_bytes()) for path in out.rglob("*") if path.is_file()] == [("b.png", b"mine")]
