"""What `check_corpus` finds in a corpus made for it, and that it finds nothing in a clean one."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage
from PIL import ImageFilter

from quintet.data.corpus import Corpus, Image, Text
from quintet.data.near_duplicates import BLOCK, describe_image, similar_pairs
from quintet.files import read_json
from quintet.report.corpus_check import CorpusCheck, check_corpus


def photo(seed: int, size: tuple[int, int] = (160, 120)) -> PILImage.Image:
    """Smooth random colours, as different from each other as photographs are."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return PILImage.fromarray(pixels).resize(size, PILImage.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def make(folder: Path, splits: dict[str, list[str]] | None = None, captions: dict[str, str] | None = None) -> Corpus:
    """Eight images; g0 to g3 are for training, g4 and g5 for dev, g6 and g7 for test."""
    names = [f"g{number}" for number in range(8)]
    for number, name in enumerate(names):
        if not (folder / f"{name}.png").exists():
            photo(number).save(folder / f"{name}.png")
    images = [Image(f"{name}.png", name, f"{name}.png") for name in names]
    told = {name: f"a picture of number {number}" for number, name in enumerate(names)} | (captions or {})
    texts = [Text(f"{name}#0", name, text) for name, text in told.items()]
    return Corpus("made", images, texts, splits or {"train": names[:4], "dev": names[4:6], "test": names[6:]}, folder)


def kinds(found: CorpusCheck) -> dict[str, str]:
    return {each.kind: each.severity for each in found.findings}


def test_nothing_is_found_in_a_clean_corpus(folder: Path) -> None:
    found = check_corpus(make(folder))
    assert not found.findings
    assert found.checked_images == 8


def stored_again(image: PILImage.Image, quality: int) -> PILImage.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return PILImage.open(buffer)


@pytest.mark.parametrize("how", ["copy", "smaller", "jpeg", "blurred"])
def test_an_image_of_the_test_split_in_training_is_a_problem(folder: Path, how: str) -> None:
    image = photo(0)
    made = {
        "copy": image,
        "smaller": image.resize((80, 60)),
        "jpeg": stored_again(image, 30),
        "blurred": image.filter(ImageFilter.GaussianBlur(1)),
    }
    made[how].save(folder / "g7.png")
    found = check_corpus(make(folder))
    assert kinds(found) == {"images across splits": "problem"}
    (example,) = found.findings[0].examples
    assert example["images"] == ["g0.png", "g7.png"]
    assert example["splits"] == ["train", "test"]


def test_copies_in_one_split_are_false_negatives_and_nested_splits_no_leak(folder: Path) -> None:
    photo(6).save(folder / "g7.png")
    names = [f"g{number}" for number in range(8)]
    found = check_corpus(make(folder, {"train": names[:4], "test": names[6:7], "testall": names[6:]}))
    assert kinds(found) == {
        "images in several groups": "note",
        "overlapping splits": "note",
        "images in no split": "note",
    }


def test_splits_that_overlap_are_a_problem(folder: Path) -> None:
    names = [f"g{number}" for number in range(8)]
    assert kinds(check_corpus(make(folder, {"train": names[:5], "test": names[4:]}))) == {
        "overlapping splits": "problem"
    }


def test_captions_that_groups_share(folder: Path) -> None:
    found = check_corpus(make(folder, captions={"g0": "A dog, running", "g1": "a dog running.", "g7": "a DOG running"}))
    assert kinds(found) == {"repeated captions": "note", "captions across splits": "note"}
    assert found.findings[0].count == 3


def test_outliers_of_language_length_and_size(folder: Path) -> None:
    photo(0, (200, 20)).save(folder / "g0.png")
    captions = {f"g{n}": f"a picture of number {n}" for n in range(8)} | {"g1": "一只狗", "g2": "dog", "g3": "w " * 60}
    corpus = make(folder, captions=captions)
    more = [Text(f"more{n}", "g4", f"one more picture {n}") for n in range(20)]
    found = check_corpus(Corpus("more", corpus.images, [*corpus.texts, *more], corpus.splits, folder))
    assert kinds(found) == dict.fromkeys(
        ("short captions", "long captions", "other scripts", "small images", "narrow images"), "note"
    )
    named = {each.kind: [example.get("id") for example in each.examples] for each in found.findings}
    assert named["other scripts"] == ["g1#0"]
    assert named["short captions"] == ["g2#0"]
    assert named["long captions"] == ["g3#0"]


def test_unreadable_images_are_named_and_the_page_and_the_numbers_are_written(folder: Path) -> None:
    (folder / "g3.png").write_bytes(b"no image")
    photo(0).save(folder / "g7.png")
    found = check_corpus(make(folder, captions={"g5": "a picture <script>"}))
    assert kinds(found) == {"unreadable images": "problem", "images across splits": "problem"}
    found.save(folder / "check.json")
    assert [each["count"] for each in read_json(folder / "check.json")["findings"]] == [1, 1]
    found.page(folder / "check.html")
    page = (folder / "check.html").read_text()
    assert "g3.png" in page
    assert page.count("<img") == 2
    assert check_corpus(make(folder), images=False).findings == []


def test_similar_pairs_are_those_of_all_products() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(BLOCK + 50, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    pairs, similarity = similar_pairs(rows, 0.99)
    products = rows @ rows.T
    expected = {(i, j) for i, j in zip(*np.nonzero(np.triu(products, 1) >= 0.99), strict=True)}
    assert {tuple(pair) for pair in pairs.tolist()} == expected
    assert (np.diff(similarity) <= 0).all()


def test_images_of_one_colour_are_like_nothing() -> None:
    assert not describe_image(PILImage.new("RGB", (50, 40), "red")).any()
