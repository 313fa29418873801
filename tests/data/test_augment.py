from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage
from scipy.stats import kstest, pearsonr

from quintet.backbones.preprocess import Preprocess
from quintet.data.augment import (
    ChangedWords,
    FewerRegions,
    pair_keys,
    pixel_augmentation,
    random_flip,
    random_view,
    resized_crop_box,
    select_regions,
    shifted_crop_box,
    squeezed_crop_box,
    uniform,
)
from quintet.data.batches import ImageBatch
from quintet.data.corpus import Corpus, Image
from quintet.data.feature_store import FeatureStore, Part, write_manifest
from quintet.data.loading import FeatureImages, TokenizedTexts, load_pairs
from quintet.data.resident import ResidentFeatures
from quintet.data.vocabulary import END, PAD, START, UNKNOWN, WordVocabulary
from quintet.data.wordpiece import WordPiece
from quintet.errors import QuintetError

sides = st.integers(1, 2000)


def noise(width: int = 60, height: int = 40) -> PILImage.Image:
    return PILImage.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@given(width=sides, height=sides, seed=st.integers(0, 100))
def test_resized_crops_lie_inside_and_have_the_area_and_aspect_asked_for(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = resized_crop_box(width, height, np.random.default_rng(seed), (0.2, 0.5), (0.8, 1.25))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert 0.8 <= (right - left) / (bottom - top) * (1 + 1e-9) <= 1.26
    if 0.5 <= width / height <= 2:  # a fitting box exists for every draw
        assert 0.19 <= (right - left) * (bottom - top) / (width * height) <= 0.51


def test_resized_crops_are_spread_over_the_range() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array([resized_crop_box(300, 300, rng, (0.1, 0.6)) for _ in range(2000)])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (wide * high / 300**2).mean() == pytest.approx(0.35, abs=0.02)
    assert np.log(wide / high).mean() == pytest.approx(0, abs=0.02)
    assert ((boxes[:, 0] + boxes[:, 2]) / 2).mean() == pytest.approx(150, abs=4)


@given(width=sides, height=sides, seed=st.integers(0, 100), margin=st.integers(0, 40))
def test_shifted_crops_have_the_size_asked_for(width: int, height: int, seed: int, margin: int) -> None:
    left, top, right, bottom = shifted_crop_box(width, height, np.random.default_rng(seed), (30, 20), 30 + margin)
    zoom = (30 + margin) / min(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert (right - left) * zoom == pytest.approx(20)
    assert (bottom - top) * zoom == pytest.approx(30)


def test_a_shifted_crop_must_fit() -> None:
    with pytest.raises(ValueError, match="smaller than the crop"):
        shifted_crop_box(100, 100, np.random.default_rng(0), (30, 20), 29)


def test_squeezed_crops_take_the_same_share_of_both_sides_anywhere() -> None:
    """224 of 256: seven eighths of a pedestrian's height, where `shift` would see a third of it."""
    boxes = np.array([squeezed_crop_box(100, 300, np.random.default_rng(seed)) for seed in range(400)])
    assert np.allclose(boxes[:, 2] - boxes[:, 0], 100 * 7 / 8)
    assert np.allclose(boxes[:, 3] - boxes[:, 1], 300 * 7 / 8)
    for side, room in ((0, 12.5), (1, 37.5)):
        assert boxes[:, side].min() >= 0
        assert boxes[:, side].max() <= room
        assert boxes[:, side].mean() == pytest.approx(room / 2, rel=0.1)
    with pytest.raises(ValueError, match="smaller than the crop"):
        squeezed_crop_box(10, 10, np.random.default_rng(0), side=200)


def test_flips_happen_as_often_as_asked() -> None:
    image, rng = noise(4, 4), np.random.default_rng(0)
    mirrored = np.asarray(image)[:, ::-1]
    flipped = [np.array_equal(np.asarray(random_flip(image, rng, 0.3)), mirrored) for _ in range(500)]
    assert np.mean(flipped) == pytest.approx(0.3, abs=0.06)
    assert not any(random_flip(image, rng, 0) is not image for _ in range(50))


@pytest.mark.parametrize("crop", ["none", "resized", "shift", "squeeze"])
def test_views_have_the_size_and_repeat_with_their_generator(crop: str) -> None:
    first, again, other = (
        np.asarray(random_view(noise(), np.random.default_rng(epoch), (24, 32), crop=crop, flip=0))  # type: ignore[arg-type]
        for epoch in (0, 0, 1)
    )
    assert first.shape == (24, 32, 3)
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (crop == "none")


def test_long_and_tiny_images() -> None:
    for width, height in ((30_000, 8), (8, 30_000), (1, 1)):
        for crop in ("none", "resized", "shift", "squeeze"):
            view = random_view(PILImage.new("L", (width, height)), np.random.default_rng(0), (24, 24), crop=crop)  # type: ignore[arg-type]
            assert (view.size, view.mode) == ((24, 24), "RGB")


def test_an_unknown_crop_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'none', 'resized', .*'squeeze'"):
        random_view(noise(), np.random.default_rng(0), (8, 8), crop="middle")  # type: ignore[arg-type]


def test_pixel_augmentation_ends_in_the_towers_tensor_and_can_be_pickled() -> None:
    preprocess = Preprocess((24, 24), short_side=28, mean=(1, 2, 3), std=(1, 1, 1), scale=1.0, channels="BGR")
    change = pickle.loads(pickle.dumps(pixel_augmentation(preprocess, crop="shift", flip=True)))
    found = change(noise(), np.random.default_rng(0))
    view = random_view(noise(), np.random.default_rng(0), (24, 24), crop="shift", flip=0.5, short_side=28)
    assert torch.equal(found, preprocess.normalise(view))
    still = pixel_augmentation(preprocess.squeezed(), crop="none", flip=False)
    assert torch.equal(still(noise(), np.random.default_rng(0)), preprocess.squeezed()(noise()))


SEEDS = [(0, 0, epoch, image, text) for epoch in range(3) for image in range(20) for text in range(40)]


def test_numbers_are_uniform_and_neighbours_independent() -> None:
    drawn = uniform(pair_keys(SEEDS)[:, None], np.arange(36))  # (2400, 36)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    assert kstest(drawn[:, 0], "uniform").pvalue > 1e-3, "the same position of many pairs"
    shifted = {"text": drawn[1:], "image": drawn[40:], "epoch": drawn[800:], "position": drawn[:, 1:]}
    for what, near in shifted.items():
        first = drawn[: near.shape[0], : near.shape[1]]
        assert abs(pearsonr(near.ravel(), first.ravel())[0]) < 0.02, what


def test_keys_differ() -> None:
    assert len(set(pair_keys(SEEDS).tolist())) == len(SEEDS)
    assert not set(pair_keys(SEEDS).tolist()) & set(pair_keys(SEEDS, stream=1).tolist())


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 10**6)), min_size=1, max_size=5))
def test_a_key_is_of_its_own_row(seeds: list[tuple[int, int]]) -> None:
    together = pair_keys(seeds).tolist()
    assert together == [int(pair_keys([seed])[0]) for seed in seeds]
    assert all(int(pair_keys([(b, a)])[0]) != key for (a, b), key in zip(seeds, together, strict=True) if a != b)


@pytest.mark.parametrize("bits", [0, 20, 52])
def test_every_bit_of_a_number_is_used(bits: int) -> None:
    drawn = (uniform(pair_keys(SEEDS), np.array(0)) * 2**53).astype(np.uint64)
    assert abs(((drawn >> np.uint64(bits)) & np.uint64(1)).mean() - 0.5) < 0.05


WORDS = [f"word{number}" for number in range(50)]
VOCABULARY = WordVocabulary(["<pad>", "<start>", "<end>", "<unk>", *WORDS])


class Numbered:
    """Images whose regions are numbered, from one; image i has the first lengths[i] of them."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def batch(self, images: Any, seeds: Any = None) -> ImageBatch:
        rows = [int(image.id) for image in images]
        longest = max(self.lengths[row] for row in rows)
        positions = torch.arange(1, longest + 1)
        mask = torch.stack([positions <= self.lengths[row] for row in rows])
        fragments = (positions * mask).float()[..., None].expand(-1, -1, 2)
        return ImageBatch(fragments=fragments, mask=mask, boxes=fragments.repeat(1, 1, 2) / 100)


def some_images(n: int) -> list[Image]:
    return [Image(str(row), str(row)) for row in range(n)]


def kept_regions(batch: ImageBatch) -> list[list[int]]:
    assert batch.fragments is not None
    return [row[real].tolist() for row, real in zip(batch.fragments[..., 0].int(), batch.real(), strict=True)]


def test_a_fifth_of_the_regions_is_left_out() -> None:
    n = 400
    batch = FewerRegions(Numbered([36] * n), 0.2).batch(some_images(n), [(1, row) for row in range(n)])
    counts = np.bincount(np.concatenate(kept_regions(batch)), minlength=37)[1:]
    assert abs(counts.mean() / n - 0.8) < 0.01
    assert (abs(counts / n - 0.8) < 0.08).all(), "every position alike"


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    probability=st.sampled_from([0.1, 0.5, 0.95]),
    seed=st.integers(0, 1000),
)
def test_regions_keep_their_order_and_no_image_is_empty(lengths: list[int], probability: float, seed: int) -> None:
    source = FewerRegions(Numbered(lengths), probability)
    images, seeds = some_images(len(lengths)), [(seed, row) for row in range(len(lengths))]
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
    assert kept_regions(FewerRegions(Numbered([5, 3]), 0.9).batch(some_images(2))) == [[1, 2, 3, 4, 5], [1, 2, 3]]


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
    images, rows = some_images(6), np.stack([np.zeros(6, np.int64), np.arange(6)], axis=1)
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
    found = FewerRegions(Elsewhere(), 0.5).batch(some_images(3), seeds)
    expected = FewerRegions(Numbered([9] * 3), 0.5).batch(some_images(3), seeds)
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
    found, expected = (FewerRegions(make(lengths), 0.5).batch(some_images(4), seeds) for make in (OnGpu, Numbered))
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


def test_hidden_replaced_and_left_out_words_differ() -> None:
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
    tokenized = [rng.integers(3, 54, length) for length in lengths]
    tokenized = [np.array([START, *ids, END]) if row % 2 else ids for row, ids in enumerate(tokenized)]
    tokenized += [np.array([START, END]), np.array([], dtype=np.int64)]
    seeds = [(seed, row) for row in range(len(tokenized))]
    together = changes(0.6)(tokenized, seeds)
    alone = [changes(0.6)([ids], [key])[0] for ids, key in zip(tokenized, seeds, strict=True)]
    reverse = changes(0.6)(tokenized[::-1], seeds[::-1])[::-1]
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
    assert with_mask.kinds().special[54], "so that it replaces nothing by chance"
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
    tokenized = TokenizedTexts(tokenizer, split.texts, change=changes(0.5, tokenizer))
    pairs = np.array([[0, 1], [3, 6], [2, 4], [1, 2]])

    def load(batches: list[np.ndarray], epoch: int, workers: int = 0) -> list[tuple[Any, ...]]:
        loaded = load_pairs(split, images, tokenized, batches, seed=(0, 0, epoch), workers=workers)
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
    measured = tokenized.batch(pairs[:, 1])
    assert [row[real].tolist() for row, real in zip(measured.tokens, measured.real(), strict=True)] == plain
