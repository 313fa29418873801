"""A run encodes what people have, and scores it as its matcher does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import quintet
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.data.corpus import Corpus
from quintet.data.images import open_image
from quintet.data.tokenizers import text_batch
from quintet.errors import ArgumentError, ImageError, QuintetError, RunError
from quintet.files import read_json, write_json
from quintet.runs import run as run_module

KINDS = ["vse++", "scan", "pixels"]


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, make_run: Any) -> quintet.Run:
    pixels = request.param == "pixels"
    return quintet.load(make_run("vse++" if pixels else request.param, pixels=pixels), device="cpu")


def equal(one: Codes, other: Codes) -> bool:
    return one.tensors().keys() == other.tensors().keys() and all(
        torch.equal(part, other.tensors()[name]) for name, part in one.tensors().items()
    )


def close(one: Codes, other: Codes) -> bool:
    for name, part in one.tensors().items():
        torch.testing.assert_close(part, other.tensors()[name], atol=1e-5, rtol=1e-4)
    return True


def test_files_and_pil_images_give_what_the_matcher_gives(run: quintet.Run, photos: list[Path]) -> None:
    upright = [open_image(path) for path in photos]
    pixels = torch.stack([run.preprocess(image) for image in upright])
    batch = run.view.batch(pixels, [image.size for image in upright])
    with torch.no_grad():
        expected = run.matcher.encode_images(batch)
    assert equal(run.encode_images(photos), expected)
    assert equal(run.encode_images([str(path) for path in photos]), expected)
    assert equal(run.encode_images([Image.open(path) for path in photos]), expected)
    assert equal(run.encode_images([photos[0], str(photos[1]), *(Image.open(path) for path in photos[2:])]), expected)
    assert equal(run.encode_images(path for path in photos), expected)
    assert equal(run.encode_images(batch), expected)
    assert equal(run.encode_images([batch]), expected)
    assert len(run.encode_images([batch, batch])) == 10
    for single in (photos[2], str(photos[2]), Image.open(photos[2])):
        assert close(run.encode_images(single), expected[2])


def test_strings_give_what_the_matcher_gives(run: quintet.Run, texts: list[str]) -> None:
    assert run.tokenizer is not None
    batch = text_batch(run.tokenizer, texts)
    with torch.no_grad():
        expected = run.matcher.encode_texts(batch)
    assert equal(run.encode_texts(texts), expected)
    assert equal(run.encode_texts(text for text in texts), expected)
    assert equal(run.encode_texts(batch), expected)
    assert len(run.encode_texts(iter([batch, batch]))) == 8
    assert len(run.encode_texts(texts[0])) == 1


def test_scores_are_the_matchers_whatever_the_sizes(
    run: quintet.Run, photos: list[Path], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, sentences = run.encode_images(photos), run.encode_texts(texts)
    with torch.no_grad():
        expected = run.matcher.score(images, sentences)
    scores = run.score(images, sentences)
    assert torch.equal(scores, expected)
    assert not scores.requires_grad
    torch.testing.assert_close(run.score_pairs(images[:4], sentences), scores[:4].diag(), atol=1e-5, rtol=1e-4)
    small = run.encode_images(photos, batch_size=2, workers=1), run.encode_texts(texts, batch_size=3)
    monkeypatch.setattr(run_module, "SCORED_AT_ONCE", (2, 3))
    torch.testing.assert_close(run.score(*small), scores, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(run.score_pairs(small[0][:4], small[1]), scores[:4].diag(), atol=1e-5, rtol=1e-4)


def test_photos_are_turned_upright(run: quintet.Run, tmp_path: Path) -> None:
    """A camera writes pixels as its sensor lies, and in EXIF how to turn them."""
    upright = Image.linear_gradient("L").resize((60, 40)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    upright.save(tmp_path / "upright.png")
    turned = run.encode_images([tmp_path / "turned.png", Image.open(tmp_path / "turned.png")])
    straight = run.encode_images([tmp_path / "upright.png"] * 2)
    assert equal(turned, straight)
    lying = run.encode_images([upright.transpose(Image.Transpose.ROTATE_90)] * 2)
    assert not torch.equal(next(iter(lying.tensors().values())), next(iter(straight.tensors().values())))


def test_progress_is_told(run: quintet.Run, photos: list[Path], texts: list[str]) -> None:
    seen: list[tuple[int, int | None]] = []

    def tell(done: int, total: int | None) -> None:
        seen.append((done, total))

    run.encode_images(photos, batch_size=2, progress=tell)
    run.encode_texts(iter(texts), batch_size=3, progress=tell)
    assert seen == [(2, 5), (4, 5), (5, 5), (3, None), (4, None)]
    assert len(run.encode_images(photos, progress=True)) == 5


def test_images_are_read_as_they_are_needed(run: quintet.Run) -> None:
    """A generator of a million images must not be in memory at once."""
    drawn = 0

    def draw() -> Iterator[Image.Image]:
        nonlocal drawn
        for _ in range(40):
            drawn += 1
            yield Image.new("RGB", (8, 8))

    most: list[int] = []
    run.encode_images(draw(), batch_size=2, progress=lambda done, _: most.append(drawn - done))
    assert max(most) <= 8
    assert drawn == 40


@pytest.mark.parametrize("wrong", [b"bytes", 3, np.zeros((4, 4, 3)), torch.zeros(3, 4, 4), None, {"a": 1}])
def test_other_types_are_refused_by_name(run: quintet.Run, wrong: Any, photos: list[Path], texts: list[str]) -> None:
    name = type(wrong).__name__
    with pytest.raises(ArgumentError, match=name):
        run.encode_images([photos[0], wrong])
    with pytest.raises(ArgumentError, match=name):
        run.encode_texts([texts[0], wrong])
    for encode in (run.encode_images, run.encode_texts):
        with pytest.raises(ArgumentError):
            encode(wrong)
    codes = run.encode_texts(texts)
    for score in (run.score, run.score_pairs):
        with pytest.raises(ArgumentError, match="encode_images"):
            score(wrong, codes)
        with pytest.raises(ArgumentError, match="encode_texts"):
            score(codes, wrong)


def test_what_cannot_be_encoded_is_named(run: quintet.Run, photos: list[Path], texts: list[str]) -> None:
    with pytest.raises(ArgumentError, match="no image"):
        run.encode_images([])
    with pytest.raises(ArgumentError, match="no text"):
        run.encode_texts(iter([]))
    with pytest.raises(ArgumentError, match="text 1 is empty"):
        run.encode_texts(["a dog", "  "])
    photos[1].write_bytes(b"nonsense")
    with pytest.raises(ImageError, match=r"photo1\.png"):
        run.encode_images(photos)
    with pytest.raises(ImageError, match="does not exist"):
        run.encode_images("nowhere.jpg")
    with pytest.raises(ArgumentError, match="batch_size"):
        run.encode_images(photos, batch_size=0)
    with pytest.raises(ArgumentError, match=r"2 images .*4 texts"):
        run.score_pairs(run.encode_images([photos[0]] * 2), run.encode_texts(texts))
    with pytest.raises(ArgumentError, match="TextBatch"):
        run.encode_texts([text_batch(run.tokenizer, texts), "a dog"])  # type: ignore[arg-type, list-item]
    with pytest.raises(ArgumentError, match="another tokenizer"):
        run.encode_texts(TextBatch.from_ids([[1, 999, 2]]))
    other = ImageBatch(fragments=torch.rand(2, 3, 9))
    if run.matcher.image_input == "fragments":
        with pytest.raises(ArgumentError, match="128 numbers"):
            run.encode_images(other)
        with pytest.raises(ArgumentError, match="takes fragments"):
            run.encode_images(ImageBatch(pixels=torch.rand(1, 3, 8, 8)))
    else:
        with pytest.raises(ArgumentError, match="takes pixels"):
            run.encode_images(other)


def test_codes_of_another_run_are_refused(make_run: Any, texts: list[str], photos: list[Path]) -> None:
    one, other = quintet.load(make_run("vse++")), quintet.load(make_run("vsrn", embed_dim=10))
    with pytest.raises(ArgumentError, match="another run"):
        one.score(one.encode_images(photos), other.encode_texts(texts))


def test_a_run_without_a_vocabulary_takes_token_ids(make_run: Any, photos: list[Path]) -> None:
    run = quintet.load(make_run("vse++", vocabulary=False), device="cpu")
    with pytest.raises(RunError, match="--vocab"):
        run.encode_texts("a dog")
    codes = run.encode_texts(TextBatch.from_ids([[1, 4, 2], [1, 5, 6, 2]]))
    assert run.score(run.encode_images(photos), codes).shape == (5, 2)
    assert "token ids" in repr(run)


@pytest.mark.parametrize("tower", [None, {"name": "precomputed", "source": "/elsewhere"}])
def test_features_of_an_unknown_tower_cannot_be_made_of_photos(make_run: Any, photos: list[Path], tower: Any) -> None:
    folder = make_run("scan")
    (folder / "checksums.json").unlink()
    write_json(folder / "images.json", {"kind": "features", "name": "regions", "tower": tower})
    run = quintet.load(folder, device="cpu")
    with pytest.raises(RunError, match=r"'regions'.*ImageBatch"):
        run.encode_images(photos)
    assert len(run.encode_images(ImageBatch(fragments=torch.rand(2, 6, 128)))) == 2


def test_a_tower_that_was_moved_is_found_where_one_says(
    make_run: Any, photos: list[Path], tower_file: Path, tmp_path: Path
) -> None:
    folder = make_run("vse++")
    expected = quintet.load(folder).encode_images(photos)
    moved = tower_file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(RunError, match="tower_weights"):
        quintet.load(folder).encode_images(photos)
    assert equal(quintet.load(folder, tower_weights=moved).encode_images(photos), expected)


def test_a_split_is_encoded_and_tells_its_progress(tiny_corpus: Path, make_run: Any) -> None:
    folder = make_run("vse++")
    (folder / "checksums.json").unlink()
    model = read_json(folder / "model.json")
    model["arguments"]["image_dim"] = 8
    state = quintet.create_model(model["name"], **model["arguments"]).state_dict()
    from quintet.runs.checkpoint import save_tensors

    save_tensors(folder / "weights.safetensors", state, {})
    write_json(folder / "model.json", model)
    write_json(folder / "images.json", {"kind": "features", "name": "toy", "tower": {"name": "toy"}})
    run, corpus = quintet.load(folder, device="cpu"), Corpus.open(tiny_corpus)
    split = corpus.split("test")
    seen: list[tuple[int, int | None]] = []
    images, texts = run.encode_split(corpus, "test", batch_size=4, progress=lambda done, of: seen.append((done, of)))
    assert (len(images), len(texts)) == (len(split.images), len(split.texts)) == (6, 12)
    assert seen == [(4, 18), (6, 18), (10, 18), (14, 18), (18, 18)]
    assert close(images, run.encode_images(run.image_batches(corpus, split.images)))
    assert close(texts, run.encode_texts([text.text for text in split.texts]))


def test_a_run_says_what_it_is_and_moves(run: quintet.Run) -> None:
    assert run.name in repr(run)
    assert run.to("cpu") is run
    assert run.device == torch.device("cpu")
    with pytest.raises(QuintetError, match="no device"):
        run.to("gpu")


def test_the_matcher_may_be_trained_meanwhile(run: quintet.Run, texts: list[str]) -> None:
    """Encoding is in evaluation mode, and leaves the modes as they were."""
    expected = run.encode_texts(texts)
    run.matcher.train()
    assert equal(run.encode_texts(texts), expected)
    assert run.matcher.training


def test_the_shipped_run_looks_at_photos(photos: list[Path]) -> None:
    pytest.importorskip("onnxruntime")
    run = quintet.load("quintet-small", device="cpu")
    colours = [Image.new("RGB", (64, 48), colour) for colour in ((70, 140, 40), (110, 170, 240))]
    scores = run.score(run.encode_images([*colours, *photos]), run.encode_texts(["green grass", "the blue sky"]))
    assert scores.shape == (7, 2)
    assert scores[:2].argmax(0).tolist() == [0, 1]
