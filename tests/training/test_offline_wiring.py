"""From mined lists to the losses: a batch has negatives of its own anchors, drawn as the recipe says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.data.batches import PairBatch
from quintet.data.corpus import Corpus, Split
from quintet.data.feature_store import FeatureStore
from quintet.data.negatives import NegativeLists, draw_offline
from quintet.data.tokenizers import load_tokenizer
from quintet.training import loop
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe

NEGATIVES = {"top_texts": 8, "top_images": 5, "distribution": "normal", "mean": 0.9, "std": 0.05, "coupled": True}


@pytest.fixture
def trained(
    tiny_recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[PairBatch], list[dict[str, Any]]]:
    """A run in two rounds, the batches of the second that reached the losses, and how their negatives were drawn."""
    tiny_recipe["stages"][0]["epochs"] = 1
    second = copy.deepcopy(tiny_recipe["stages"][0]) | {
        "name": "offline",
        "epochs": 2,
        "batches": {"size": 5},
        "loss": {"quintuplet": {}},
        "negatives": {"from": "online"} | NEGATIVES,
    }
    tiny_recipe["stages"].append(second)
    batches: list[PairBatch] = []
    draws: list[dict[str, Any]] = []

    class Seen(loop.Step):
        def __init__(self, matcher: Any, batch: PairBatch, *arguments: Any) -> None:
            super().__init__(matcher, batch, *arguments)
            if batch.offline is not None:
                batches.append(batch)

    def drawn(lists: Any, split: Any, pairs: np.ndarray, rng: Any, **settings: Any) -> Any:
        draws.append({"pairs": pairs, "settings": settings, "random": rng.bit_generator.state["state"]["state"]})
        return draw_offline(lists, split, pairs, rng, **settings)

    monkeypatch.setattr(loop, "Step", Seen)
    monkeypatch.setattr(loop, "draw_offline", drawn)
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    return tmp_path / "run", batches, draws


def test_negatives_are_drawn_for_the_batchs_own_pairs_with_every_setting(
    trained: tuple[Path, list[PairBatch], list[dict[str, Any]]],
) -> None:
    _, batches, draws = trained
    assert len(batches) == len(draws) == 10  # 24 pairs in batches of 5, twice
    for batch, draw in zip(batches, draws, strict=True):
        assert draw["pairs"].T.tolist() == [batch.image_rows.tolist(), batch.text_rows.tolist()]
        assert draw["settings"] == NEGATIVES
    assert len({draw["random"] for draw in draws}) == 10, "every batch of every epoch draws anew"


def test_what_reaches_the_losses_stands_at_the_drawn_ranks_of_the_anchors_lists(
    trained: tuple[Path, list[PairBatch], list[dict[str, Any]]], tiny_corpus: Path
) -> None:
    run, batches, _ = trained
    train = Corpus.open(tiny_corpus).split("train")
    lists = NegativeLists.open(run / "stages" / "offline" / "negatives")
    texts_of, image_of = _texts(train, run), _images(train, tiny_corpus)
    ranks = []
    for batch in batches:
        offline = batch.offline
        assert offline is not None
        for pair, (image, text) in enumerate(zip(batch.image_rows.tolist(), batch.text_rows.tolist(), strict=True)):
            off_texts = texts_of[_ids(offline.texts, pair)]
            off_image = image_of[offline.images.fragments[pair].numpy().tobytes()]
            (found,) = {lists.texts[image].tolist().index(row) for row in off_texts if row in lists.texts[image, :8]}
            ranks.append(found)
            assert lists.images[text].tolist().index(off_image) == found * 5 // 8, "coupled"
            derived = image_of[offline.derived_images.fragments[pair].numpy().tobytes()]
            assert derived in {train.image_groups.tolist().index(train.text_groups[row]) for row in off_texts}
            group = train.image_groups[off_image]
            assert group in {train.text_groups[row] for row in texts_of[_ids(offline.derived_texts, pair)]}
    assert min(ranks) >= 5, "a normal distribution around nine tenths of the list"
    assert len(set(ranks)) > 1


def _ids(texts: Any, row: int) -> tuple[int, ...]:
    return tuple(texts.tokens[row, : texts.lengths[row]].tolist())


def _texts(split: Split, run: Path) -> dict[tuple[int, ...], list[int]]:
    """Token ids -> the rows of the texts with these words."""
    tokenizer, found = load_tokenizer(run / "tokenizer.json"), {}
    for row, text in enumerate(split.texts):
        found.setdefault(tuple(tokenizer.ids(text.text)), []).append(row)
    return found


def _images(split: Split, corpus: Path) -> dict[bytes, int]:
    fragments = FeatureStore(corpus / "features" / "toy").batch([image.id for image in split.images]).fragments
    assert fragments is not None
    return {fragments[row].numpy().tobytes(): row for row in range(len(split.images))}
