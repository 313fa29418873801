from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from quintet.data import loading
from quintet.data.corpus import Corpus, Image, Text
from quintet.data.features import FeatureStore
from quintet.data.loading import FeatureImages, PictureImages, Sentences, image_batches, load_pairs, text_batches
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import PictureError


@pytest.fixture
def pictures(tmp_path: Path) -> Corpus:
    for name, colour in (("a", (255, 0, 0)), ("b", (0, 255, 0))):
        Picture.new("RGB", (4, 4), colour).save(tmp_path / f"{name}.png")
    images = [Image(name, name, f"{name}.png") for name in "ab"]
    return Corpus("pictures", images, [Text(f"{n}#0", n, "a word") for n in "ab"], {"train": ["a", "b"]}, root=tmp_path)


def to_tensor(picture: Picture.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture, dtype=np.float32)).permute(2, 0, 1)


def noisy(picture: Picture.Image, rng: np.random.Generator) -> torch.Tensor:
    return to_tensor(picture) + float(rng.random())


def test_pairs_carry_rows_groups_and_their_data(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    split = corpus.split("train")
    tokenizer = WordVocabulary.build([text.text for text in split.texts], min_count=1)
    images = FeatureImages(FeatureStore(tiny_corpus / "features" / "toy"))
    pairs = [np.array([[0, 1], [3, 6]]), np.array([[2, 4]])]
    batches = list(load_pairs(split, images, Sentences(tokenizer, split.texts), pairs))
    assert [len(batch) for batch in batches] == [2, 1]
    assert batches[0].text_rows.tolist() == [1, 6]
    assert batches[0].image_groups.tolist() == split.image_groups[[0, 3]].tolist()
    assert batches[0].texts.tokens[1].tolist()[: int(batches[0].texts.lengths[1])] == tokenizer.ids(split.texts[6].text)
    direct = images.batch([split.images[3]])
    assert direct.fragments is not None
    assert batches[0].images.fragments is not None
    assert torch.equal(batches[0].images.fragments[1], direct.fragments[0])


def test_pixels_are_read_once_and_within_a_budget(pictures: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []
    original = loading.open_picture
    monkeypatch.setattr(loading, "open_picture", lambda path: reads.append(path) or original(path))
    source = PictureImages(pictures, to_tensor)
    for _ in range(2):
        batch = source.batch(pictures.images)
    assert len(reads) == 2
    assert batch.pixels is not None
    assert batch.pixels[:, :, 0, 0].tolist() == [[255, 0, 0], [0, 255, 0]]
    monkeypatch.setattr(loading, "CACHE_BYTES", 0)
    uncached = PictureImages(pictures, to_tensor)
    for _ in range(2):
        uncached.batch(pictures.images)
    assert len(reads) == 6


def test_random_views_depend_on_the_seed_of_the_pair(pictures: Corpus) -> None:
    source = PictureImages(pictures, to_tensor, noisy)
    first, again, other = (
        source.batch(pictures.images, seeds).pixels for seeds in ([[1], [2]], [[1], [2]], [[3], [2]])
    )
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first, again)
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])
    plain = source.batch(pictures.images).pixels
    assert plain is not None
    assert plain[0, 0, 0, 0] == 255, "measuring sees the picture as it is"


def test_a_missing_picture_is_named(pictures: Corpus) -> None:
    (pictures.root / "b.png").unlink()
    with pytest.raises(PictureError, match=r"b\.png"):
        PictureImages(pictures, to_tensor).batch(pictures.images)


def test_whole_splits_come_in_order(tiny_corpus: Path) -> None:
    split = Corpus.open(tiny_corpus).split("test")
    source = FeatureImages(FeatureStore(tiny_corpus / "features" / "toy"))
    sentences = Sentences(WordVocabulary.build([text.text for text in split.texts], min_count=1), split.texts)
    assert sum(len(batch) for batch in image_batches(source, split.images, 4)) == len(split.images)
    lengths = torch.cat([batch.lengths for batch in text_batches(sentences, 5)])
    assert lengths.tolist() == [len(text.text.split()) + 2 for text in split.texts]
