"""Importing and drawing never cost files that were there before."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from quintet.data.formats import import_corpus
from quintet.data.scenes.generate import make_scenes
from quintet.errors import CorpusError
from quintet.features.job import FeatureJob
from quintet.mining.journal import remove_journal


def test_a_copied_image_does_not_replace_another(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    for folder in (source, out / "pictures"):
        folder.mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(source / "a.png")
    (source / "a.txt").write_text("a red square")
    copied = import_corpus("folder", source, tmp_path / "first", copy=True)
    name = str(copied.images[0].path)
    (out / name).write_bytes(b"mine")
    with pytest.raises(CorpusError, match="in the way"):
        import_corpus("folder", source, out, copy=True)
    assert (out / name).read_bytes() == b"mine"


def test_scenes_replace_only_scenes(tmp_path: Path) -> None:
    out = tmp_path / "scenes"
    make_scenes(out, train=1, dev=0, test=0, size=32)
    (out / "pictures" / "holiday.png").write_bytes(b"mine")
    with pytest.raises(CorpusError, match="would be lost"):
        make_scenes(out, train=2, dev=0, test=0, size=32, overwrite=True)
    assert (out / "pictures" / "holiday.png").read_bytes() == b"mine"


def test_features_do_not_replace_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "features" / "mine"
    folder.mkdir(parents=True)
    (folder / "holiday.png").write_bytes(b"mine")
    with pytest.raises(CorpusError, match="no extraction makes"), FeatureJob(folder, {}, (1, 1, 1), "float32", True):
        pass
    assert (folder / "holiday.png").read_bytes() == b"mine"


def test_a_journal_with_other_files_stays(tmp_path: Path) -> None:
    (tmp_path / "journal.json").write_text("{}")
    (tmp_path / "holiday.png").write_bytes(b"mine")
    remove_journal(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "holiday.png").unlink()
    remove_journal(tmp_path)
    assert not tmp_path.exists()
