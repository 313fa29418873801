from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quintet.data.formats import import_corpus
from quintet.errors import CorpusError


def make_images(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(folder / name)
    return folder


def captions_of(corpus: Any) -> dict[str, list[str]]:
    return {image.id: [text.text for text in corpus.texts if text.group == image.group] for image in corpus.images}


def test_csv_with_quoted_captions(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png", "b.png")
    (source / "captions.csv").write_text(
        'image,caption\na.png,"A dog, brown"\na.png,"Two\nlines ""quoted"""\nb.png,Größe\n', encoding="utf-8-sig"
    )
    corpus = import_corpus("folder", source, tmp_path / "out")
    assert captions_of(corpus) == {"a.png": ["A dog, brown", 'Two\nlines "quoted"'], "b.png": ["Größe"]}


def test_tsv_takes_quotation_marks_as_they_are(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png", "b.png", "c.png")
    rows = 'file_name\ttext\na.png\t"Stop" says the sign\nb.png\t"A ""whole"" quoted field"\nc.png\t"lone mark\n'
    (source / "x.tsv").write_text(rows)
    corpus = import_corpus("folder", source, tmp_path / "out")
    assert [text.text for text in corpus.texts] == ['"Stop" says the sign', 'A "whole" quoted field', '"lone mark']


def test_jsonl_with_lists_splits_and_groups(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "images/a.png", "images/b.png", "images/c.png")
    rows = [
        {"image": "a.png", "captions": ["One.", "Two."], "split": "Train", "group": "x"},
        {"image": "b.png", "captions": "Three.", "split": "training", "group": "x"},
        {"image": "c.png", "captions": ["Four."], "split": "val", "group": 7},
    ]
    (source / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = import_corpus("folder", source, tmp_path / "out")
    assert corpus.splits == {"train": ["x"], "dev": ["7"]}
    assert [(text.id, text.group, text.image) for text in corpus.texts][2] == ("b.png#0", "x", "b.png")
    assert all(corpus.image_path(image).is_file() for image in corpus.images)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = make_images(tmp_path / "s", "a.png", "b.png")
    table = pyarrow.table({"path": ["a.png", "b.png"], "caption": [["One.", "Größe."], ["Two."]]})
    parquet.write_table(table, source / "t.parquet")
    corpus = import_corpus("folder", source, tmp_path / "out")
    assert captions_of(corpus) == {"a.png": ["One.", "Größe."], "b.png": ["Two."]}
    (source / "t.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(CorpusError, match="Parquet"):
        import_corpus("folder", source, tmp_path / "out2")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    source = make_images(tmp_path / "s", "a.png")
    (source / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorpusError, match=r"pip install 'quintet-retrieval\[data\]'"):
        import_corpus("folder", source, tmp_path / "out")


def test_sidecar_files(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png", "deep/b.JPG", "c.png", ".hidden.png")
    (source / "a.txt").write_text("One.\r\n\nTwo.\n")
    (source / "deep" / "b.JPG.txt").write_text("Drei Äpfel", encoding="utf-8")
    corpus = import_corpus("folder", source, tmp_path / "out")
    assert captions_of(corpus) == {"a.png": ["One.", "Two."], "deep/b.JPG": ["Drei Äpfel"]}
    assert any("skipped 1 images" in note and "c.png" in note for note in corpus.notes)


def test_sidecar_that_is_not_utf8(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png")
    (source / "a.txt").write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(CorpusError, match=r"a\.txt, line 2: .*UTF-8"):
        import_corpus("folder", source, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("t.csv", b"image,caption\na.png,fine\na.png,caf\xe9\n", 3),
        ("t.tsv", b"image\tcaption\na.png\tcaf\xe9\n", 2),
        ("t.jsonl", b'{"image": "a.png", "caption": "fine"}\n{"image": "a.png", "caption": "caf\xe9"}\n', 2),
    ],
)
def test_tables_that_are_not_utf8(tmp_path: Path, name: str, data: bytes, line: int) -> None:
    source = make_images(tmp_path / "s", "a.png")
    (source / name).write_bytes(data)
    with pytest.raises(CorpusError, match=f"{name}, line {line}: .*UTF-8"):
        import_corpus("folder", source, tmp_path / "out")


def test_columns_by_option_and_by_typo(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png")
    (source / "t.csv").write_text("bild,eins,zwei\na.png,One.,Two.\n")
    with pytest.raises(CorpusError, match=r"bild, eins, zwei.*image=COLUMN"):
        import_corpus("folder", source, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"'einz'.*'eins'"):
        import_corpus("folder", source, tmp_path / "out", image="bild", caption="einz")
    corpus = import_corpus("folder", source, tmp_path / "out", image="bild", caption="eins,zwei")
    assert captions_of(corpus) == {"a.png": ["One.", "Two."]}


def test_a_delimiter_of_its_own(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png")
    (source / "results.txt").write_text("image_name|comment\na.png|A dog, brown\n")
    corpus = import_corpus("folder", source / "results.txt", tmp_path / "out", delimiter="|")
    assert captions_of(corpus) == {"a.png": ["A dog, brown"]}


@pytest.mark.parametrize("row", ["a.png", "a.png,A dog, brown"])
def test_a_row_with_another_number_of_columns(tmp_path: Path, row: str) -> None:
    source = make_images(tmp_path / "s", "a.png")
    (source / "t.csv").write_text(f"image,caption\na.png,Fine.\n{row}\n")
    with pytest.raises(CorpusError, match="line 3: 2 columns"):
        import_corpus("folder", source, tmp_path / "out")


def test_several_tables_need_a_choice(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png")
    for name in ("one.csv", "two.csv"):
        (source / name).write_text(f"image,caption\na.png,{name}\n")
    with pytest.raises(CorpusError, match=r"several tables \(one.csv, two.csv\)"):
        import_corpus("folder", source, tmp_path / "out")
    assert import_corpus("folder", source, tmp_path / "out", table="two.csv").texts[0].text == "two.csv"


def test_missing_images_and_empty_captions_are_noted_or_refused(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png")
    (source / "t.csv").write_text("image,caption\ngone.png,Lost.\na.png,Fine.\na.png, \n")
    corpus = import_corpus("folder", source, tmp_path / "out")
    assert captions_of(corpus) == {"a.png": ["Fine."]}
    assert any(note.startswith("skipped 1 images that do not exist") for note in corpus.notes)
    assert any("1 empty captions" in note and "a.png#1" in note for note in corpus.notes)
    with pytest.raises(CorpusError, match="do not exist"):
        import_corpus("folder", source, tmp_path / "strict", strict="yes")


def test_nothing_to_import(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(CorpusError, match="nothing to import"):
        import_corpus("folder", tmp_path / "s", tmp_path / "out")


def test_a_image_in_two_splits(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", "a.png")
    (source / "t.csv").write_text("image,caption,split\na.png,One.,train\na.png,Two.,test\n")
    with pytest.raises(CorpusError, match=r"row 3: .*'a.png'"):
        import_corpus("folder", source, tmp_path / "out")


def test_the_split_by_hash_is_stable_and_near_its_shares(tmp_path: Path) -> None:
    source = make_images(tmp_path / "s", *(f"{n}.png" for n in range(200)))
    for n in range(200):
        (source / f"{n}.txt").write_text(f"Image {n}.")
    first = import_corpus("folder", source, tmp_path / "one", fractions="0.5,0.25,0.25")
    sizes = {name: len(groups) for name, groups in first.splits.items()}
    assert sum(sizes.values()) == 200
    assert abs(sizes["train"] - 100) < 30
    assert abs(sizes["dev"] - 50) < 25
    assert import_corpus("folder", source, tmp_path / "two", fractions="0.5,0.25,0.25").splits == first.splits
    assert import_corpus("folder", source, tmp_path / "three", fractions="0.5,0.25,0.25", seed=1).splits != first.splits
    for n in range(100):
        (source / f"{n}.txt").unlink()
    fewer = import_corpus("folder", source, tmp_path / "four", fractions="0.5,0.25,0.25")
    assert all(set(fewer.splits[name]) <= set(first.splits[name]) for name in fewer.splits)


@pytest.mark.parametrize("fractions", ["0.8,0.1", "0.8,0.1,0.2", "a,b,c", "1.5,-0.5,0"])
def test_fractions_that_make_no_sense(tmp_path: Path, fractions: str) -> None:
    source = make_images(tmp_path / "s", "a.png")
    with pytest.raises(CorpusError, match="three shares"):
        import_corpus("folder", source, tmp_path / "out", fractions=fractions)


@pytest.mark.parametrize("name", ["../secret.png", "SECRET", "link.png", "linked/secret.png"])
def test_a_table_does_not_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    """Neither by a path nor by a link; what is left out is named. `images` says where else images may be."""
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    Image.new("RGB", (8, 8)).save(folder / "good.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked").symlink_to(tmp_path)
    name = name.replace("SECRET", str(tmp_path / "secret.png"))
    (folder / "captions.csv").write_text(f"image,caption\n{name},a dog\ngood.png,a cat\n")
    corpus = import_corpus("folder", folder, tmp_path / "corpus")
    assert [image.id for image in corpus.images] == ["good.png"]
    assert any("outside of the table's folder" in note for note in corpus.notes)
    with pytest.raises(CorpusError, match="outside of"):
        import_corpus("folder", folder, tmp_path / "strict", strict=True)
    (folder / "captions.csv").write_text("image,caption\nsecret.png,a dog\n")
    corpus = import_corpus("folder", folder, tmp_path / "elsewhere", images=tmp_path)
    assert [image.id for image in corpus.images] == ["secret.png"]


def test_links_beside_images_do_not_lead_out_of_their_folder(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "photos", "good.png", "bad.png")
    make_images(tmp_path, "secret.png")
    (tmp_path / "secret.txt").write_text("a secret")
    (folder / "captions").mkdir()
    (folder / "captions" / "good").write_text("a dog")
    (folder / "good.txt").symlink_to("captions/good")
    (folder / "bad.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "linked.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked.txt").write_text("a cat")
    corpus = import_corpus("folder", folder, tmp_path / "corpus")
    assert [text.text for text in corpus.texts] == ["a dog"]
    assert any(note.startswith("skipped 2 images") and "links out" in note for note in corpus.notes)
