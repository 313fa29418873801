from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quintet.data.formats import cuhk, import_corpus
from quintet.errors import CorpusError

ROWS: list[dict[str, Any]] = [
    {"split": "train", "file_path": "cam/1.png", "captions": ["A man in red.", "Red coat."], "id": 1},
    {"split": "train", "file_path": "cam/2.png", "captions": ["The man again."], "id": 1},
    {"split": "val", "file_path": "cam/3.png", "captions": ["A woman."], "id": 7},
    {"split": "test", "file_path": "cam/4.png", "captions": [f"Caption {n}." for n in range(10)], "id": 9},
]
RSTP_ROWS = [{"img_path" if key == "file_path" else key: value for key, value in row.items()} for row in ROWS]


def make_source(folder: Path, rows: list[dict[str, Any]], name: str = "reid_raw.json") -> Path:
    (folder / "imgs" / "cam").mkdir(parents=True)
    for row in rows:
        Image.new("RGB", (2, 2)).save(folder / "imgs" / row.get("file_path", row.get("img_path")))
    (folder / name).write_text(json.dumps(rows))
    return folder


def test_identities_are_groups_and_captions_name_their_image(tmp_path: Path) -> None:
    corpus = import_corpus("cuhk", make_source(tmp_path / "s", ROWS), tmp_path / "out")
    assert corpus.splits == {"train": ["1"], "dev": ["7"], "test": ["9"]}
    train = corpus.split("train")
    assert [image.id for image in train.images] == ["cam/1.png", "cam/2.png"]
    assert [text.image for text in train.texts] == ["cam/1.png", "cam/1.png", "cam/2.png"]
    assert [rows.tolist() for rows in train.images_of_text] == [[0], [0], [1]]
    assert [rows.tolist() for rows in train.images_of_group] == [[0, 1]]
    assert len(corpus.split("test").texts) == 10


def without_split() -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "split"} for row in ROWS]


def test_no_split_field_is_explained(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", without_split(), "caption_all.json")
    with pytest.raises(CorpusError, match=r"image 0 .*'split'.*file_order"):
        import_corpus("cuhk", source, tmp_path / "out")


def test_file_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(tmp_path / "s", without_split(), "caption_all.json")
    with pytest.raises(CorpusError, match=r"4 images.*40,206"):
        import_corpus("cuhk", source, tmp_path / "out", file_order="true")
    monkeypatch.setattr(cuhk, "FILE_ORDER", {"train": 2, "dev": 1, "test": 1})
    corpus = import_corpus("cuhk", source, tmp_path / "out", file_order="true")
    assert corpus.splits == {"train": ["1"], "dev": ["7"], "test": ["9"]}


def test_a_person_in_two_splits(tmp_path: Path) -> None:
    rows = [*ROWS, {"split": "test", "file_path": "cam/5.png", "captions": ["Him."], "id": 1}]
    with pytest.raises(CorpusError, match=r"'1' is .*'train'.*'test'"):
        import_corpus("cuhk", make_source(tmp_path / "s", rows), tmp_path / "out")


def test_a_image_without_captions_stays_with_its_person(tmp_path: Path) -> None:
    rows = [*ROWS, {"split": "train", "file_path": "cam/5.png", "captions": [], "id": 1}]
    corpus = import_corpus("cuhk", make_source(tmp_path / "s", rows), tmp_path / "out")
    assert len(corpus.split("train").images) == 3
    assert not corpus.notes


def test_a_person_without_captions_is_left_out_with_a_note(tmp_path: Path) -> None:
    rows = [*ROWS, {"split": "train", "file_path": "cam/5.png", "captions": [" "], "id": 2}]
    corpus = import_corpus("cuhk", make_source(tmp_path / "s", rows), tmp_path / "out")
    assert corpus.splits["train"] == ["1"]
    assert corpus.notes == [
        "skipped 1 empty captions, first cam/5.png#0",
        "skipped 1 images without a caption, first cam/5.png",
    ]


@pytest.mark.parametrize("captions", ["A man.", [1], None])
def test_captions_of_another_kind(tmp_path: Path, captions: Any) -> None:
    source = make_source(tmp_path / "s", [ROWS[0] | {"captions": captions}])
    with pytest.raises(CorpusError, match="list of texts"):
        import_corpus("cuhk", source, tmp_path / "out")


def test_another_json_file(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", [])
    (source / "reid_raw.json").write_text("{}")
    with pytest.raises(CorpusError, match="list of images"):
        import_corpus("cuhk", source, tmp_path / "out")


@pytest.mark.parametrize(
    ("format", "name", "field"), [("icfg", "ICFG-PEDES.json", "file_path"), ("rstp", "data_captions.json", "img_path")]
)
def test_the_lists_of_other_data_sets_of_people(tmp_path: Path, format: str, name: str, field: str) -> None:
    source = make_source(tmp_path / "s", ROWS, name)
    rows = [{field if key == "file_path" else key: value for key, value in row.items()} for row in ROWS]
    (source / name).write_text(json.dumps(rows))
    corpus = import_corpus(format, source, tmp_path / "out")
    assert corpus.splits == {"train": ["1"], "dev": ["7"], "test": ["9"]}
    assert [text.image for text in corpus.split("train").texts] == ["cam/1.png", "cam/1.png", "cam/2.png"]
    del rows[2][field]
    (source / name).write_text(json.dumps(rows))
    with pytest.raises(CorpusError, match=f"image 2 lacks '{field}'"):
        import_corpus(format, source, tmp_path / "other")
