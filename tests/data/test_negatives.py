from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.negatives import NegativeLists, OfflineRows, draw_offline
from quintet.errors import CorpusError, QuintetError
from quintet.files import read_json, write_json


def make_split(groups: int = 3, name: str = "train") -> Split:
    names = [str(group) for group in range(groups)]
    texts = [Text(f"t{group}{k}", group, "words") for group in names for k in range(2)]
    return Corpus("small", [Image(f"i{group}", group) for group in names], texts, {name: names}).split(name)


def make_lists(split: Split) -> NegativeLists:
    texts = np.array([[2, 4, -1], [0, 5, 1], [3, -1, -1]])
    images = np.array([[1, 2], [2, 1], [0, 2], [0, -1], [1, 0], [-1, -1]])
    manifest = {"split": split.name, "split_checksum": split.checksum, "matcher": {"name": "m", "weights": "abc"}}
    scores = [np.where(rows >= 0, -rows / 10, -np.inf) for rows in (texts, images)]
    return NegativeLists(texts, scores[0], images, scores[1], manifest)


@pytest.mark.parametrize("mmap", [True, False])
def test_saved_lists_come_back(tmp_path: Path, mmap: bool) -> None:
    lists = make_lists(make_split())
    lists.save(tmp_path / "lists")
    found = NegativeLists.open(tmp_path / "lists", mmap=mmap)
    for name, dtype in (
        ("texts", np.int32),
        ("text_scores", np.float32),
        ("images", np.int32),
        ("image_scores", np.float32),
    ):
        array = getattr(found, name)
        assert array.dtype == dtype
        assert np.array_equal(array, getattr(lists, name))
        assert np.array_equal(np.load(tmp_path / "lists" / f"{name}.npy"), array)
    assert found.text_counts.tolist() == [2, 3, 1]
    assert found.image_counts.tolist() == [2, 2, 2, 1, 2, 0]
    assert found.manifest["matcher"] == {"name": "m", "weights": "abc"}
    assert found.manifest["format"] == "quintet-negatives"
    found.check(make_split())
    found.check(make_split(), weights="abc")


def test_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    lists = make_lists(make_split())
    with pytest.raises(CorpusError, match=r"3 images .*6 texts"):
        lists.check(make_split(groups=4))
    renamed = make_split()
    renamed.texts[0] = Text("other", renamed.texts[0].group, "words")
    with pytest.raises(CorpusError, match="checksum"):
        lists.check(renamed)
    with pytest.raises(CorpusError, match="weights abc, not xyz"):
        lists.check(make_split(), weights="xyz")
    wrong = NegativeLists(lists.texts + 4, lists.text_scores, lists.images, lists.image_scores, lists.manifest)
    with pytest.raises(CorpusError, match="do not exist"):
        wrong.check(make_split())


def test_unfinished_damaged_and_newer_lists_are_refused(tmp_path: Path) -> None:
    lists = make_lists(make_split())
    lists.save(tmp_path)
    manifest = read_json(tmp_path / "manifest.json")
    write_json(tmp_path / "manifest.json", manifest | {"version": 99})
    with pytest.raises(CorpusError, match="99"):
        NegativeLists.open(tmp_path)
    write_json(tmp_path / "manifest.json", manifest)
    np.save(tmp_path / "texts.npy", lists.texts[:2])
    with pytest.raises(CorpusError, match=r"texts\.npy"):
        NegativeLists.open(tmp_path)
    np.save(tmp_path / "texts.npy", lists.texts[::-1])
    with pytest.raises(QuintetError, match=r"texts\.npy is damaged"):
        NegativeLists.open(tmp_path)
    old = {key: manifest[key] for key in manifest if key != "checksums"}  # from before there were checksums
    write_json(tmp_path / "manifest.json", old)
    (tmp_path / "texts.npy").write_bytes(b"nothing")
    with pytest.raises(CorpusError, match="not a complete"):
        NegativeLists.open(tmp_path)
    np.save(tmp_path / "texts.npy", lists.texts)
    assert np.array_equal(NegativeLists.open(tmp_path).texts, lists.texts)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(CorpusError, match="quintet mine"):
        NegativeLists.open(tmp_path)


def test_saving_again_replaces_the_manifest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = make_lists(make_split())
    lists.save(tmp_path)

    def full_disk(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(np, "save", full_disk)
    with pytest.raises(Exception, match="no space"):
        lists.save(tmp_path)
    with pytest.raises(CorpusError, match="no finished negatives"):
        NegativeLists.open(tmp_path)
    assert NegativeLists.find(tmp_path) is None
    monkeypatch.undo()
    lists.save(tmp_path)
    assert np.array_equal(NegativeLists.open(tmp_path).texts, lists.texts)


@pytest.mark.parametrize("name", ["manifest.json", "texts.npy", "images.npy"])
def test_saving_never_replaces_files_of_someone_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CorpusError, match="in the way"):
        make_lists(make_split()).save(tmp_path)
    with pytest.raises(CorpusError, match="in the way"):
        NegativeLists.find(tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"{}")]


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="alike"):
        NegativeLists(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros((1, 1)), np.zeros((1, 1)))


def lists_of(texts: np.ndarray, images: np.ndarray) -> NegativeLists:
    return NegativeLists(texts, np.zeros(texts.shape), images, np.zeros(images.shape))


def make_split_draws(image_groups: list[int], text_groups: list[int], own: bool = False) -> Split:
    """`own`: each text names the first image of its group as the one it was written for."""
    first = {group: f"i{row}" for row, group in reversed(list(enumerate(image_groups)))}
    images = [Image(f"i{row}", str(group)) for row, group in enumerate(image_groups)]
    texts = [
        Text(f"t{row}", str(group), "a text", first[group] if own else None) for row, group in enumerate(text_groups)
    ]
    groups = [str(group) for group in dict.fromkeys(image_groups)]
    return Corpus("small", images, texts, {"train": groups}).split("train")


def make_lists_draws(split: Split, h_t: int, h_i: int, seed: int = 0) -> NegativeLists:
    """Every wrong candidate in random order, cut to h, -1 behind the last."""
    rng = np.random.default_rng(seed)

    def table(own: np.ndarray, other: np.ndarray, h: int) -> np.ndarray:
        rows = np.full((len(own), h), -1, np.int32)
        for row, group in enumerate(own):
            wrong = rng.permutation(np.flatnonzero(other != group))[:h]
            rows[row, : len(wrong)] = wrong
        return rows

    return lists_of(
        table(split.image_groups, split.text_groups, h_t), table(split.text_groups, split.image_groups, h_i)
    )


def all_pairs(split: Split, repeat: int = 1) -> np.ndarray:
    rows = [(images[0], text) for text, images in enumerate(split.images_of_text)]
    return np.array(rows * repeat)


@st.composite
def corpora(draw: st.DrawFn) -> Split:
    groups = draw(st.integers(2, 6))
    images = [group for group in range(groups) for _ in range(draw(st.integers(1, 2)))]
    texts = [group for group in range(groups) for _ in range(draw(st.integers(1, 7)))]
    return make_split_draws(images, texts, draw(st.booleans()))


@settings(max_examples=60, deadline=None)
@given(
    split=corpora(),
    h=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    distribution=st.sampled_from(["uniform", "normal"]),
    coupled=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_draw_is_a_candidate_and_the_derived_pair_belongs_to_it(
    split: Split, h: tuple[int, int], distribution: str, coupled: bool, seed: int
) -> None:
    lists = make_lists_draws(split, *h, seed=seed)
    pairs = all_pairs(split)
    rows = draw_offline(
        lists,
        split,
        pairs,
        np.random.default_rng(seed),
        top_texts=h[0],
        top_images=h[1],
        distribution=distribution,  # type: ignore[arg-type]
        coupled=coupled,
    )
    assert len(rows) == len(pairs)
    for k, (image, text) in enumerate(pairs):
        texts, images = (table[table >= 0] for table in (lists.texts[image], lists.images[text]))
        assert rows.off_text[k] == texts[rows.text_rank[k]]
        assert rows.off_image[k] == images[rows.image_rank[k]]
        assert rows.derived_image[k] in split.images_of_text[rows.off_text[k]]
        assert split.text_groups[rows.derived_text[k]] == split.image_groups[rows.off_image[k]]
        own = split.texts_of_image[rows.off_image[k]]
        assert not len(own) or rows.derived_text[k] in own
        same = split.text_groups[rows.off_text[k]] == split.image_groups[rows.off_image[k]]
        assert same == rows.corresponding[k]
        possible = {(split.text_groups[t], split.image_groups[i]) for t in texts for i in images}
        if not coupled and any(a != b for a, b in possible):
            assert not same
        if coupled:
            assert rows.image_rank[k] == rows.text_rank[k] * len(images) // len(texts)


def one_anchor(h_t: int, h_i: int, n: int) -> tuple[Split, NegativeLists, np.ndarray]:
    """n pairs with the same long lists, in which nothing corresponds: texts of low groups, images of high ones."""
    total = h_t + h_i + 1
    split = make_split_draws(list(range(total)), list(range(total)))
    texts = np.tile(np.arange(1, h_t + 1, dtype=np.int32), (total, 1))
    images = np.tile(np.arange(h_t + 1, total, dtype=np.int32), (total, 1))
    return split, lists_of(texts, images), np.zeros((n, 2), np.int64)


def chi_square(ranks: np.ndarray, weights: np.ndarray) -> float:
    """How far the counts are from the expected ones, in standard deviations of the statistic."""
    expected = weights / weights.sum() * len(ranks)
    statistic = ((np.bincount(ranks, minlength=len(weights)) - expected) ** 2 / expected).sum()
    degrees = len(weights) - 1
    return float((statistic - degrees) / np.sqrt(2 * degrees))


def test_uniform_over_the_first_h_and_independent() -> None:
    split, lists, pairs = one_anchor(40, 20, 60_000)
    rows = draw_offline(lists, split, pairs, np.random.default_rng(0), top_texts=30, top_images=6)
    assert rows.text_rank.max() == 29
    assert rows.image_rank.max() == 5
    assert chi_square(rows.text_rank, np.ones(30)) < 4
    assert chi_square(rows.image_rank, np.ones(6)) < 4
    assert chi_square(rows.text_rank * 6 + rows.image_rank, np.ones(180)) < 4  # jointly: no coupling


def test_normal_draws_the_top_less_often() -> None:
    split, lists, pairs = one_anchor(40, 20, 60_000)
    rng = np.random.default_rng(1)
    rows = draw_offline(lists, split, pairs, rng, top_texts=30, top_images=6, distribution="normal")
    x = (np.arange(30) + 0.5) / 30
    assert chi_square(rows.text_rank, np.exp(-0.5 * ((x - 0.5) / 0.25) ** 2)) < 4
    # The share of the first rank under the stated defaults: "about a quarter" of the uniform share in long lists.
    first = draw_offline(lists, split, pairs, rng, top_texts=40, top_images=6, distribution="normal").text_rank == 0
    assert 0.2 < first.mean() * 40 < 0.3
    shifted = draw_offline(
        lists, split, pairs, rng, top_texts=30, top_images=6, distribution="normal", mean=0.8, std=0.001
    )
    assert set(shifted.text_rank) <= {23, 24}
    late = draw_offline(lists, split, pairs, rng, top_texts=30, top_images=6, distribution="normal", mean=0.9)
    assert chi_square(late.text_rank, np.exp(-0.5 * ((x - 0.9) / 0.25) ** 2)) < 4, "not heaped at the end"
    with pytest.raises(ValueError, match="fractions"):
        draw_offline(lists, split, pairs, rng, top_texts=30, top_images=6, std=0.0)


def test_coupled_ranks_are_the_released_ones() -> None:
    split, lists, pairs = one_anchor(300, 60, 500)
    rows = draw_offline(lists, split, pairs, np.random.default_rng(0), coupled=True)
    np.testing.assert_array_equal(rows.image_rank, rows.text_rank // 5)
    assert rows.text_rank.max() > 250


def test_redrawing_keeps_the_distribution_of_what_is_allowed() -> None:
    """Two texts and two images of the same two groups: only the two crossed combinations are allowed, equally often."""
    split = make_split_draws([0, 1, 2], [0, 1, 2])
    lists = lists_of(np.tile(np.array([1, 2], np.int32), (3, 1)), np.tile(np.array([1, 2], np.int32), (3, 1)))
    pairs = np.zeros((20_000, 2), np.int64)
    rows = draw_offline(lists, split, pairs, np.random.default_rng(3), top_texts=2, top_images=2)
    assert not rows.corresponding.any()
    assert chi_square(rows.text_rank, np.ones(2)) < 4
    released = draw_offline(lists, split, pairs, np.random.default_rng(3), top_texts=2, top_images=2, coupled=True)
    assert released.corresponding.all()


def test_the_last_resort_draws_among_rare_combinations() -> None:
    """30 x 30 candidates of one group but for one text: quick redraws mostly fail, the draw must not."""
    split = make_split_draws([0, 1, 2], [0] + [1] * 30 + [2])
    texts = np.tile(np.array([*range(1, 31), 31], np.int32), (3, 1))
    images = np.ones((32, 1), np.int32)
    pairs = np.zeros((500, 2), np.int64)
    rows = draw_offline(lists_of(texts, images), split, pairs, np.random.default_rng(0), top_texts=31, top_images=1)
    assert set(rows.off_text) == {31}
    assert not rows.corresponding.any()


def test_two_groups_leave_only_corresponding_pairs_and_say_so() -> None:
    split = make_split_draws([0, 1], [0, 1])
    rows = draw_offline(make_lists_draws(split, 5, 5), split, all_pairs(split), np.random.default_rng(0))
    assert rows.corresponding.tolist() == [True, True]


def test_the_same_seed_draws_the_same_and_a_share_is_a_slice() -> None:
    split = make_split_draws(list(range(9)), [group for group in range(9) for _ in range(3)])
    lists, pairs = make_lists_draws(split, 20, 8), all_pairs(split)
    first, second, other = (
        draw_offline(lists, split, pairs, np.random.default_rng(seed), top_texts=20) for seed in (7, 7, 8)
    )
    for field in fields(OfflineRows):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(second, field.name))
        np.testing.assert_array_equal(getattr(first.take(slice(3, 8)), field.name), getattr(first, field.name)[3:8])
    assert (first.off_text != other.off_text).any()


def test_fewer_candidates_than_asked_for_are_all_drawn() -> None:
    split = make_split_draws([0, 1, 2], [0, 0, 1, 2])
    rows = draw_offline(make_lists_draws(split, 10, 10), split, np.zeros((300, 2), np.int64), np.random.default_rng(0))
    assert set(rows.off_text) == {2, 3}
    assert set(rows.off_image) == {1, 2}


def test_what_cannot_be_drawn_from_is_refused() -> None:
    split = make_split_draws([0, 1, 2], [0, 1, 2])
    lists, pairs, rng = make_lists_draws(split, 2, 2), all_pairs(split), np.random.default_rng(0)
    with pytest.raises(CorpusError, match="another corpus"):
        draw_offline(lists_of(lists.texts[:2], lists.images), split, pairs, rng)
    with pytest.raises(CorpusError, match="mine longer lists"):
        draw_offline(lists_of(lists.texts[:, :1], lists.images), split, pairs, rng)
    empty = lists.images.copy()
    empty[1] = -1
    with pytest.raises(CorpusError, match="'t1' has no negative"):
        draw_offline(lists_of(lists.texts, empty), split, pairs, rng)
    with pytest.raises(ValueError, match="1 or more"):
        draw_offline(lists, split, pairs, rng, top_texts=0)
