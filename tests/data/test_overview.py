from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage

from quintet.data.corpus import Corpus, Image, Text
from quintet.data.feature_store import Part, write_manifest
from quintet.data.overview import GAP, SIDE, contact_sheet, describe
from quintet.errors import CorpusError


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """a and b are copies of one image, c is damaged, d is missing, e has features only."""
    for name, colour in (("a", "red"), ("b", "red"), ("c", "blue")):
        PILImage.new("RGB", (30, 20), colour).save(tmp_path / f"{name}.png")
    (tmp_path / "c.png").write_bytes((tmp_path / "c.png").read_bytes()[:40])
    images = [Image(name, name, f"{name}.png") for name in "abcd"] + [Image("e", "e")]
    texts = [
        Text("a#0", "a", "A dog runs."),
        Text("a#1", "a", "The dog."),
        Text("b#0", "b", "A dog runs.", "b"),
        Text("c#0", "c", "one two three four five six seven"),
        Text("d#0", "d", "A dog runs."),
        Text("e#0", "e", "The end."),
    ]
    splits = {"train": ["a", "b", "c"], "test": ["d"], "testall": ["d", "e"]}
    Corpus("five", images, texts, splits, notes=["a note"]).save(tmp_path)
    return Corpus.open(tmp_path)


def test_counts_lengths_and_vocabulary(corpus: Corpus) -> None:
    facts = describe(corpus)
    assert (facts["images"], facts["texts"], facts["groups"]) == (5, 6, 5)
    train = facts["splits"]["train"]
    assert (train["groups"], train["images"], train["texts"]) == (3, 3, 4)
    assert train["images_by_number_of_texts"] == {"1": 2, "2": 1}
    assert train["words_in_a_text"]["max"] == 7
    # a dog runs . the one two three four five six seven
    assert train["vocabulary"] == 12
    assert facts["notes"] == ["a note"]
    json.dumps(facts)


def test_duplicates_and_shared_groups(corpus: Corpus) -> None:
    facts = describe(corpus)
    assert facts["groups_in_several_splits"] == {"test & testall": 1}
    assert facts["duplicate_texts"] == {"texts": 1, "examples": [{"text": "A dog runs.", "groups": 3}]}
    assert describe(corpus, split="train")["duplicate_texts"]["examples"][0]["groups"] == 2
    assert describe(corpus, split="test")["duplicate_texts"]["texts"] == 0


def test_one_split(corpus: Corpus) -> None:
    assert list(describe(corpus, split="test")["splits"]) == ["test"]
    with pytest.raises(CorpusError, match="did you mean 'train'"):
        describe(corpus, split="trian")


def test_several_images_of_a_group_share_its_texts() -> None:
    images = [Image("1", "x"), Image("2", "x"), Image("3", "x")]
    texts = [Text("a", "x", "Anyone."), Text("b", "x", "Two.", "2")]
    facts = describe(Corpus("people", images, texts, {"test": ["x"]}))
    assert facts["splits"]["test"]["images_by_number_of_texts"] == {"1": 2, "2": 1}


def test_unreadable_images_and_copies_are_listed_when_asked(corpus: Corpus) -> None:
    assert "image_files" not in describe(corpus)
    done: list[int] = []
    facts = describe(corpus, check_images=True, progress=done.append)["image_files"]
    assert facts["checked"] == 4
    assert done == [1, 2, 3, 4]
    assert facts["copies"] == [["a", "b"]]
    assert [row["image"] for row in facts["unreadable"]] == ["c", "d"]
    assert "does not exist" in facts["unreadable"][1]["reason"]


def test_features_are_listed_with_what_lacks_them(corpus: Corpus) -> None:
    assert describe(corpus)["features"] == {}
    folder = corpus.root / "features" / "grid"
    folder.mkdir(parents=True)
    np.save(folder / "f.npy", np.zeros((2, 4, 8), np.float32))
    write_manifest(folder, ["a", "b"], np.array([[0, 0], [0, 1]]), [Part("f.npy")], fragments=4, dim=8, tower={})
    assert describe(corpus)["features"] == {"grid": {"images": 2, "images_without": 3, "fragments": 4, "dim": 8}}
    (folder / "f.npy").unlink()
    assert "does not exist" in describe(corpus)["features"]["grid"]["error"]


def make_corpus(folder: Path, count: int, caption: str = "A square.") -> Corpus:
    for n in range(count):
        PILImage.new("RGB", (SIDE, SIDE), (n, 255 - n, 0)).save(folder / f"{n}.png")
    images = [Image(str(n), str(n), f"{n}.png") for n in range(count)]
    texts = [Text(f"{n}#0", str(n), caption) for n in range(count)]
    return Corpus("squares", images, texts, {"all": [str(n) for n in range(count)], "one": ["3"]}, root=folder)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_images_are_spread_evenly(tmp_path: Path, suffix: str) -> None:
    contact_sheet(make_corpus(tmp_path, 24), tmp_path / f"sheet{suffix}", count=4)
    sheet = PILImage.open(tmp_path / f"sheet{suffix}")
    assert sheet.width == 4 * (SIDE + GAP) + GAP
    for index, n in enumerate((0, 6, 12, 18)):
        red, green, _ = sheet.getpixel((GAP + index * (SIDE + GAP) + 50, GAP + 50))
        assert abs(red - n) < 8
        assert abs(green - (255 - n)) < 8


def test_the_caption_is_drawn_under_its_image(tmp_path: Path) -> None:
    def ink(caption: str) -> int:
        contact_sheet(make_corpus(tmp_path, 4, caption), tmp_path / "sheet.png", count=1)
        below = PILImage.open(tmp_path / "sheet.png").convert("L").crop((0, GAP + SIDE + 1, SIDE, GAP + SIDE + 60))
        return sum(below.histogram()[:128])

    assert 0 < ink("a") < ink("a long text about nothing in particular")


@pytest.mark.parametrize("caption", ["word " * 900, "x" * 5000, "größer, 犬 🐕", "a\nb\tc"])
def test_any_caption_can_be_drawn(tmp_path: Path, caption: str) -> None:
    contact_sheet(make_corpus(tmp_path, 4, caption), tmp_path / "sheet.png")


def test_unreadable_images_are_grey_boxes(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 4)
    (tmp_path / "0.png").write_bytes(b"")
    (tmp_path / "1.png").unlink()
    corpus.images[2] = Image("2", "2")
    contact_sheet(corpus, tmp_path / "sheet.png")
    sheet = PILImage.open(tmp_path / "sheet.png")
    corners = [sheet.getpixel((GAP + index * (SIDE + GAP) + SIDE - 2, GAP + SIDE - 2)) for index in range(4)]
    assert corners == [(211, 211, 211)] * 3 + [(3, 252, 0)]


def test_one_split_sheet(tmp_path: Path) -> None:
    contact_sheet(make_corpus(tmp_path, 5), tmp_path / "sheet.png", split="one")
    assert PILImage.open(tmp_path / "sheet.png").getpixel((GAP + 9, GAP + 9)) == (3, 252, 0)


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"\.jpg or \.png"):
        contact_sheet(make_corpus(tmp_path, 4), tmp_path / "sheet.pdf")
