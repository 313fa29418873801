from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image as PILImage

from quintet.data.corpus import Corpus, Image, Text
from quintet.data.inspect import GAP, SIDE, contact_sheet
from quintet.errors import CorpusError


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
    for place, n in enumerate((0, 6, 12, 18)):
        red, green, _ = sheet.getpixel((GAP + place * (SIDE + GAP) + 50, GAP + 50))
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
    corners = [sheet.getpixel((GAP + place * (SIDE + GAP) + SIDE - 2, GAP + SIDE - 2)) for place in range(4)]
    assert corners == [(211, 211, 211)] * 3 + [(3, 252, 0)]


def test_one_split(tmp_path: Path) -> None:
    contact_sheet(make_corpus(tmp_path, 5), tmp_path / "sheet.png", split="one")
    assert PILImage.open(tmp_path / "sheet.png").getpixel((GAP + 9, GAP + 9)) == (3, 252, 0)


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"\.jpg or \.png"):
        contact_sheet(make_corpus(tmp_path, 4), tmp_path / "sheet.pdf")
