"""Mining against its plain twin, whatever the blocks, the precision and the interruptions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.codes import Codes
from quintet.data.negatives import NegativeLists
from quintet.errors import QuintetError
from quintet.mining.mine import mine_codes, summarise
from quintet.scores.cross_attention import scan_scores

TILE = (4, 8)
LEAST = 64 * TILE[0] * TILE[1]  # working memory for one tile


def same(one: NegativeLists, other: NegativeLists) -> bool:
    names = ("texts", "text_scores", "images", "image_scores")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 14),
    seed=st.integers(0, 10_000),
    tops=st.tuples(st.integers(1, 40), st.integers(1, 30)),
    memory=st.sampled_from([LEAST, 3 * LEAST, 20 * LEAST, 2**24]),
    sentences=st.sampled_from([0, 1, 5]),
    duplicates=st.booleans(),
    margin=st.sampled_from([None, 0.0, 1.0, -2.0]),
)
def test_lists_are_those_of_sorting_everything(
    case: Any, plain: Any, new_dots: Any, groups: int, seed: int, tops: tuple[int, int], memory: int, sentences: int,
    duplicates: bool, margin: float | None,
) -> None:  # fmt: skip
    """1 to 7 texts and 1 to 3 images a group, ties everywhere, often fewer candidates than places."""
    it = case(groups, seed, sentences=sentences)
    options: dict[str, Any] = {"exclude_duplicates": duplicates, "false_negative_margin": margin}
    options |= {"top_texts": tops[0], "top_images": tops[1]}
    found = mine_codes(new_dots(), it.images, it.texts, it.split, memory=memory, tile=TILE, **options)
    texts, images, above = plain(it.scores.tolist(), it.split, **options)
    assert np.array_equal(found.texts, texts)
    assert np.array_equal(found.images, images)
    for rows, values, matrix in ((texts, found.text_scores, it.scores), (images, found.image_scores, it.scores.T)):
        expected = np.where(rows >= 0, np.take_along_axis(matrix, np.maximum(rows, 0), axis=1), -np.inf)
        assert np.array_equal(values, expected)
    if margin is not None:
        assert found.manifest["excluded"]["texts_above_false_negative_threshold"] == above["texts"]
        assert found.manifest["excluded"]["images_above_false_negative_threshold"] == above["images"]
    same_group = (it.split.image_groups[:, None] == it.split.text_groups).sum()
    assert found.manifest["excluded"]["positive_pairs"] == same_group


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("dim", "spread", "options"),
    [
        (16, 8, {}),
        (16, 8, {"exclude_duplicates": True, "false_negative_margin": 0.0}),
        (16, 8, {"false_negative_margin": -100.0}),
        (3, 1, {}),  # a handful of scores: everything ties
    ],
)
def test_half_precision_gives_the_same_lists(
    case: Any, plain: Any, dots: Any, precision: Any, dim: int, spread: int, options: dict[str, Any]
) -> None:
    it = case(150, 1, dim=dim, spread=spread, sentences=150)
    found = mine_codes(
        dots, it.images, it.texts, it.split,
        top_texts=6, top_images=4, precision=precision, memory=2**21, tile=TILE, **options,
    )  # fmt: skip
    texts, images, _ = plain(it.scores.tolist(), it.split, 6, 4, **options)
    assert found.manifest["computed"]["precision"] == precision
    assert np.array_equal(found.texts, texts)
    assert np.array_equal(found.images, images)


def real_case(case: Any, groups: int = 300, dim: int = 24, seed: int = 3) -> Any:
    """As `case`, but with unit vectors: scores are what rounding makes of them."""
    it = case(groups, seed, most_images=1)
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(groups, dim, generator=generator)

    def around(rows: np.ndarray) -> Codes:
        noise = torch.randn(len(rows), dim, generator=generator)
        return Codes(embedding=torch.nn.functional.normalize(centres[torch.from_numpy(rows)] + noise))

    return type(it)(it.split, around(it.split.image_groups), around(it.split.text_groups))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_decides_on_float32_scores(case: Any, dots: Any, precision: Any) -> None:
    it = real_case(case)
    options: dict[str, Any] = {"top_texts": 20, "top_images": 10, "tile": TILE}
    exact = mine_codes(dots, it.images, it.texts, it.split, precision="float32", **options)
    half = mine_codes(dots, it.images, it.texts, it.split, precision=precision, **options)
    assert half.manifest["computed"]["precision"] == precision
    for rows, other, scores, values in (
        (exact.texts, half.texts, exact.text_scores, half.text_scores),
        (exact.images, half.images, exact.image_scores, half.image_scores),
    ):
        np.testing.assert_allclose(values, scores, rtol=0, atol=3e-7)  # float32 noise: bfloat16 is 30,000 times coarser
        assert (rows == other).mean() > 0.999
        assert (np.diff(values, axis=1) <= 0).all()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_memory_changes_nothing(case: Any, dots: Any, precision: Any) -> None:
    it = real_case(case, groups=160)
    options: dict[str, Any] = {"top_texts": 20, "top_images": 10, "precision": precision, "tile": TILE}
    whole = mine_codes(dots, it.images, it.texts, it.split, memory=2**26, **options)
    for memory in (2**15, 2**19):
        assert same(whole, mine_codes(dots, it.images, it.texts, it.split, memory=memory, **options))


def test_codes_that_do_not_fit_the_memory_are_streamed(case: Any, dots: Any) -> None:
    it = real_case(case, groups=400, dim=256)
    options: dict[str, Any] = {"top_texts": 20, "top_images": 10, "tile": TILE, "precision": "float16"}
    whole = mine_codes(dots, it.images, it.texts, it.split, memory=2**26, **options)
    assert same(whole, mine_codes(dots, it.images, it.texts, it.split, memory=2**18, **options))


def test_a_cross_attention_matcher_is_mined_too(case: Any, plain: Any, best_fragments: Any) -> None:
    it = case(12, 5)
    rng = np.random.default_rng(0)
    fragments = [
        torch.from_numpy(rng.integers(-2, 3, (len(codes), length, 3)).astype(np.float32))
        for codes, length in ((it.images, 5), (it.texts, 4))
    ]
    mask = torch.arange(4) < torch.from_numpy(rng.integers(1, 5, len(it.texts)))[:, None]
    images, texts = Codes(fragments=fragments[0]), Codes(fragments=fragments[1], mask=mask)
    found = mine_codes(best_fragments, images, texts, it.split, top_texts=9, top_images=7, memory=2 * LEAST, tile=TILE)
    expected = plain(best_fragments.score(images, texts).tolist(), it.split, 9, 7)
    assert np.array_equal(found.texts, expected[0])
    assert np.array_equal(found.images, expected[1])
    with pytest.raises(QuintetError, match="fragments"):
        mine_codes(best_fragments, images, texts, it.split, precision="float16", tile=TILE)


def test_a_matcher_that_is_no_product_is_not_taken_for_one(case: Any, dots: Any) -> None:
    class Squared(type(dots)):  # type: ignore[misc]
        def score(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
            return super().score(image_codes, text_codes) ** 2

    it = case(10, 0)
    with pytest.raises(QuintetError, match="not the products"):
        mine_codes(Squared(), it.images, it.texts, it.split, precision="bfloat16", tile=TILE)


class Killed(Exception):  # noqa: N818
    """What stands for `kill -9`: nothing after it runs."""


def killed_after(dots: Any, calls: int) -> Any:
    class Fragile(type(dots)):  # type: ignore[misc]
        def score(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
            if self.calls == calls:
                raise Killed
            return super().score(image_codes, text_codes)

    return Fragile()


@pytest.mark.parametrize("margin", [None, 0.5])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.95])
def test_a_killed_mining_goes_on_where_it_was(
    case: Any, dots: Any, tmp_path: Path, share: float, margin: float | None
) -> None:
    it = case(16, 2)
    options: dict[str, Any] = {
        "top_texts": 12, "top_images": 9, "memory": 4 * LEAST, "tile": TILE, "false_negative_margin": margin,
    }  # fmt: skip
    whole = mine_codes(dots, it.images, it.texts, it.split, **options)
    everything = dots.calls
    stripe = -(-len(it.texts) // TILE[1])  # tiles of a stripe of one tile's height
    fragile = killed_after(dots, int(share * everything))
    with pytest.raises(Killed):
        mine_codes(fragile, it.images, it.texts, it.split, journal=tmp_path / "journal", **options)
    dots.calls = 0
    name = {"name": "Fragile", "weights": "w"}
    with pytest.raises(QuintetError, match="another mining"):
        mine_codes(dots, it.images, it.texts, it.split, journal=tmp_path / "journal", source=name, **options)
    patient = type(fragile)()
    patient.calls = -(10**9)
    again = mine_codes(patient, it.images, it.texts, it.split, journal=tmp_path / "journal", **options)
    assert same(again, whole)
    assert again.manifest["excluded"] == whole.manifest["excluded"]
    assert again.manifest["quantiles"] == whole.manifest["quantiles"]
    assert patient.calls + 10**9 <= everything - int(share * everything) + stripe + (share == 0.0) * everything
    done = type(fragile)()
    done.calls = -(10**9)
    assert same(mine_codes(done, it.images, it.texts, it.split, journal=tmp_path / "journal", **options), whole)
    assert done.calls == -(10**9), "a finished journal needs no score at all"


def test_a_killed_half_precision_mining_goes_on_with_other_blocks(case: Any, dots: Any, tmp_path: Path) -> None:
    it = real_case(case)
    options: dict[str, Any] = {"top_texts": 20, "top_images": 10, "tile": TILE, "precision": "float16"}
    whole = mine_codes(dots, it.images, it.texts, it.split, memory=2**16, **options)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise Killed

    with pytest.raises(Killed):
        mine_codes(dots, it.images, it.texts, it.split, memory=2**16, journal=tmp_path, progress=stop, **options)
    seen: list[tuple[int, int]] = []
    more = {"memory": 2**18, "journal": tmp_path, "progress": lambda *at: seen.append(at)}
    assert same(mine_codes(dots, it.images, it.texts, it.split, **more, **options), whole)
    assert seen[0][0] > 0
    assert seen[-1][0] == seen[-1][1] == len(it.images) * len(it.texts)


def test_the_journal_of_another_mining_is_refused(case: Any, dots: Any, tmp_path: Path) -> None:
    it = case(10, 0)
    mine_codes(dots, it.images, it.texts, it.split, top_texts=5, journal=tmp_path, tile=TILE)
    with pytest.raises(QuintetError, match="top_texts"):
        mine_codes(dots, it.images, it.texts, it.split, top_texts=6, journal=tmp_path, tile=TILE)
    other = case(10, 1)
    with pytest.raises(QuintetError, match="split"):
        mine_codes(dots, other.images, other.texts, other.split, top_texts=5, journal=tmp_path, tile=TILE)


def test_progress_counts_every_pair(case: Any, dots: Any) -> None:
    it = case(20, 4)
    seen: list[tuple[int, int]] = []
    mine_codes(dots, it.images, it.texts, it.split, memory=LEAST, tile=TILE, progress=lambda *at: seen.append(at))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == len(it.images) * len(it.texts)


def test_the_summary_tells_quantiles_and_short_lists(case: Any, dots: Any) -> None:
    it = case(30, 6)
    lists = mine_codes(dots, it.images, it.texts, it.split, top_texts=10, top_images=500, tile=TILE)
    found = lists.manifest["quantiles"]
    positive = it.scores[it.split.image_groups[:, None] == it.split.text_groups]
    assert (found["positives"][0], found["positives"][-1]) == (positive.min(), positive.max())
    assert found["texts"]["1"][-1] == lists.text_scores.max()
    assert "100" not in found["texts"]
    assert found["images"]["last"][0] == lists.image_scores[lists.image_scores > -np.inf].min()
    assert found["images"]["100"] is None or lists.image_counts.max() >= 100
    assert lists.manifest["lists"]["images"] == {"anchors": len(it.texts), "not_full": len(it.texts), "empty": 0}


def test_the_last_of_a_short_list_is_its_last_real_one() -> None:
    scores = np.array([[3.0, 2.0, 1.0], [5.0, 4.0, -np.inf], [-np.inf] * 3])
    found = summarise(np.array([9.0]), scores, scores)
    assert sorted({found["texts"]["last"][0], found["texts"]["last"][-1]}) == [1.0, 4.0]
    assert found["texts"]["1"][0] == 3.0
    assert found["positives"] == [9.0] * 7
    assert summarise(np.arange(101.0), scores, scores)["positives"] == [0, 5, 25, 50, 75, 95, 100]
    assert summarise(np.array([]), scores, scores)["positives"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_texts": 0}, "at least one"),
        ({"precision": "float8"}, "precision"),
        ({"memory": 100}, "working memory"),
        ({"false_negative_margin": float("nan")}, "margin"),
    ],
)
def test_nonsense_is_explained(case: Any, dots: Any, options: dict[str, Any], message: str) -> None:
    it = case(5, 0)
    with pytest.raises(QuintetError, match=message):
        mine_codes(dots, it.images, it.texts, it.split, tile=TILE, **options)
    with pytest.raises(QuintetError, match="encode the whole split"):
        mine_codes(dots, it.images[1:], it.texts, it.split)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_score_that_is_not_a_number_is_refused(case: Any, dots: Any, precision: Any) -> None:
    it = case(5, 0)
    broken = it.images.map(lambda tensor: torch.where(torch.arange(len(tensor))[:, None] == 2, torch.nan, tensor))
    with pytest.raises(QuintetError, match="NaN"):
        mine_codes(dots, broken, it.texts, it.split, precision=precision, tile=TILE)


class Scan:
    """SCAN's scores of random floats: products of other shapes round differently."""

    image_input = "fragments"

    def score(self, image_codes: Codes, text_codes: Codes) -> torch.Tensor:
        return scan_scores(image_codes, text_codes)


@settings(max_examples=15, deadline=None)
@given(groups=st.integers(3, 10), seed=st.integers(0, 10_000), data=st.data())
def test_near_ties_of_any_matcher_are_ordered_the_same_whatever_the_blocks(
    case: Any, new_dots: Any, groups: int, seed: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every code is one of three and a rounding error, so that nearly all scores are near-ties."""
    it, rng = case(groups, seed), torch.Generator().manual_seed(seed)
    kinds = torch.randn(3, 5, 24, generator=rng)
    noise = [torch.randn(len(rows), 5, 24, generator=rng) * 1e-7 for rows in (it.split.images, it.split.texts)]
    fragments = [kinds[torch.arange(len(part)) % 3] + part for part in noise]
    codes = [Codes(embedding=part[:, 0]) for part in fragments]
    matcher: Any = new_dots()
    if data.draw(st.booleans()):
        codes, matcher = [Codes(fragments=part) for part in fragments], Scan()

    def mined(**options: Any) -> NegativeLists:
        return mine_codes(matcher, *codes, it.split, tile=TILE, top_texts=6, top_images=4, **options)

    whole = mined()
    precision = data.draw(st.sampled_from(["float32", "auto"]))
    assert same(whole, mined(memory=data.draw(st.sampled_from([LEAST, 3 * LEAST, 20 * LEAST])), precision=precision))
    journal = tmp_path_factory.mktemp("journal") / "j"
    stop_after = data.draw(st.integers(1, 60))

    def stop(done: int, total: int) -> None:
        if done >= stop_after:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        mined(journal=journal, memory=LEAST, progress=stop)
    assert same(whole, mined(journal=journal, memory=data.draw(st.sampled_from([LEAST, 2**24]))))
