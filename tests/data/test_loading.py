from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from quintet.data import loading
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Corpus, Image, Text
from quintet.data.feature_store import FeatureStore
from quintet.data.loading import (
    BATCHES_AHEAD,
    FeatureImages,
    PixelImages,
    TokenizedTexts,
    batches_ahead,
    image_batches,
    load_pairs,
    text_batches,
)
from quintet.data.negatives import OfflineRows
from quintet.data.vocabulary import WordVocabulary
from quintet.errors import ImageError


@pytest.fixture
def photos(tmp_path: Path) -> Corpus:
    for name, colour in (("a", (255, 0, 0)), ("b", (0, 255, 0))):
        PILImage.new("RGB", (4, 4), colour).save(tmp_path / f"{name}.png")
    images = [Image(name, name, f"{name}.png") for name in "ab"]
    return Corpus("photos", images, [Text(f"{n}#0", n, "a word") for n in "ab"], {"train": ["a", "b"]}, root=tmp_path)


def to_tensor(image: PILImage.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image, dtype=np.float32)).permute(2, 0, 1)


def noisy(image: PILImage.Image, rng: np.random.Generator) -> torch.Tensor:
    return to_tensor(image) + float(rng.random())


def test_pairs_carry_rows_groups_and_their_data(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    split = corpus.split("train")
    tokenizer = WordVocabulary.build([text.text for text in split.texts], min_count=1)
    images = FeatureImages(FeatureStore(tiny_corpus / "features" / "toy"))
    pairs = [np.array([[0, 1], [3, 6]]), np.array([[2, 4]])]
    batches = list(load_pairs(split, images, TokenizedTexts(tokenizer, split.texts), pairs))
    assert [len(batch) for batch in batches] == [2, 1]
    assert batches[0].text_rows.tolist() == [1, 6]
    assert batches[0].image_groups.tolist() == split.image_groups[[0, 3]].tolist()
    assert batches[0].texts.tokens[1].tolist()[: int(batches[0].texts.lengths[1])] == tokenizer.ids(split.texts[6].text)
    direct = images.batch([split.images[3]])
    assert direct.fragments is not None
    assert batches[0].images.fragments is not None
    assert torch.equal(batches[0].images.fragments[1], direct.fragments[0])


def test_pixels_are_read_once_and_within_a_budget(photos: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []
    original = loading.open_image
    monkeypatch.setattr(loading, "open_image", lambda path: reads.append(path) or original(path))
    source = PixelImages(photos, to_tensor)
    for _ in range(2):
        batch = source.batch(photos.images)
    assert len(reads) == 2
    assert batch.pixels is not None
    assert batch.pixels[:, :, 0, 0].tolist() == [[255, 0, 0], [0, 255, 0]]
    monkeypatch.setattr(loading, "CACHE_BYTES", 0)
    uncached = PixelImages(photos, to_tensor)
    for _ in range(2):
        uncached.batch(photos.images)
    assert len(reads) == 6


def test_random_views_depend_on_the_seed_of_the_pair(photos: Corpus) -> None:
    source = PixelImages(photos, to_tensor, noisy)
    first, again, other = (source.batch(photos.images, seeds).pixels for seeds in ([[1], [2]], [[1], [2]], [[3], [2]]))
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first, again)
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])
    plain = source.batch(photos.images).pixels
    assert plain is not None
    assert plain[0, 0, 0, 0] == 255, "measuring sees the image as it is"


def test_a_missing_image_is_named(photos: Corpus) -> None:
    (photos.root / "b.png").unlink()
    with pytest.raises(ImageError, match=r"b\.png"):
        PixelImages(photos, to_tensor).batch(photos.images)


def test_whole_splits_come_in_order(tiny_corpus: Path) -> None:
    split = Corpus.open(tiny_corpus).split("test")
    source = FeatureImages(FeatureStore(tiny_corpus / "features" / "toy"))
    tokenized = TokenizedTexts(WordVocabulary.build([text.text for text in split.texts], min_count=1), split.texts)
    assert sum(len(batch) for batch in image_batches(source, split.images, 4)) == len(split.images)
    lengths = torch.cat([batch.lengths for batch in text_batches(tokenized, 5)])
    assert lengths.tolist() == [len(text.text.split()) + 2 for text in split.texts]


def test_lengths_are_multiples_up_to_the_longest_text() -> None:
    texts = [Text(str(words), "g", " ".join(["word"] * words)) for words in (1, 3, 5, 9)]
    tokenized = TokenizedTexts(WordVocabulary.build(["word"], min_count=1), texts)  # two marks around each
    tokenized.multiple = 4
    assert [tokenized.batch([row]).tokens.shape[1] for row in range(4)] == [4, 8, 8, 11]
    assert tokenized.batch([0, 1]).lengths.tolist() == [3, 5]


@pytest.mark.parametrize("workers", [0, 2])
def test_chances_belong_to_the_pair_whoever_loads_it(tiny_corpus: Path, workers: int) -> None:
    """Not to the place in a batch, the number of batches, workers or processes; each epoch has its own."""
    split = Corpus.open(tiny_corpus).split("train")
    images = FeatureImages(FeatureStore(tiny_corpus / "features" / "toy"))
    tokenized = TokenizedTexts(WordVocabulary.build([text.text for text in split.texts], min_count=1), split.texts)

    def drawn(pairs: list[np.ndarray], epoch: int = 0) -> dict[int, float]:
        batches = load_pairs(split, images, tokenized, pairs, seed=(3, 0, epoch), position_noise=True, workers=workers)
        found: dict[int, float] = {}
        for batch in batches:
            assert batch.texts.position_noise is not None
            found |= dict(zip(batch.text_rows.tolist(), batch.texts.position_noise.tolist(), strict=True))
        return found

    rows = np.array([[row, 2 * row + 1] for row in range(8)])
    whole = drawn([rows])
    assert drawn([rows[4:], rows[:4][::-1]]) == whole
    assert drawn([rows[:5]]) == {text: whole[text] for text in rows[:5, 1]}
    assert not set(drawn([rows], epoch=1).values()) & set(whole.values())
    assert all(0 <= chance < 1 for chance in whole.values())
    [plain] = load_pairs(split, images, tokenized, [rows], seed=(3, 0, 0))
    assert plain.texts.position_noise is None


def test_chances_are_uniform(tiny_corpus: Path) -> None:
    split = Corpus.open(tiny_corpus).split("train")
    images = FeatureImages(FeatureStore(tiny_corpus / "features" / "toy"))
    tokenized = TokenizedTexts(WordVocabulary.build([text.text for text in split.texts], min_count=1), split.texts)
    rows = np.array([[image, text] for image in range(12) for text in range(24)])
    found = []
    for epoch in range(12):
        [batch] = load_pairs(split, images, tokenized, [rows], seed=(0, 0, epoch), position_noise=True)
        assert batch.texts.position_noise is not None
        found.append(batch.texts.position_noise)
    counts = torch.histc(torch.cat(found), bins=12, min=0, max=1)
    assert ((counts - 288).square() / 288).sum() < 31.3  # chi-square, 11 degrees of freedom, 99.9 %


def test_offline_negatives_are_what_their_names_say(tiny_corpus: Path) -> None:
    """AOQ 3.2: t_off and i_off, the image that t_off belongs to and a text of i_off, each from its own rows."""
    split = Corpus.open(tiny_corpus).split("train")
    store = FeatureStore(tiny_corpus / "features" / "toy")
    tokenizer = WordVocabulary.build([text.text for text in split.texts], min_count=1)
    rows = OfflineRows(
        off_text=np.array([4, 7]),
        off_image=np.array([5, 1]),
        derived_image=np.array([2, 3]),
        derived_text=np.array([11, 2]),
        text_rank=np.zeros(2, np.int64),
        image_rank=np.zeros(2, np.int64),
        corresponding=np.zeros(2, bool),
    )
    seen: dict[tuple[int, ...], list[str]] = {}

    class Seeded(FeatureImages):
        """Notes which random numbers each image is changed with."""

        def batch(self, images: Sequence[Image], seeds: Sequence[Sequence[int]] | None = None) -> ImageBatch:
            assert seeds is not None
            for image, seed in zip(images, seeds, strict=True):
                seen.setdefault(tuple(seed), []).append(image.id)
            return super().batch(images)

    tokenized = TokenizedTexts(tokenizer, split.texts)
    pairs = [np.array([[0, 0], [8, 17]])]
    [batch] = load_pairs(split, Seeded(store), tokenized, pairs, seed=(9,), offline=lambda _: rows)
    assert batch.offline is not None
    for given, wanted in (
        (batch.offline.images, rows.off_image),
        (batch.offline.derived_images, rows.derived_image),
        (batch.images, [0, 8]),
    ):
        assert torch.equal(given.fragments, store.batch([split.images[row].id for row in wanted]).fragments)
    for texts, text_rows in ((batch.offline.texts, rows.off_text), (batch.offline.derived_texts, rows.derived_text)):
        found = [ids[:n].tolist() for ids, n in zip(texts.tokens, texts.lengths, strict=True)]
        assert found == [tokenizer.ids(split.texts[row].text) for row in text_rows]
    # An image is changed as the pair that it is in: (seed, image row, text row).
    named = {(9, 0, 0): 0, (9, 8, 17): 8, (9, 5, 11): 5, (9, 1, 2): 1, (9, 2, 4): 2, (9, 3, 7): 3}
    assert seen == {seed: [split.images[row].id] for seed, row in named.items()}


def test_a_pool_of_texts_beside_the_batch(tiny_corpus: Path) -> None:
    split = Corpus.open(tiny_corpus).split("train")
    images = FeatureImages(FeatureStore(tiny_corpus / "features" / "toy"))
    tokenizer = WordVocabulary.build([text.text for text in split.texts], min_count=1)
    pairs = [np.array([[0, 0], [1, 2]])]
    pool = np.array([5, 3, 9])
    [batch] = load_pairs(
        split,
        images,
        TokenizedTexts(tokenizer, split.texts),
        pairs,
        seed=(0, 0, 0),
        position_noise=True,
        pool=lambda _: pool,
    )
    assert batch.pool is not None
    assert batch.pool.groups.tolist() == split.text_groups[pool].tolist()
    for row, text in enumerate(pool):
        ids = batch.pool.texts.tokens[row, : batch.pool.texts.lengths[row]].tolist()
        assert ids == tokenizer.ids(split.texts[text].text)
    assert batch.pool.texts.position_noise is not None
    assert batch.to("meta").pool.groups.device.type == "meta"  # type: ignore[union-attr]


def test_order_is_kept_however_long_each_takes() -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return -number

    found = list(batches_ahead(list(range(10)), work, batch_size=3, workers=4))
    assert [list(items) for items, _ in found] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [number for _, done in found for number in done] == [-number for number in range(10)]


def test_only_a_few_batches_are_ahead() -> None:
    started: list[int] = []
    batches = batches_ahead(list(range(100)), started.append, batch_size=2, workers=2)
    next(batches)
    time.sleep(0.05)
    assert len(started) <= 2 * (BATCHES_AHEAD + 1)
    batches.close()  # type: ignore[attr-defined]


def test_an_error_comes_out_and_the_threads_end() -> None:
    def work(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        list(batches_ahead([1, 0, 2], work, batch_size=1, workers=1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
