"""Timing of the losses on one batch."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import quintet
from quintet.data.batches import ImageBatch, OfflineBatch, PairBatch, TextBatch
from quintet.data.corpus import Corpus
from quintet.losses.triplet import TripletObjective
from quintet.report.analysis import Subject, analyse
from quintet.report.analysis.loss_timing import any_negatives, paper_stages, time_losses
from quintet.training.recipe import load_recipe


def some_batch(n: int = 6) -> PairBatch:
    generator = torch.Generator().manual_seed(0)

    def images() -> ImageBatch:
        return ImageBatch(fragments=torch.randn(n, 3, 5, generator=generator))

    def texts() -> TextBatch:
        return TextBatch(torch.randint(1, 10, (n, 4), generator=generator), torch.full((n,), 4))

    rows = torch.arange(n)
    offline = OfflineBatch(texts(), images(), images(), texts())
    return PairBatch(images(), texts(), rows, rows, rows, rows, offline)


LOSSES = {"all": TripletObjective(negatives="all"), "hardest": TripletObjective()}


def test_one_row_a_loss_and_the_matcher_unchanged() -> None:
    matcher = quintet.create_model("vse++", vocabulary_size=10, image_dim=5, embed_dim=6, word_dim=4)
    before = copy.deepcopy(matcher.state_dict())
    rows = time_losses(matcher, some_batch(), LOSSES, repeats=2, warmup=1)
    assert [row["loss"] for row in rows] == ["all", "hardest"]
    assert rows[0]["relative"] == 1.0
    for row in rows:
        assert 0 < row["fastest"] <= row["seconds"]
        assert row["batch"] == 6
    for name, tensor in matcher.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.grad is None for parameter in matcher.parameters())


def test_no_step_is_no_time() -> None:
    matcher = quintet.create_model("vse++", vocabulary_size=10, image_dim=5, embed_dim=6, word_dim=4)
    with pytest.raises(ValueError, match="repeats"):
        time_losses(matcher, some_batch(), LOSSES, repeats=0)


def test_timing_of_the_four_losses(subjects: list[Subject], tmp_path: Path) -> None:
    found = analyse(subjects[:1], tmp_path, ["timing"])["timing"]["runs"]["a"]
    assert [row["loss"] for row in found] == ["online", "OffTri", "OffQuin", "AdapOffQuin"]
    assert all(row["seconds"] > 0 for row in found)


@pytest.mark.parametrize("name", ["vsrn-f30k", "aoq-vsrn-f30k", "aoq-scan-teacher-f30k"])
def test_the_rows_have_all_that_the_recipe_trains(name: str) -> None:
    recipe = load_recipe(name)
    stages = paper_stages(recipe)
    assert [stage.loss.get("quintuplet", {}).get("variant") for stage in stages.values()] == [
        *(None, "triplet", "quintuplet", "adaptive")
    ]
    assert "triplet" in stages["online"].loss
    for stage in stages.values():
        assert ("caption" in stage.loss) == ("vsrn" in name)


def test_negatives_have_the_shapes_of_mined_ones(tiny_corpus: Path) -> None:
    split = Corpus.open(tiny_corpus).split("train")
    rows = any_negatives(split, 40, np.random.default_rng(0))
    assert len(rows) == 40
    np.testing.assert_array_equal(split.image_groups[rows.derived_image], split.text_groups[rows.off_text])
    np.testing.assert_array_equal(split.text_groups[rows.derived_text], split.image_groups[rows.off_image])
