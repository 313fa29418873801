from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.errors import CorpusError
from quintet.mining import run as mining_run
from quintet.mining.run import mine_run
from quintet.runs.run import open_run
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train


@pytest.fixture
def trained(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    train(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_a_run_mines_its_corpus(trained: Path, tiny_corpus: Path, tmp_path: Path, plain: Any) -> None:
    run, corpus = open_run(trained), Corpus.open(tiny_corpus)
    found = mine_run(run, corpus, corpus.split("train"), tmp_path / "lists", top_texts=5, top_images=3)
    split = corpus.split("train")
    opened = NegativeLists.open(tmp_path / "lists")
    opened.check(split, run.weights_checksum)
    assert np.array_equal(opened.texts, found.texts)
    images, texts = mining_run.encode_shared(run, corpus, split, "cpu", 128)
    expected = plain(run.matcher.score(images, texts).tolist(), split, 5, 3)
    assert np.array_equal(found.texts, expected[0])
    assert np.array_equal(found.images, expected[1])
    assert found.manifest["matcher"] == {"name": "tiny", "weights": run.weights_checksum}
    assert [path.name for path in tmp_path.glob(".*")] == [], "the journal is gone once the lists are there"
    with pytest.raises(CorpusError, match="images"):
        opened.check(corpus.split("dev"))


def test_finished_lists_are_not_mined_again(
    trained: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = open_run(trained), Corpus.open(tiny_corpus)
    first = mine_run(run, corpus, corpus.split("train"), tmp_path / "lists", top_texts=5, top_images=3)
    used: list[int] = []
    mine = mining_run.mine
    monkeypatch.setattr(mining_run, "mine", lambda *a, **k: used.append(1) or mine(*a, **k))
    again = mine_run(run, corpus, corpus.split("train"), tmp_path / "lists", top_texts=5, top_images=3)
    assert not used
    assert np.array_equal(first.texts, again.texts)
    mine_run(run, corpus, corpus.split("train"), tmp_path / "lists", top_texts=4, top_images=3)
    assert used


def test_a_killed_run_goes_on(trained: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    run, corpus = open_run(trained), Corpus.open(tiny_corpus)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine_run(run, corpus, corpus.split("train"), tmp_path / "lists", progress=stop)
    assert not (tmp_path / "lists").exists()
    assert len(list(tmp_path.glob(".lists.mining-*"))) == 1
    mine_run(run, corpus, corpus.split("train"), tmp_path / "lists")
    assert not list(tmp_path.glob(".lists.mining-*"))
