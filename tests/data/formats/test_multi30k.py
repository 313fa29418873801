from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.data.formats.sources import jpeg

from quintet.data.formats import import_corpus
from quintet.data.vocabulary import split_words
from quintet.errors import CorpusError

TEXTS = {
    ("train", "en"): ["A dog runs.", "Two men cook."],
    ("train", "de"): ["Ein Hund läuft.", "Zwei Männer kochen."],
    ("train", "zh"): ["一只狗在跑。", "两个男人在做饭。"],
    ("test_2016_flickr", "en"): ["A girl sings."],
    ("test_2016_flickr", "de"): ["Ein Mädchen singt."],
}
NAMES = {"train": ["1.jpg", "2.jpg"], "test_2016_flickr": ["3.jpg"]}


def make_source(folder: Path) -> Path:
    raw, lists, images = folder / "task1" / "raw", folder / "task1" / "image_splits", folder / "flickr30k-images"
    for each in (raw, lists, images):
        each.mkdir(parents=True)
    for (split, language), texts in TEXTS.items():
        (raw / f"{split}.{language}.gz").write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))
    for split, names in NAMES.items():
        (lists / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
    for number in (1, 2, 3):
        (images / f"{number}.jpg").write_bytes(jpeg(number))
    return folder


def test_every_language_is_a_caption_of_the_image(tmp_path: Path) -> None:
    corpus = import_corpus("multi30k", make_source(tmp_path / "s"), tmp_path / "out")
    assert corpus.splits == {"train": ["1.jpg", "2.jpg"], "test": ["3.jpg"]}
    assert [(text.extra["language"], text.text) for text in corpus.texts if text.group == "1.jpg"] == [
        ("de", "Ein Hund läuft."),
        ("en", "A dog runs."),
        ("zh", "一只狗在跑。"),
    ]
    assert split_words("Zwei Männer") == ["zwei", "männer"]
    assert len(split_words("一只狗在跑。")) > 1


def test_languages_can_be_chosen(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    corpus = import_corpus("multi30k", source, tmp_path / "out", languages="de")
    assert {text.extra["language"] for text in corpus.texts} == {"de"}
    with pytest.raises(CorpusError, match="languages=fr"):
        import_corpus("multi30k", source, tmp_path / "other", languages="de,fr")


def test_a_file_that_has_other_lines_than_the_list_is_named(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    with (source / "task1" / "image_splits" / "train.txt").open("a") as file:
        file.write("3.jpg\n")
    with pytest.raises(CorpusError, match=r"train\.de\.gz has 2 captions"):
        import_corpus("multi30k", source, tmp_path / "out")
    packed = source / "task1" / "raw" / "train.de.gz"
    packed.write_bytes(packed.read_bytes()[:-10])
    with pytest.raises(CorpusError, match="damaged or cut short"):
        import_corpus("multi30k", source, tmp_path / "out")


def test_five_captions_of_an_image(tmp_path: Path) -> None:
    source = make_source(tmp_path / "s")
    (source / "task1").rename(source / "task2")
    raw = source / "task2" / "raw"
    for path in list(raw.iterdir()):
        path.unlink()
    for number in (1, 2):
        (raw / f"train.{number}.en").write_text(f"One {number}.\nTwo {number}.\n")
    corpus = import_corpus("multi30k", source, tmp_path / "out", task="task2")
    assert [text.text for text in corpus.texts] == ["One 1.", "One 2.", "Two 1.", "Two 2."]
