from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from tests.data.formats.sources import STRUCT, as_parquet, captions, images, jpeg, write_parquet

from quintet.data.corpus import Corpus
from quintet.data.formats import import_corpus
from quintet.errors import CorpusError

ROWS = range(3)


def imported(tmp_path: Path, columns: dict[str, Any], name: str = "train-0.parquet", **options: Any) -> Corpus:
    return import_corpus("parquet", write_parquet(tmp_path / name, columns), tmp_path / "out", **options)


def texts_of(corpus: Corpus) -> list[list[str]]:
    return [[text.text for text in corpus.texts if text.group == image.group] for image in corpus.images]


@pytest.mark.parametrize(
    "column",
    [
        images(ROWS),
        pyarrow.array([jpeg(number) for number in ROWS]),
        pyarrow.array([jpeg(number) for number in ROWS], pyarrow.large_binary()),
        pyarrow.array([{"bytes": jpeg(number), "path": None} for number in ROWS], STRUCT),
    ],
    ids=["struct", "bytes", "large bytes", "struct without paths"],
)
def test_images_keep_their_bytes(tmp_path: Path, column: pyarrow.Array) -> None:
    corpus = imported(tmp_path, {"photo": column, "caption": [captions(number)[0] for number in ROWS]})
    assert [corpus.image_path(image).read_bytes() for image in corpus.images] == [jpeg(number) for number in ROWS]
    assert all(str(image.path).endswith(".jpg") for image in corpus.images)
    assert len({image.id for image in corpus.images}) == 3


@pytest.mark.parametrize(
    "columns",
    [
        {"captions": [captions(number) for number in ROWS]},
        {"sentences": [[{"raw": text, "sentid": 7, "tokens": ["a"]} for text in captions(n)] for n in ROWS]},
        {"sentences": [{"raw": captions(number), "sentid": [1] * len(captions(number))} for number in ROWS]},
        {f"caption_{at}": [[*captions(n), None][at] for n in ROWS] for at in (2, 0, 1)},
    ],
    ids=["list", "structs", "struct of lists", "numbered columns"],
)
def test_captions_in_any_layout(tmp_path: Path, columns: dict[str, Any]) -> None:
    corpus = imported(tmp_path, {"image": images(ROWS)} | columns)
    assert texts_of(corpus) == [captions(number) for number in ROWS]


def test_rows_of_one_image_are_its_captions(tmp_path: Path) -> None:
    corpus = imported(
        tmp_path,
        {
            "image": pyarrow.concat_arrays([images(ROWS), images(ROWS)]),
            "caption": [f"{at} {number}" for at in "ab" for number in ROWS],
            "image_id": [*ROWS, *ROWS],
            "caption_id": [*range(6)],
        },
    )
    assert texts_of(corpus) == [["a 0", "b 0"], ["a 1", "b 1"], ["a 2", "b 2"]]
    assert {text.id: text.extra["caption_id"] for text in corpus.texts}["1#1"] == 4
    assert len(list((tmp_path / "out" / "images").iterdir())) == 3


def test_one_id_of_two_images_is_refused(tmp_path: Path) -> None:
    columns = {"image": images(ROWS), "caption": ["a", "b", "c"], "image_id": [1, 2, 1]}
    with pytest.raises(CorpusError, match=r"row 2: the id '1'"):
        imported(tmp_path, columns)
    assert not (tmp_path / "out").exists()
    assert [image.id for image in imported(tmp_path, columns, id="row").images] == [
        f"train-0/{number:06d}" for number in ROWS
    ]


def test_splits_come_from_a_column_or_the_names_of_the_files(tmp_path: Path) -> None:
    columns = {"image": images(ROWS), "caption": ["a", "b", "c"]}
    named = imported(tmp_path, columns, "validation-00000-of-00002.parquet")
    assert list(named.splits) == ["dev"]
    columns["split"] = ["train", "val", "restval"]
    column = imported(tmp_path, columns, "test.parquet", overwrite=True)
    assert {name: len(groups) for name, groups in column.splits.items()} == {"train": 2, "dev": 1}
    dropped = imported(tmp_path, columns, overwrite=True, restval="drop")
    assert any(note.startswith("skipped 1 rows of split 'restval'") for note in dropped.notes)


def test_class_numbers_of_splits_have_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "text": datasets.Value("string"),
            "split": datasets.ClassLabel(names=["val", "train"]),
        }
    )
    rows = {"image": [{"bytes": jpeg(n), "path": None} for n in ROWS], "text": ["a", "b", "c"], "split": [0, 1, 1]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "x.parquet")
    corpus = import_corpus("parquet", tmp_path / "x.parquet", tmp_path / "out")
    assert {name: len(groups) for name, groups in corpus.splits.items()} == {"train": 2, "dev": 1}


def test_groups_languages_and_kept_columns(tmp_path: Path) -> None:
    columns = {
        "image": images(ROWS),
        "caption": ["a", "b", "c"],
        "person_id": [5, 5, 6],
        "language": ["de", "de", "en"],
        "camera": ["x", "y", None],
    }
    corpus = imported(tmp_path, columns, keep="camera")
    assert corpus.splits == {"train": ["5", "6"]}
    assert [text.extra for text in corpus.texts] == [{"language": "de"}, {"language": "de"}, {"language": "en"}]
    assert [image.extra.get("camera") for image in corpus.images] == ["x", "y", None]


def test_images_by_path_start_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in ROWS:
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "secret.jpg").write_bytes(jpeg(5))
    columns = {"image": ["0.jpg", "1.jpg", "../secret.jpg"], "caption": ["a", "b", "c"]}
    with pytest.raises(CorpusError, match="images=FOLDER"):
        imported(tmp_path, columns)
    corpus = imported(tmp_path, columns, images=tmp_path / "photos")
    assert [image.path for image in corpus.images] == [str(tmp_path / "photos" / f"{number}.jpg") for number in (0, 1)]
    assert any("outside" in note for note in corpus.notes)


def test_whole_paths_as_datasets_writes_them_give_the_ids_of_their_names(tmp_path: Path) -> None:
    files = [tmp_path / "photos" / "a" / f"{number}.jpg" for number in ROWS]
    files[0].parent.mkdir(parents=True)
    for number, file in enumerate(files):
        file.write_bytes(jpeg(number))
    columns = {"image": [{"bytes": None, "path": str(file)} for file in files], "caption": ["a", "b", "c"]}
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    columns["image"] = pyarrow.array(columns["image"], kind)
    with pytest.raises(CorpusError, match=f"images={re.escape(str(files[0].parent))}"):
        imported(tmp_path, columns)
    corpus = imported(tmp_path, columns, images=tmp_path / "photos")
    assert [image.id for image in corpus.images] == ["a/0.jpg", "a/1.jpg", "a/2.jpg"]
    assert [image.path for image in corpus.images] == [str(file) for file in files]


def test_a_page_that_does_not_fit_its_checksum_is_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"image": [b"\xff\xd8\xff" + bytes(5_000)], "caption": ["a"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", compression="none", write_page_checksum=True)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[2_000] ^= 1
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(CorpusError, match=r"a\.parquet cannot be read"):
        import_corpus("parquet", tmp_path / "a.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ({"image": images(ROWS), "note": [1, 2, 3]}, {}, r"no column holds captions.*note \(int64\)"),
        ({"image": images(ROWS), "caption": ["a"] * 3, "text": ["b"] * 3}, {}, "captions: caption, text"),
        ({"image": images(ROWS), "mask": images(ROWS), "caption": ["a"] * 3}, {}, "images: image, mask"),
        ({"image": images(ROWS), "caption": ["a"] * 3}, {"caption": "captoin"}, "'captoin'.*'caption'"),
        ({"image": images(ROWS), "captions": [[["a"]]] * 3}, {}, "lists in lists"),
        ({"image": images(ROWS), "captions": [[1]] * 3}, {}, "holds no text"),
        ({"image": [1, 2, 3], "caption": ["a"] * 3}, {"image": "image"}, "holds no images"),
        ({"url": ["https://x.org/1.jpg"] * 3, "caption": ["a"] * 3}, {}, "img2dataset"),
        ({"image": ["https://x.org/1.jpg"] * 3, "caption": ["a"] * 3}, {}, "img2dataset"),
        ({"caption": ["a"] * 3}, {}, "no column holds images"),
        ({"image": images(ROWS), "caption": ["a"] * 3}, {"restval": "x"}, "restval=x"),
        ({"image": images(ROWS), "caption": ["a"] * 3, "x": [[1]] * 3}, {"keep": "x"}, "cannot be kept"),
        (
            {
                "image": images(ROWS),
                "caption": ["a"] * 3,
                "group": ["1", "1", "2"],
                "split": ["train", "test", "train"],
            },
            {},
            "group '1' is in both",
        ),
    ],
)
def test_columns_that_do_not_fit_are_named(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(CorpusError, match=told):
        imported(tmp_path, columns, **options)
    assert not (tmp_path / "out").exists()


def test_rows_without_an_image_or_with_other_bytes_are_noted(tmp_path: Path) -> None:
    column = pyarrow.array([jpeg(0), None, b"<html>not found</html>"])
    corpus = imported(tmp_path, {"jpg": column, "caption": ["a", "b", "c"]})
    assert len(corpus.images) == 1
    assert [note.split(",")[0] for note in corpus.notes if note.startswith("skipped")] == [
        "skipped 1 rows without an image",
        "skipped 1 rows whose bytes are no image",
    ]
    with pytest.raises(CorpusError, match="without an image"):
        imported(tmp_path, {"jpg": column, "caption": ["a", "b", "c"]}, overwrite=True, strict=True)


@pytest.mark.parametrize("cut", ["end", "page"])
def test_a_damaged_file_is_named_and_leaves_nothing(tmp_path: Path, cut: str) -> None:
    good, bad = sorted(as_parquet(tmp_path / "p").iterdir())
    content = bytearray(bad.read_bytes())
    if cut == "end":
        del content[-50:]
    else:
        content[4:60] = bytes(56)
    bad.write_bytes(content)
    with pytest.raises(CorpusError, match=r"val-.*cannot be read"):
        import_corpus("parquet", [good, bad], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pattern_stands_for_its_files(tmp_path: Path) -> None:
    as_parquet(tmp_path / "p")
    assert len(import_corpus("parquet", str(tmp_path / "p" / "*.parquet"), tmp_path / "1").images) == 6
    with pytest.raises(CorpusError, match="does not exist"):
        import_corpus("parquet", str(tmp_path / "q" / "*.parquet"), tmp_path / "2")
