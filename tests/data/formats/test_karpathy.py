from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quintet.data.formats import import_corpus
from quintet.errors import CorpusError


def row(n: int, split: str, captions: list[str], **extra: Any) -> dict[str, Any]:
    sentences = [{"raw": caption, "tokens": caption.lower().split()} for caption in captions]
    return {"filename": f"{n}.jpg", "imgid": n, "split": split, "sentences": sentences, **extra}


def make_source(folder: Path, rows: list[dict[str, Any]], name: str = "dataset_flickr30k.json") -> Path:
    folder.mkdir()
    for one in rows:
        path = folder / "images" / one.get("filepath", "") / one["filename"]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(path)
    (folder / name).write_text(json.dumps({"images": rows, "dataset": name[8:-5]}), encoding="utf-8")
    return folder


COCO = [
    row(0, "train", ["A", "B", "C"], filepath="train2014", cocoid=57870),
    row(1, "restval", ["D"], filepath="val2014", cocoid=384029),
    row(2, "val", ["E"], filepath="val2014", cocoid=5),
    row(3, "test", ["F", "G"], filepath="val2014", cocoid=6),
]


def test_flickr30k(tmp_path: Path) -> None:
    source = make_source(
        tmp_path / "s", [row(0, "train", ["A dog.", "Größe"]), row(1, "val", ["B"]), row(2, "test", ["C"])]
    )
    corpus = import_corpus("karpathy", source / "dataset_flickr30k.json", tmp_path / "out")
    assert corpus.name == "flickr30k"
    assert corpus.splits == {"train": ["0.jpg"], "dev": ["1.jpg"], "test": ["2.jpg"]}
    assert corpus.texts[1].text == "Größe"
    assert corpus.images[0].extra == {"imgid": 0}
    assert corpus.image_path(corpus.images[0]).is_file()


@pytest.mark.parametrize(
    ("restval", "splits"),
    [
        ("train", {"train": ["57870", "384029"], "dev": ["5"], "test": ["6"]}),
        ("drop", {"train": ["57870"], "dev": ["5"], "test": ["6"]}),
        ("keep", {"train": ["57870"], "dev": ["5"], "test": ["6"], "restval": ["384029"]}),
    ],
)
def test_coco_restval(tmp_path: Path, restval: str, splits: dict[str, list[str]]) -> None:
    source = make_source(tmp_path / "s", COCO, "dataset_coco.json")
    corpus = import_corpus("karpathy", source, tmp_path / "out", restval=restval)
    assert corpus.splits == splits
    assert bool(corpus.notes) == (restval != "keep")


def test_cocos_folders_may_lie_beside_the_file(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", COCO, "dataset_coco.json")
    for folder in ("train2014", "val2014"):
        (source / "images" / folder).rename(source / folder)
    (source / "images").rmdir()
    corpus = import_corpus("karpathy", source, tmp_path / "out")
    assert len(corpus.images) == 4
    assert all(corpus.image_path(image).is_file() for image in corpus.images)


def test_restval_is_joined_unless_asked(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", COCO, "dataset_coco.json")
    corpus = import_corpus("karpathy", source, tmp_path / "out")
    assert len(corpus.splits["train"]) == 2
    assert corpus.notes == ["1 images of split 'restval' were joined to 'train'"]


def test_any_number_of_captions_or_the_first_ones(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", COCO, "dataset_coco.json")
    assert len(import_corpus("karpathy", source, tmp_path / "all").texts) == 7
    assert len(import_corpus("karpathy", source, tmp_path / "two", max_captions="2").texts) == 6


def test_cocos_caption_ids_are_kept(tmp_path: Path) -> None:
    rows = [row(0, "test", ["A", " ", "C"], filepath="val2014", cocoid=5)]
    for number, sentence in enumerate(rows[0]["sentences"]):
        sentence["sentid"] = 770337 + number
    source = make_source(tmp_path / "s", rows, "dataset_coco.json")
    corpus = import_corpus("karpathy", source, tmp_path / "out")
    kept = {text.id: text.extra for text in corpus.texts}
    assert kept == {"5#0": {"caption_id": 770337}, "5#2": {"caption_id": 770339}}
    assert corpus.images[0].extra["cocoid"] == 5
    rows[0]["sentences"][1]["sentid"] = [1]
    (source / "dataset_coco.json").write_text(json.dumps({"images": rows}))
    with pytest.raises(CorpusError, match="'sentid' must be"):
        import_corpus("karpathy", source, tmp_path / "two")


def test_a_typo_in_restval(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="did you mean 'train'"):
        import_corpus("karpathy", make_source(tmp_path / "s", COCO), tmp_path / "out", restval="trian")


def test_a_row_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", [row(0, "train", ["A"])])
    rows = [row(0, "train", ["A"]), {"filename": "1.jpg", "split": "train"}]
    (source / "dataset_flickr30k.json").write_text(json.dumps({"images": rows}))
    with pytest.raises(CorpusError, match=r"images\[1\] lacks 'sentences'"):
        import_corpus("karpathy", source, tmp_path / "out")


@pytest.mark.parametrize("content", ["[]", '{"annotations": []}', '{"images": {}}'])
def test_another_json_file(tmp_path: Path, content: str) -> None:
    source = make_source(tmp_path / "s", [row(0, "train", ["A"])])
    (source / "dataset_flickr30k.json").write_text(content)
    with pytest.raises(CorpusError, match="list `images`"):
        import_corpus("karpathy", source, tmp_path / "out")


def test_duplicate_ids(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", [row(0, "train", ["A"]), row(0, "train", ["B"])])
    with pytest.raises(CorpusError, match=r"ids .*once.*'0.jpg'"):
        import_corpus("karpathy", source, tmp_path / "out")
