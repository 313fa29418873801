"""The grid of docs/evidence-design.md and what its rows are made with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.data.scenes.generate import make_scenes
from quintet.evaluation.metrics import metrics_of_ranks
from quintet.evaluation.ranks import count_ranks
from quintet.files import read_json
from quintet.training.recipe import parse_recipe


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_scenes(tmp_path_factory.mktemp("evidence") / "scenes", train=20, dev=4, test=6, size=32)


def test_every_row_is_a_recipe_and_comes_after_what_it_needs(script: Any) -> None:
    made: set[str] = set()
    for row in script("evidence_grid").rows():
        assert made.issuperset(row.needs)
        made.add(row.id)
        if row.recipe is not None:
            parse_recipe(row.recipe)


def test_compared_rows_differ_in_the_loss_alone(script: Any) -> None:
    rows = {row.id: row for row in script("evidence_grid").rows() if row.recipe is not None}
    for loss in ("offtri-plain", "offquin-plain", "adapoffquin-truth"):
        first = rows["vse-8000-b128-online-seed1"].recipe["stages"][0]
        second = rows[f"vse-8000-b128-{loss}-seed1"].recipe["stages"][0]
        assert {key for key in first | second if first.get(key) != second.get(key)} == {"loss", "negatives"}


def test_the_truth_of_a_split_is_that_of_its_scenes(script: Any, corpus: Corpus) -> None:
    row = script("evidence_row")
    split = corpus.split("test")
    table = row.truth_of(corpus, split).table()
    assert table.shape == (6, 30)
    assert table[split.image_groups[:, None] == split.text_groups[None, :]].all()


def test_every_hit_is_counted(script: Any, corpus: Corpus) -> None:
    split = corpus.split("train")
    torch.manual_seed(0)
    scores = torch.randn(20, 100)
    ranks = count_ranks(lambda images, texts: scores[images, texts], split.image_groups, split.text_groups)
    hits, metrics = script("evidence_row").hits(ranks), metrics_of_ranks(ranks)
    found = 100 * sum(int(digit, 16) for digit in hits["i2t"]) / 20
    found += 100 * sum(int(digit, 16) for digit in hits["t2i"]) / 100
    assert found == pytest.approx(metrics["rsum"])


def test_recall_by_truth_counts_every_true_candidate_as_right(script: Any) -> None:
    scores = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    own, both = torch.eye(2, dtype=torch.bool), torch.tensor([[True, False], [True, True]])
    recalls = script("evidence_row").true_recalls
    assert recalls(scores, own)["i2t_r1"] == 50
    assert recalls(scores, both)["i2t_r1"] == 100
    assert recalls(torch.zeros(2, 2), own)["i2t_r1"] == 0  # a wrong one that ties is before the right one


@pytest.mark.parametrize(
    ("name", "texts", "images"),
    [
        ("plain", [[1, 1], [1, 1]], [[1, 1], [1, 1]]),
        ("truth", [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
        ("margin-0.1", [[0, 1], [0, 1]], [[1, 1], [1, 1]]),
        ("share-0.5", [[0, 1], [0, 1]], [[0, 0], [1, 1]]),
        ("both-0.1", [[0, 1], [0, 1]], [[1, 1], [1, 1]]),
        ("both-0.3", [[0, 1], [0, 0]], [[0, 0], [0, 0]]),
    ],
)
def test_a_filter_keeps_what_scores_low_enough(
    script: Any, name: str, texts: list[list[int]], images: list[list[int]]
) -> None:
    split = SimpleNamespace(images=(None, None), images_of_text=([0], [1]))
    scores = np.array([[0.85, 0.15], [0.7, 0.25]])
    lists = NegativeLists(np.array([[1, 1], [0, 0]]), scores, np.array([[1, 1], [0, 0]]), np.full((2, 2), 0.3))
    true = np.array([[True, False], [False, False]])
    found = script("evidence_row").kept(name, lists, np.array([0.5, 0.7], np.float32), split, true, true)
    assert [side.astype(int).tolist() for side in found] == [texts, images]


def test_lists_are_cut_to_the_first_that_are_kept_and_never_empty(script: Any) -> None:
    keep = np.array([[False, True, False, True], [False] * 4, [True] * 4])
    rows, empty = script("evidence_row").first_kept(keep, 3)
    assert rows.tolist() == [[1, 3, -1], [3, -1, -1], [0, 1, 2]]
    assert empty.tolist() == [False, True, False]


@pytest.mark.slow
def test_a_round_is_trained_mined_and_trained_again(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, measure = script("evidence_grid"), script("evidence_row")
    monkeypatch.setitem(grid.EPOCHS, 2000, 2)
    monkeypatch.setattr(measure, "list_lengths", lambda size, factor=1.0: (round(5 * factor), round(factor)))
    monkeypatch.setitem(grid.HELD_OUT, "scenes", (20, 20))
    setup = measure.Setup(tmp_path, tmp_path / "results", overrides=("data.limit=140",))
    rows = [grid.first_round(2000, 128, 0), grid.mining(2000, 128, 0), grid.second_round(2000, 128, 0, "OffTri")]
    rows[1].facts.update(top_texts=40, top_images=8)
    for row in rows:
        row.facts["size"] = 140
    measure.prepare(setup, rows, workers=1)
    for row in rows:
        measure.make_row(row, setup)
        assert setup.made(row)
    content = read_json(setup.result(rows[2].id))
    assert content["steps"] == 2
    assert content["provenance"]["code"]["sources_sha256"]
    found = read_json(setup.result(rows[1].id))["filters"]["truth"]
    assert found["texts"]["true_in_list"] == 0
