from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.augment import ChangedWords, FewerRegions, select_regions
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Corpus, Image
from quintet.data.features import FeatureStore, Part, write_manifest
from quintet.data.loading import FeatureImages, TokenizedTexts, load_pairs
from quintet.data.resident import ResidentFeatures
from quintet.data.vocabulary import END, PAD, START, UNKNOWN, WordVocabulary
from quintet.data.wordpiece import WordPiece
from quintet.errors import QuintetError

WORDS = [f"word{number}" for number in range(50)]
VOCABULARY = WordVocabulary(["<pad>", "<start>", "<end>", "<unk>", *WORDS])


class Numbered:
    """Images whose regions are numbered, from one; image i has the first lengths[i] of them."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def batch(self, images: Any, seeds: Any = None) -> ImageBatch:
        rows = [int(image.id) for image in images]
        longest = max(self.lengths[row] for row in rows)
        places = torch.arange(1, longest + 1)
        mask = torch.stack([places <= self.lengths[row] for row in rows])
        fragments = (places * mask).float()[..., None].expand(-1, -1, 2)
        return ImageBatch(fragments=fragments, mask=mask, boxes=fragments.repeat(1, 1, 2) / 100)


def pictures(n: int) -> list[Image]:
    return [Image(str(row), str(row)) for row in range(n)]


def kept_regions(batch: ImageBatch) -> list[list[int]]:
    assert batch.fragments is not None
    return [row[real].tolist() for row, real in zip(batch.fragments[..., 0].int(), batch.real(), strict=True)]


def test_a_fifth_of_the_regions_is_left_out() -> None:
    n = 400
    batch = FewerRegions(Numbered([36] * n), 0.2).batch(pictures(n), [(1, row) for row in range(n)])
    counts = np.bincount(np.concatenate(kept_regions(batch)), minlength=37)[1:]
    assert abs(counts.mean() / n - 0.8) < 0.01
    assert (abs(counts / n - 0.8) < 0.08).all(), "each place alike"


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    probability=st.sampled_from([0.1, 0.5, 0.95]),
    seed=st.integers(0, 1000),
)
def test_regions_keep_their_order_and_no_image_is_empty(lengths: list[int], probability: float, seed: int) -> None:
    source = FewerRegions(Numbered(lengths), probability)
    images, seeds = pictures(len(lengths)), [(seed, row) for row in range(len(lengths))]
    batch = source.batch(images, seeds)
    found = kept_regions(batch)
    for regions, length in zip(found, lengths, strict=True):
        assert regions == sorted(set(regions)) != []
        assert set(regions) <= set(range(1, length + 1))
    assert batch.fragments is not None
    assert batch.boxes is not None
    assert batch.fragments.shape[1] == max(lengths), "the same shape whatever is left out"
    assert torch.equal(batch.boxes[..., 0] * 100, batch.fragments[..., 0]), "boxes go with their regions"
    assert (batch.fragments[~batch.real()] == 0).all()
    for row, image in enumerate(images):
        assert kept_regions(source.batch([image], [seeds[row]])) == [found[row]], "whatever else is in the batch"


def test_measuring_sees_all_regions() -> None:
    assert kept_regions(FewerRegions(Numbered([5, 3]), 0.9).batch(pictures(2))) == [[1, 2, 3, 4, 5], [1, 2, 3]]


def test_gaps_are_closed() -> None:
    batch = ImageBatch(fragments=torch.tensor([[[1.0], [2.0], [3.0]]]))
    assert kept_regions(select_regions(batch, torch.tensor([[True, False, True]]))) == [[1, 3]]


def same_batch(found: ImageBatch, expected: ImageBatch) -> bool:
    return all(torch.equal(getattr(found, name), getattr(expected, name)) for name in ("fragments", "mask", "boxes"))


def test_features_in_device_memory_lose_the_same_regions(tmp_path: Path) -> None:
    """Draws belong to the pair, wherever its features wait; batch after batch, and whatever was asked for before."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "features.npy", rng.normal(size=(6, 9, 4)).astype(np.float16))
    np.save(tmp_path / "boxes.npy", rng.random(size=(6, 9, 4)).astype(np.float32))
    np.save(tmp_path / "lengths.npy", np.array([9, 3, 1, 9, 6, 2]))
    images, rows = pictures(6), np.stack([np.zeros(6, np.int64), np.arange(6)], axis=1)
    part = Part("features.npy", "boxes.npy", "lengths.npy")
    write_manifest(tmp_path, [image.id for image in images], rows, [part], fragments=9, dim=4, tower={})
    store = FeatureStore(tmp_path)
    resident = ResidentFeatures(store, store.ids, torch.device("cpu"))
    from_disk, from_memory = (FewerRegions(source, 0.4) for source in (FeatureImages(store), resident))
    for epoch in range(3):
        seeds = [(epoch, row) for row in range(6)]
        expected = from_disk.batch(images, seeds)
        assert same_batch(from_memory.batch(images, seeds), expected)
        assert same_batch(from_memory.batch(images, seeds), expected), "asked again"
    assert same_batch(resident.batch(images), store.batch(store.ids)), "what is kept in memory is whole"


def test_what_is_selected_stays_on_the_device_of_the_features() -> None:
    """The meta device has shapes and no values: reading any of them, or mixing devices, is an error there."""

    class Elsewhere:
        def batch(self, images: Any, seeds: Any = None) -> ImageBatch:
            shape = (len(images), 9)
            return ImageBatch(
                fragments=torch.empty(*shape, 5, device="meta"), boxes=torch.empty(*shape, 4, device="meta")
            )

    seeds = [(0, row) for row in range(3)]
    found = FewerRegions(Elsewhere(), 0.5).batch(pictures(3), seeds)
    expected = FewerRegions(Numbered([9] * 3), 0.5).batch(pictures(3), seeds)
    assert found.fragments is not None
    assert expected.fragments is not None
    assert found.fragments.shape[:2] == expected.fragments.shape[:2]
    assert {part.device.type for part in (found.fragments, found.mask, found.boxes) if part is not None} == {"meta"}


@pytest.mark.gpu
def test_a_gpu_loses_the_same_regions() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    class OnGpu(Numbered):
        def batch(self, images: Any, seeds: Any = None) -> ImageBatch:
            return super().batch(images, seeds).to("cuda")

    seeds, lengths = [(0, row) for row in range(4)], [9, 1, 5, 9]
    found, expected = (FewerRegions(make(lengths), 0.5).batch(pictures(4), seeds) for make in (OnGpu, Numbered))
    assert found.fragments is not None
    assert found.fragments.is_cuda
    assert same_batch(found.to("cpu"), expected)


def changes(probability: float, tokenizer: Any = VOCABULARY) -> ChangedWords:
    return ChangedWords(tokenizer.kinds(), probability)


def test_words_change_with_the_published_shares() -> None:
    ids = np.array([START, *range(4, 54), END])  # every word once
    change = changes(0.2)
    hidden = deleted = same = 0
    n = 600
    for seed in range(n):
        (found,) = change([ids], [(seed,)])
        assert (found[0], found[-1]) == (START, END)
        hidden += int((found == UNKNOWN).sum())
        deleted += len(ids) - len(found)
        same += len(set(found[1:-1]) & set(ids[1:-1]))
    total = 50 * n
    assert abs(hidden / total - 0.2 * 0.5) < 0.006
    assert abs(deleted / total - 0.2 * 0.4) < 0.006
    assert abs(same / total - 0.8) < 0.02, "a replaced word may be one of the others"


def test_hidden_replaced_and_left_out_words_are_told_apart() -> None:
    ids = np.full(4000, 4)
    (found,) = changes(0.5)([ids], [(0,)])
    replaced = ((found != 4) & (found != UNKNOWN)).sum()
    assert abs((found == UNKNOWN).sum() / 4000 - 0.25) < 0.03
    assert abs(replaced / 4000 - 0.05) < 0.015
    assert abs(len(found) / 4000 - 0.8) < 0.03
    assert not np.isin(found, [PAD, START, END]).any(), "what replaces a word is a word"


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.integers(3, 53), max_size=5), seed=st.integers(0, 10_000))
def test_no_text_loses_all_words(words: list[int], seed: int) -> None:
    ids = np.array([START, *words, END], dtype=np.int32)
    (found,) = changes(0.99)([ids], [(seed,)])
    assert (found[0], found[-1]) == (START, END)
    assert min(len(words), 1) <= len(found) - 2 <= len(words)
    assert found.dtype == ids.dtype
    bare = np.array(words or [3])
    (found,) = changes(0.99)([bare], [(seed,)])
    assert 1 <= len(found) <= len(bare), "without marks, too"


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), seed=st.integers(0, 10_000))
def test_a_text_changes_alike_in_any_company(lengths: list[int], seed: int) -> None:
    """Together, alone and in another order: also between texts without marks, and beside marks alone or nothing."""
    rng = np.random.default_rng(seed)
    sentences = [rng.integers(3, 54, length) for length in lengths]
    sentences = [np.array([START, *ids, END]) if row % 2 else ids for row, ids in enumerate(sentences)]
    sentences += [np.array([START, END]), np.array([], dtype=np.int64)]
    seeds = [(seed, row) for row in range(len(sentences))]
    together = changes(0.6)(sentences, seeds)
    alone = [changes(0.6)([ids], [key])[0] for ids, key in zip(sentences, seeds, strict=True)]
    reverse = changes(0.6)(sentences[::-1], seeds[::-1])[::-1]
    for found, expected, backwards in zip(together, alone, reverse, strict=True):
        assert found.tolist() == expected.tolist() == backwards.tolist()


def test_a_word_of_several_pieces_changes_as_one() -> None:
    pytest.importorskip("tokenizers")
    pieces = WordPiece.train(["dog good"], size=5)  # letters alone
    ids = np.array(pieces.ids("goo dog go"))
    tokens = pieces.tokens("goo dog go")
    word = np.cumsum([not token.startswith("##") for token in tokens])
    assert len(ids) > 5, "some words have several pieces"
    kinds = pieces.kinds()
    seen = set()
    for seed in range(300):
        change = ChangedWords(kinds, 0.5)
        change.ordinary = np.array([-1])  # a replacement that can be seen
        (found,) = change([ids], [(seed,)])
        if len(found) == len(ids):
            for number in set(word[1:-1]):
                of_word = found[word == number]
                outcome = {"hidden" if i == kinds.mask else "replaced" if i == -1 else "kept" for i in of_word}
                assert len(outcome) == 1
                seen |= outcome
        else:
            assert len(ids) - len(found) in (2, 3, 5, 6), "one or two of the words, whole"
    assert seen == {"hidden", "replaced", "kept"}


def test_what_hides_a_word() -> None:
    assert VOCABULARY.kinds().mask == UNKNOWN
    with_mask = WordVocabulary([*VOCABULARY.words, "<mask>"])
    assert with_mask.kinds().mask == 54
    assert with_mask.kinds().mark[54], "so that it replaces nothing by chance"
    pytest.importorskip("tokenizers")
    pieces = WordPiece.train(["a dog"], size=20)
    assert pieces.kinds().mask == pieces.mask
    pieces.mask = None
    with pytest.raises(QuintetError, match=r"no \[MASK\]"):
        pieces.kinds()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pair_is_changed_alike_whoever_loads_it(tiny_corpus: Path, workers: int) -> None:
    split = Corpus.open(tiny_corpus).split("train")
    tokenizer = WordVocabulary.build([text.text for text in split.texts], min_count=1)
    images = FewerRegions(FeatureImages(FeatureStore(tiny_corpus / "features" / "toy")), 0.4)
    sentences = TokenizedTexts(tokenizer, split.texts, change=changes(0.5, tokenizer))
    pairs = np.array([[0, 1], [3, 6], [2, 4], [1, 2]])

    def load(batches: list[np.ndarray], epoch: int, workers: int = 0) -> list[tuple[Any, ...]]:
        loaded = load_pairs(split, images, sentences, batches, seed=(0, 0, epoch), workers=workers)
        return [
            (batch.images.fragments[row][batch.images.real()[row]].tolist(), batch.texts.tokens[row][real].tolist())
            for batch in loaded
            for row, real in enumerate(batch.texts.real())
            if batch.images.fragments is not None
        ]

    together = load([pairs], 1)
    assert load([pairs[2:], pairs[:2]], 1, workers) == together[2:] + together[:2]
    assert load([pairs], 2) != together, "another epoch, other changes"
    plain = [tokenizer.ids(split.texts[row].text) for row in pairs[:, 1]]
    assert [ids for _, ids in together] != plain
    measured = sentences.batch(pairs[:, 1])
    assert [row[real].tolist() for row, real in zip(measured.tokens, measured.real(), strict=True)] == plain
