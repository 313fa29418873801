from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from quintet.data.corpus import Corpus
from quintet.data.formats import import_corpus
from quintet.errors import CorpusError

TOKENS = """1.jpg#0\tA dog .
1.jpg#1\tA brown dog runs .
2.jpg#0\tEin größerer Hund .
2.jpg#1\t
3.jpg#0\tA cat .
4.jpg.1#0\tIn no split .
"""


def make_source(folder: Path, tokens: str | bytes = TOKENS) -> Path:
    (folder / "images").mkdir(parents=True)
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        Image.new("RGB", (4, 4)).save(folder / "images" / name)
    data = tokens.encode() if isinstance(tokens, str) else tokens
    (folder / "Flickr8k.token.txt").write_bytes(data)
    for split, names in (("train", "1.jpg\r\n"), ("dev", "2\n"), ("test", "3.jpg\n")):
        (folder / f"Flickr_8k.{split}Images.txt").write_text(names)
    return folder


def test_tokens_lists_and_images(tmp_path: Path) -> None:
    source = make_source(tmp_path / "flickr8k")
    corpus = import_corpus("flickr", source, tmp_path / "out")
    assert corpus.name == "flickr8k"
    assert corpus.splits == {"train": ["1.jpg"], "dev": ["2.jpg"], "test": ["3.jpg"]}
    assert [(text.id, text.text) for text in corpus.texts] == [
        ("1.jpg#0", "A dog ."),
        ("1.jpg#1", "A brown dog runs ."),
        ("2.jpg#0", "Ein größerer Hund ."),
        ("3.jpg#0", "A cat ."),
    ]
    assert corpus.image_path(corpus.images[0]) == source / "images" / "1.jpg"
    assert corpus.notes == [
        "skipped 1 images of the token file that are in no split, first 4.jpg.1",
        "skipped 1 empty captions, first 2.jpg#1",
    ]
    assert Corpus.open(tmp_path / "out").texts == corpus.texts


def test_text_ids_keep_the_numbers_of_the_file(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", "1.jpg#3\tThree .\n1.jpg#1\tOne .\n2.jpg#0\tTwo .\n3.jpg#0\tCat .\n")
    assert [text.id for text in import_corpus("flickr", source, tmp_path / "out").texts][:2] == ["1.jpg#1", "1.jpg#3"]


def test_a_missing_image_is_a_note_or_an_error(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", TOKENS.replace("2.jpg#1\t\n", ""))
    (source / "images" / "3.jpg").unlink()
    with pytest.raises(CorpusError, match=r"not exist: .*3\.jpg"):
        import_corpus("flickr", source, tmp_path / "out", strict=True)
    corpus = import_corpus("flickr", source, tmp_path / "out")
    assert "test" not in corpus.splits
    assert any("not exist" in note for note in corpus.notes)
    assert any("'test' came out empty" in note for note in corpus.notes)


def test_captions_that_are_not_utf8_are_named_by_line(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", b"1.jpg#0\tA dog .\n2.jpg#0\tcaf\xe9 .\n")
    with pytest.raises(CorpusError, match=r"Flickr8k\.token\.txt, line 2"):
        import_corpus("flickr", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_line_without_a_number(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", "1.jpg#0\tA dog .\nnonsense\n")
    with pytest.raises(CorpusError, match="line 2: expected IMAGE#NUMBER"):
        import_corpus("flickr", source, tmp_path / "out")


def test_an_id_that_occurs_twice(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s", "1.jpg#0\tA dog .\n1.jpg#0\tA cat .\n")
    with pytest.raises(CorpusError, match=r"line 2: .*'1.jpg#0'"):
        import_corpus("flickr", source, tmp_path / "out")


def test_a_image_in_two_splits(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    (source / "Flickr_8k.testImages.txt").write_text("1.jpg\n")
    with pytest.raises(CorpusError, match=r"'1\.jpg' .*'train' .*'test'"):
        import_corpus("flickr", source, tmp_path / "out")


def test_a_listed_image_without_captions_is_noted(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    (source / "Flickr_8k.testImages.txt").write_text("3.jpg\n9.jpg\n")
    notes = import_corpus("flickr", source, tmp_path / "out").notes
    assert any("skipped 1 images of split 'test'" in note and "9.jpg" in note for note in notes)


def test_unusual_names_are_given_as_options(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    (source / "images").rename(source / "photos")
    (source / "Flickr8k.token.txt").rename(source / "words")
    with pytest.raises(CorpusError, match=r"token file .*tokens=PATH"):
        import_corpus("flickr", source, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"images .*images=PATH"):
        import_corpus("flickr", source, tmp_path / "out", tokens="words")
    corpus = import_corpus("flickr", source, tmp_path / "out", tokens="words", images=str(source / "photos"))
    assert len(corpus.images) == 3


def test_the_real_flickr8k(shared: Path, tmp_path: Path) -> None:
    if not (shared / "flickr8k" / "images").is_dir():
        pytest.skip("no flickr8k in the shared folder")
    corpus = import_corpus("flickr", shared / "flickr8k", tmp_path / "out")
    assert {name: len(groups) for name, groups in corpus.splits.items()} == {"train": 6000, "dev": 1000, "test": 1000}
    assert (len(corpus.images), len(corpus.texts)) == (8000, 40_000)
    assert len(corpus.notes) == 1
    assert "skipped 92 images" in corpus.notes[0]


def test_images_in_no_list_are_for_training(tmp_path: Path) -> None:
    """Dual-Path's split of Flickr30k: Flickr8k's lists of validation and test images, and all others for training."""
    source = make_source(tmp_path / "s")
    (source / "Flickr_8k.trainImages.txt").unlink()
    Image.new("RGB", (4, 4)).save(source / "images" / "4.jpg.1", format="JPEG")
    corpus = import_corpus("flickr", source, tmp_path / "out", rest=True)
    assert corpus.splits == {"train": ["1.jpg", "4.jpg.1"], "dev": ["2.jpg"], "test": ["3.jpg"]}
    assert not any("in no split" in note for note in corpus.notes)
    with pytest.raises(CorpusError, match="leave train out"):
        import_corpus("flickr", source, tmp_path / "other", rest=True, train="list.txt")
