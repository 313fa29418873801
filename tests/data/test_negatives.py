from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.negatives import NegativeLists
from quintet.errors import CorpusError
from quintet.files import read_json, write_json


def make_split(groups: int = 3, name: str = "train") -> Split:
    names = [str(group) for group in range(groups)]
    texts = [Text(f"t{group}{k}", group, "words") for group in names for k in range(2)]
    return Corpus("small", [Image(f"i{group}", group) for group in names], texts, {name: names}).split(name)


def make_lists(split: Split) -> NegativeLists:
    texts = np.array([[2, 4, -1], [0, 5, 1], [3, -1, -1]])
    images = np.array([[1, 2], [2, 1], [0, 2], [0, -1], [1, 0], [-1, -1]])
    manifest = {"split": split.name, "split_checksum": split.checksum, "matcher": {"name": "m", "weights": "abc"}}
    scores = [np.where(rows >= 0, -rows / 10, -np.inf) for rows in (texts, images)]
    return NegativeLists(texts, scores[0], images, scores[1], manifest)


@pytest.mark.parametrize("mmap", [True, False])
def test_saved_lists_come_back(tmp_path: Path, mmap: bool) -> None:
    lists = make_lists(make_split())
    lists.save(tmp_path / "lists")
    found = NegativeLists.open(tmp_path / "lists", mmap=mmap)
    for name, dtype in (
        ("texts", np.int32),
        ("text_scores", np.float32),
        ("images", np.int32),
        ("image_scores", np.float32),
    ):
        array = getattr(found, name)
        assert array.dtype == dtype
        assert np.array_equal(array, getattr(lists, name))
        assert np.array_equal(np.load(tmp_path / "lists" / f"{name}.npy"), array)
    assert found.text_counts.tolist() == [2, 3, 1]
    assert found.image_counts.tolist() == [2, 2, 2, 1, 2, 0]
    assert found.manifest["matcher"] == {"name": "m", "weights": "abc"}
    assert found.manifest["format"] == "quintet-negatives"
    found.check(make_split())
    found.check(make_split(), weights="abc")


def test_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    lists = make_lists(make_split())
    with pytest.raises(CorpusError, match="3 images and 6 texts"):
        lists.check(make_split(groups=4))
    renamed = make_split()
    renamed.texts[0] = Text("other", renamed.texts[0].group, "words")
    with pytest.raises(CorpusError, match="checksum"):
        lists.check(renamed)
    with pytest.raises(CorpusError, match="weights abc, not xyz"):
        lists.check(make_split(), weights="xyz")
    wrong = NegativeLists(lists.texts + 4, lists.text_scores, lists.images, lists.image_scores, lists.manifest)
    with pytest.raises(CorpusError, match="do not exist"):
        wrong.check(make_split())


def test_unfinished_damaged_and_newer_lists_are_refused(tmp_path: Path) -> None:
    lists = make_lists(make_split())
    lists.save(tmp_path)
    manifest = read_json(tmp_path / "manifest.json")
    write_json(tmp_path / "manifest.json", manifest | {"version": 99})
    with pytest.raises(CorpusError, match="99"):
        NegativeLists.open(tmp_path)
    write_json(tmp_path / "manifest.json", manifest)
    np.save(tmp_path / "texts.npy", lists.texts[:2])
    with pytest.raises(CorpusError, match=r"texts\.npy"):
        NegativeLists.open(tmp_path)
    (tmp_path / "texts.npy").write_bytes(b"nothing")
    with pytest.raises(CorpusError, match="damaged"):
        NegativeLists.open(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(CorpusError, match="quintet mine"):
        NegativeLists.open(tmp_path)


def test_saving_again_replaces_the_manifest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = make_lists(make_split())
    lists.save(tmp_path)

    def full_disk(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(np, "save", full_disk)
    with pytest.raises(Exception, match="no space"):
        lists.save(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="alike"):
        NegativeLists(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros((1, 1)), np.zeros((1, 1)))
