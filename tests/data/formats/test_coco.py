from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.data.formats.sources import as_coco, caption_id, captions

from quintet.data.formats import import_corpus
from quintet.errors import CorpusError


def karpathy(path: Path) -> Path:
    """His splits of the images of `as_coco`, with their captions in reverse."""
    splits = ["train", "restval", "test", "val", "restval", "test"]
    rows = [
        {
            "cocoid": 10 + number,
            "split": split,
            "sentences": [{"sentid": caption_id(number, at)} for at in reversed(range(len(captions(number))))],
        }
        for number, split in enumerate(splits)
    ]
    path.write_text(json.dumps({"images": rows}))
    return path


def test_caption_ids_and_image_ids_are_cocos(tmp_path: Path) -> None:
    corpus = import_corpus("coco", as_coco(tmp_path / "s"), tmp_path / "out")
    assert [image.extra["cocoid"] for image in corpus.images] == [10, 11, 12, 13, 14, 15]
    assert {text.extra["caption_id"]: text.text for text in corpus.texts} == {
        caption_id(number, at): text for number in range(6) for at, text in enumerate(captions(number))
    }
    assert list(corpus.splits) == ["train", "dev"]
    tested = import_corpus("coco", tmp_path / "s", tmp_path / "test", val="test")
    assert list(tested.splits) == ["train", "test"]


def test_one_file_and_a_folder_of_images(tmp_path: Path) -> None:
    source = as_coco(tmp_path / "s")
    (source / "val2017").rename(tmp_path / "photos")
    file = source / "annotations" / "captions_val2017.json"
    with pytest.raises(CorpusError, match="images=PATH"):
        import_corpus("coco", file, tmp_path / "out")
    corpus = import_corpus("coco", file, tmp_path / "out", images=tmp_path / "photos", max_captions=1)
    assert [text.text for text in corpus.texts] == [captions(4)[0], captions(5)[0]]


@pytest.mark.parametrize(("restval", "train"), [("train", ["10", "11", "14"]), ("drop", ["10"]), ("keep", ["10"])])
def test_karpathys_splits_and_order(tmp_path: Path, restval: str, train: list[str]) -> None:
    source = as_coco(tmp_path / "s", 2014)
    given = karpathy(tmp_path / "dataset_coco.json")
    corpus = import_corpus("coco", source, tmp_path / "out", karpathy=given, restval=restval)
    assert corpus.splits["train"] == train
    assert corpus.splits["dev"] == ["13"]
    assert corpus.splits["test"] == ["12", "15"]
    assert corpus.splits.get("restval", []) == (["11", "14"] if restval == "keep" else [])
    texts = [text for text in corpus.texts if text.group == "13"]
    assert [text.extra["caption_id"] for text in texts] == [302, 301, 300]


def test_a_caption_of_no_image_is_refused(tmp_path: Path) -> None:
    source = as_coco(tmp_path / "s")
    file = source / "annotations" / "captions_val2017.json"
    content = json.loads(file.read_text())
    content["annotations"].append({"id": 9, "image_id": 99, "caption": "Nobody."})
    file.write_text(json.dumps(content))
    with pytest.raises(CorpusError, match="caption 9 is of image 99"):
        import_corpus("coco", source, tmp_path / "out")
    with pytest.raises(CorpusError, match="captions_"):
        import_corpus("coco", tmp_path, tmp_path / "out")
