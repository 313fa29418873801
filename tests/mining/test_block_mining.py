"""Mining by blocks: the very lists of mining in one piece, whatever the blocks, the deaths and the interruptions."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quintet
from quintet.cluster import AT_ONCE, InProcess, Pool
from quintet.codes import Codes
from quintet.data.negatives import NegativeLists
from quintet.errors import QuintetError
from quintet.mining import approximate, block_mining
from quintet.mining.block_mining import BlockMining, BlockTask, Mined, MiningWorker
from quintet.mining.journal import Journal
from quintet.mining.mine import mine_codes

TILE = (4, 8)
NAMES = ("texts", "text_scores", "images", "image_scores")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_mining, "CHUNK", {"images": 5, "texts": 13})
    monkeypatch.setattr(block_mining, "BLOCK", {"cpu": (8, 24)})
    monkeypatch.setattr(block_mining, "best_tile", lambda *_: TILE)


def write_codes(folder: Path, images: Codes, texts: Codes) -> None:
    for side, codes in (("images", images), ("texts", texts)):
        size = block_mining.CHUNK[side]
        for start in range(0, len(codes), size):
            codes[start : start + size].save(folder / f"codes-{side}-{start:09d}.safetensors")


def by_blocks(folder: Path, case: Any, matcher: Any, make: Any = MiningWorker, **options: Any) -> Mined:
    options = {"exclude_duplicates": False, "false_negative_margin": None, **options}
    journal = Journal(folder, {})
    write_codes(folder, case.images, case.texts)
    precision = options.pop("precision", "auto")
    pool = Pool(InProcess(make, None, matcher, None, precision, 2**22, "cpu"))
    mining = BlockMining(
        pool, journal, case.split, options, memory=2**22, device="cpu", progress=lambda done, total: None
    )
    return mining.run()


def assert_same(found: Mined, expected: NegativeLists) -> None:
    arrays = (*found.of_images[:2], *found.of_texts[:2])
    for name, array in zip(NAMES, arrays, strict=True):
        assert np.array_equal(array, getattr(expected, name)), name


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        *product((1, 2), ({}, {"exclude_duplicates": True}, {"false_negative_margin": 0.0}, {"precision": "float16"})),
        (3, {"exclude_duplicates": True, "false_negative_margin": -2.0}),
    ],
)
def test_lists_are_those_of_mining_in_one_piece(
    case: Any, dots: Any, tmp_path: Path, seed: int, options: dict[str, Any]
) -> None:
    """Scores tie everywhere, positives lie in any block, and lists are longer and shorter than a block."""
    it = case(19, seed, sentences=6)
    tops = {"top_texts": 30, "top_images": 6}
    expected = mine_codes(dots, it.images, it.texts, it.split, tile=TILE, **tops, **options)
    found = by_blocks(tmp_path / "journal", it, dots, **tops, **options)
    assert_same(found, expected)
    excluded = expected.manifest["excluded"]
    if options.get("false_negative_margin") is not None:
        assert int(found.of_images[2].sum()) == excluded["texts_above_false_negative_threshold"]
        assert int(found.of_texts[2].sum()) == excluded["images_above_false_negative_threshold"]


def test_fragments_of_any_length_are_padded_as_in_one_piece(case: Any, best_fragments: Any, tmp_path: Path) -> None:
    it = case(16, 4)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 6, (len(it.texts),), generator=generator)
    mask = torch.arange(5) < lengths[:, None]
    words = torch.randn(len(it.texts), 5, 3, generator=generator) * mask[..., None]
    texts = Codes(fragments=words, mask=mask)
    images = Codes(fragments=torch.randn(len(it.images), 4, 3, generator=generator))
    fragments = type(it)(it.split, images, texts)
    expected = mine_codes(best_fragments, images, texts, it.split, top_texts=9, top_images=5, tile=TILE)
    assert_same(by_blocks(tmp_path, fragments, best_fragments, top_texts=9, top_images=5), expected)


class Killed(BaseException):
    pass


def test_a_kill_at_any_moment_costs_the_blocks_under_way(
    case: Any, dots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = case(12, 7)
    options: dict[str, Any] = {"top_texts": 7, "top_images": 4, "false_negative_margin": 0.0}
    expected = mine_codes(dots, it.images, it.texts, it.split, tile=TILE, **options)
    keep, work = Journal.keep, MiningWorker.work
    counts = {"writes": 0, "last": 0, "lists": 0}

    def fatal(self: Journal, name: str, arrays: dict[str, np.ndarray]) -> None:
        counts["writes"] += 1
        if counts["writes"] > counts["last"]:
            raise Killed
        keep(self, name, arrays)

    def counted(self: MiningWorker, task: Any) -> Any:
        counts["lists"] += isinstance(task, BlockTask) and task.pairs is None
        return work(self, task)

    monkeypatch.setattr(Journal, "keep", fatal)
    monkeypatch.setattr(MiningWorker, "work", counted)
    kills = 0
    while True:
        counts |= {"writes": 0, "last": 3}  # every try writes three files more
        try:
            found = by_blocks(tmp_path, it, dots, **options)
            break
        except Killed:
            kills += 1
    height, width = -(-len(it.images) // 8), -(-len(it.texts) // 24)
    assert kills > 3
    assert_same(found, expected)
    assert counts["lists"] <= height * width + AT_ONCE * kills


def test_no_more_codes_than_a_block_of_each_side_are_in_memory(
    case: Any, dots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, read, most = case(20, 3), block_mining.CodeStore.read, [0]

    def counted(self: Any, rows: np.ndarray) -> Codes:
        most[0] = max(most[0], len(rows))
        return read(self, rows)

    monkeypatch.setattr(block_mining.CodeStore, "read", counted)
    by_blocks(tmp_path, it, dots, top_texts=5, top_images=5)
    assert len(it.texts) > 60
    assert most[0] <= 24


def near(case: Any, groups: int, dim: int = 16) -> Any:
    """Unit vectors in clusters, as embeddings are."""
    it = case(groups, 3, most_images=1)
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(groups, dim, generator=generator)
    parts = [
        torch.nn.functional.normalize(
            centres[torch.from_numpy(rows)] + 0.7 * torch.randn(len(rows), dim, generator=generator)
        )
        for rows in (it.split.image_groups, it.split.text_groups)
    ]
    return type(it)(it.split, *(Codes(embedding=part) for part in parts))


def test_approximate_lists_hold_exact_scores_and_say_their_recall(
    case: Any, dots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_mining, "BLOCK", {"cpu": (200, 400)})
    monkeypatch.setattr(approximate, "EXACT_BELOW", 100)
    it = near(case, 200)
    tops: dict[str, Any] = {"top_texts": 10, "top_images": 5}
    exact = mine_codes(dots, it.images, it.texts, it.split, tile=TILE, **tops)
    found = by_blocks(tmp_path, it, dots, approximate=True, **tops)
    rows, scores = np.asarray(found.of_images[0]), np.asarray(found.of_images[1])
    products = (it.images.embedding.double() @ it.texts.embedding.double().T).float().numpy()
    held = rows >= 0
    anchors = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)
    assert np.array_equal(scores[held], products[anchors[held], rows[held]])
    assert (it.split.image_groups[anchors[held]] != it.split.text_groups[rows[held]]).all()
    shares = []
    for list_, whole in ((found.of_images[0], exact.texts), (found.of_texts[0], exact.images)):
        hits = [len(np.intersect1d(one[one >= 0], two)) for one, two in zip(whole, list_, strict=True)]
        shares.append(sum(hits) / (whole >= 0).sum())
    assert 0.3 < min(shares) < 1, "with so few cells an index misses some"
    told = found.facts["recall"]
    assert abs(told["texts"] - shares[0]) < 0.1
    assert abs(told["images"] - shares[1]) < 0.1


def test_approximate_mining_of_fragments_is_refused(case: Any, best_fragments: Any, tmp_path: Path) -> None:
    it = case(9, 1)
    fragments = [Codes(fragments=part.embedding[:, None]) for part in (it.images, it.texts)]  # (n, 1, d)
    with pytest.raises(QuintetError, match="scores fragments"):
        by_blocks(tmp_path, type(it)(it.split, *fragments), best_fragments, top_texts=3, top_images=3, approximate=True)


def test_the_front_door_mines_a_corpus_approximately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    corpus = quintet.import_corpus("scenes", "-", tmp_path / "corpus", train=6, dev=1, test=1, size=64)
    quintet.extract_features(corpus, "efficientnet-lite2+efficientnet-lite0", grid=1, device="cpu")
    tops: dict[str, Any] = {"top_texts": 9, "top_images": 3, "device": "cpu"}
    exact = quintet.mine("quintet-small", corpus, **tops)
    found = quintet.mine("quintet-small", corpus, out=tmp_path / "lists", approximate=True, **tops)
    assert np.array_equal(found.texts, exact.texts), "so few are all compared"
    opened = NegativeLists.open(tmp_path / "lists")
    assert opened.manifest["computed"]["recall"] == {"texts": 1.0, "images": 1.0}
    assert [path.name for path in tmp_path.glob(".*")] == []
    again = quintet.mine("quintet-small", corpus, out=tmp_path / "lists", **tops)
    assert "approximate" not in again.manifest["options"], "approximate lists do not pass for exact ones"
