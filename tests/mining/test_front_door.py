"""`quintet.mine`: a run and a corpus to lists in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quintet
from quintet.data.corpus import Corpus
from quintet.data.negatives import NegativeLists
from quintet.errors import CorpusError, QuintetError
from quintet.mining import mine as mining
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


@pytest.fixture
def trained(tiny_recipe: dict[str, Any], tmp_path: Path) -> Path:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_a_run_mines_its_corpus(trained: Path, tiny_corpus: Path, tmp_path: Path, plain: Any) -> None:
    run, corpus = quintet.load(trained, device="cpu"), Corpus.open(tiny_corpus)
    found = quintet.mine(run, corpus, out=tmp_path / "lists", top_texts=5, top_images=3)
    split = corpus.split("train")
    opened = NegativeLists.open(tmp_path / "lists")
    opened.check(split, run.weights_checksum)
    assert np.array_equal(opened.texts, found.texts)
    scores = run.matcher.score(*mining.encode_shared(run, corpus, split))
    expected = plain(scores.tolist(), split, 5, 3)
    assert np.array_equal(found.texts, expected[0])
    assert np.array_equal(found.images, expected[1])
    assert found.manifest["matcher"] == {"name": "tiny", "weights": run.weights_checksum}
    assert [path.name for path in tmp_path.glob(".*")] == [], "the journal is gone once the lists are there"
    with pytest.raises(CorpusError, match="images"):
        opened.check(corpus.split("dev"))


def test_paths_and_objects_are_the_same_and_nothing_is_written_unasked(
    trained: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    one = quintet.mine(trained, split="dev", top_texts=5, device="cpu")
    corpus = Corpus.open(tiny_corpus)
    other = quintet.mine(quintet.load(trained, device="cpu"), corpus, split=corpus.split("dev"), top_texts=5)
    assert np.array_equal(one.texts, other.texts)
    assert np.array_equal(one.image_scores, other.image_scores)
    assert one.texts.shape[1] == 5
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_that_an_open_run_cannot_follow_are_refused(trained: Path, tiny_corpus: Path) -> None:
    run = quintet.load(trained, device="cpu")
    with pytest.raises(QuintetError, match="stage 'online'"):
        quintet.mine(run, tiny_corpus, stage="online")
    with pytest.raises(QuintetError, match="device"):
        quintet.mine(run, tiny_corpus, device="cuda:99")
    with pytest.raises(QuintetError, match="corpus"):
        quintet.mine("quintet-small", device="cpu")


def test_finished_lists_are_not_mined_again(
    trained: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"out": tmp_path / "lists", "top_images": 3, "device": "cpu"}
    first = quintet.mine(trained, tiny_corpus, top_texts=5, **options)
    used: list[int] = []
    real = mining.mine_codes
    monkeypatch.setattr(mining, "mine_codes", lambda *a, **k: used.append(1) or real(*a, **k))
    again = quintet.mine(trained, tiny_corpus, top_texts=5, **options)
    assert not used
    assert np.array_equal(first.texts, again.texts)
    quintet.mine(trained, tiny_corpus, top_texts=4, **options)
    assert used


def test_a_killed_run_goes_on(trained: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"out": tmp_path / "lists", "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        quintet.mine(trained, tiny_corpus, progress=stop, **options)
    assert not (tmp_path / "lists").exists()
    assert len(list(tmp_path.glob(".lists.mining-*"))) == 1
    quintet.mine(trained, tiny_corpus, **options)
    assert not list(tmp_path.glob(".lists.mining-*"))


def test_a_second_mining_into_a_folder_is_refused(trained: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    run, out = quintet.load(trained, device="cpu"), tmp_path / "lists"

    def second(done: int, total: int) -> None:
        for tops in (5, 300):  # the same mining and another one
            with pytest.raises(QuintetError, match="another process"):
                quintet.mine(run, tiny_corpus, out=out, top_texts=tops)

    first = quintet.mine(run, tiny_corpus, out=out, progress=second)
    assert np.array_equal(NegativeLists.open(out).texts, first.texts)
    assert not (out / "lock").exists()


def test_damaged_lists_are_mined_again_and_left_overs_are_removed(
    trained: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "lists"
    run = quintet.load(trained, device="cpu")
    first = np.array(quintet.mine(run, tiny_corpus, out=out, top_texts=5).texts)
    scores = bytearray((out / "image_scores.npy").read_bytes())
    scores[-1] ^= 1
    (out / "image_scores.npy").write_bytes(scores)
    with pytest.raises(QuintetError, match="damaged"):
        NegativeLists.open(out)
    (out / ".text_scores.npy.abcdefgh.partial").write_bytes(b"half")
    again = quintet.mine(run, tiny_corpus, out=out, top_texts=5)
    assert np.array_equal(again.texts, first)
    assert not list(out.glob(".*"))
    journal = tmp_path / ".lists.mining-0123456789ab"  # killed after the lists were written
    journal.mkdir()
    (journal / "journal.json").write_text('{"format": "quintet-mining-journal"}')
    quintet.mine(run, tiny_corpus, out=out, top_texts=5)
    assert not journal.exists()
