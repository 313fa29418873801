from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quintet.codes import Codes
from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.errors import CorpusError, QuintetError
from quintet.evaluation.human_agreement import (
    JudgedPairs,
    crowd_agreement,
    crowd_pairs,
    human_agreement,
    judged_pairs,
    kendall_tau_b,
    kendall_tau_c,
    pair_scores,
    read_crowd_annotations,
    read_expert_annotations,
)
from quintet.evaluation.scoring import Member


def plain_tau_c(x: list[float], y: list[int]) -> float:
    n, balance = len(x), 0
    for i in range(n):
        for j in range(i):
            balance += int(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]))
    m = min(len(set(x)), len(set(y)))
    return math.nan if m < 2 else 2 * balance / (n * n * (m - 1) / m)


observations = st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4)), min_size=1, max_size=30)


@given(observations)
def test_tau_c_is_the_double_loop(rows: list[tuple[int, int]]) -> None:
    x, y = [float(row[0]) for row in rows], [row[1] for row in rows]
    assert kendall_tau_c(x, y) == pytest.approx(plain_tau_c(x, y), nan_ok=True)


@given(observations, st.data())
def test_weights_are_how_often_an_observation_counts(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)).filter(any))
    repeated = [row for row, count in zip(rows, times, strict=True) for _ in range(count)]
    weighted = kendall_tau_c([row[0] for row in rows], [row[1] for row in rows], times)
    assert weighted == pytest.approx(plain_tau_c(*map(list, zip(*repeated, strict=True))), nan_ok=True)


def test_tau_c_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    judgements = rng.integers(1, 5, 2000)
    scores = np.round(judgements + rng.normal(size=2000) * 2, 1)  # with ties
    assert kendall_tau_c(scores, judgements) == pytest.approx(
        stats.kendalltau(scores, judgements, variant="c").statistic
    )


@pytest.fixture
def split() -> Split:
    images = [Image(f"{name}.jpg", name) for name in "abc"]
    texts = [Text(f"{name}.jpg#{k}", name, f"{name} {k}") for name in "abc" for k in range(2)]
    return Corpus("small", images, texts, {"test": list("abc")}).split("test")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def made(text: str) -> Path:
        path = tmp_path / "ExpertAnnotations.txt"
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        return path

    return made


def test_captions_of_the_image_itself_are_left_out(split: Split, write: Callable[[str], Path]) -> None:
    path = write("a.jpg\tb.jpg#1\t1\t2\t1\na.jpg\ta.jpg#0\t4\t4\t4\nc.jpg\tb.jpg#0\t3\t4\t3\n")
    pairs = judged_pairs(read_expert_annotations(path), split)
    assert pairs.own_excluded == 1
    assert [split.images[row].id for row in pairs.image_rows] == ["a.jpg", "c.jpg"]
    assert [split.texts[row].id for row in pairs.text_rows] == ["b.jpg#1", "b.jpg#0"]
    assert pairs.judgements.tolist() == [[1, 2, 1], [3, 4, 3]]


def test_every_judgement_is_one_observation() -> None:
    pairs = JudgedPairs(np.array([0, 0, 1]), np.array([0, 1, 2]), np.array([[1, 2, 1], [3, 4, 3], [2, 2, 4]]), 5)
    scores = np.array([0.3, 0.9, 0.1])
    found = human_agreement(scores, pairs, resamples=20)
    flat = plain_tau_c(np.repeat(scores, 3).tolist(), pairs.judgements.ravel().tolist())
    assert found.tau_c == pytest.approx(flat)
    assert (found.pairs, found.judgements, found.own_excluded) == (3, 9, 5)
    assert found.interval is not None
    assert found.interval[0] <= found.interval[1]
    assert human_agreement(scores, pairs, resamples=0).to_json()["interval"] is None


class Dot:
    def score_pairs(self, images: Codes, texts: Codes) -> Tensor:
        assert images.embedding is not None
        assert texts.embedding is not None
        return (images.embedding * texts.embedding).sum(1)


def test_an_ensemble_scores_with_the_mean_of_its_members() -> None:
    rng = np.random.default_rng(1)
    pairs = JudgedPairs(rng.integers(0, 4, 700), rng.integers(0, 6, 700), np.ones((700, 3), int), 0)
    members, expected = [], np.zeros(700)
    for seed in (2, 3):
        images, texts = (torch.randn(n, 5, generator=torch.Generator().manual_seed(seed + n)) for n in (4, 6))
        members.append(Member(Dot(), Codes(embedding=images), Codes(embedding=texts)))  # type: ignore[arg-type]
        expected += (images @ texts.T).numpy()[pairs.image_rows, pairs.text_rows] / 2
    assert np.allclose(pair_scores(members, pairs), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a.jpg\tb.jpg#0\t1\t5\t1\n", "line 1: expected IMAGE"),
        ("a.jpg b.jpg#0 1 2 3\n", "line 1: expected IMAGE"),
        ("a.jpg\tb.jpg#0\t1\t2\t1\na.jpg\tb.jpg#1\t1\t2\n", "same number of experts"),
        ("\n", "no judgements"),
        ("a.jpg\tb.jpg#0\t1\t2\t1\n\udce3\n", "line 2: .*UTF-8"),
    ],
)
def test_a_damaged_file_is_explained(text: str, says: str, write: Callable[[str], Path]) -> None:
    with pytest.raises(CorpusError, match=says):
        read_expert_annotations(write(text))


def test_pairs_of_another_split_are_refused(split: Split, write: Callable[[str], Path]) -> None:
    annotations = read_expert_annotations(write("a.jpg\tz.jpg#0\t1\t1\t1\n"))
    with pytest.raises(QuintetError, match=r"1 of 1 .*'test'"):
        judged_pairs(annotations, split)
    with pytest.raises(CorpusError, match="does not exist"):
        read_expert_annotations("nowhere.txt")


def test_the_published_protocol_has_5664_pairs(shared: Path) -> None:
    source = shared / "flickr8k" / "ExpertAnnotations.txt"
    if not source.is_file():
        pytest.skip("no expert annotations in the shared folder")
    annotations = read_expert_annotations(source)
    own = [text.partition("#")[0] == image for image, text in zip(annotations.images, annotations.texts, strict=True)]
    assert (len(annotations), sum(own), 3 * (len(own) - sum(own))) == (5822, 158, 16992)


# The crowd


def plain_tau_b(x: list[float], y: list[float]) -> float:
    balance, ties = 0, [0, 0]
    pairs = [(i, j) for i in range(len(x)) for j in range(i)]
    for i, j in pairs:
        balance += int(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]))
        ties = [ties[0] + (x[i] == x[j]), ties[1] + (y[i] == y[j])]
    untied = (len(pairs) - ties[0]) * (len(pairs) - ties[1])
    return balance / math.sqrt(untied) if untied else math.nan


@given(observations)
def test_tau_b_is_the_double_loop(rows: list[tuple[int, int]]) -> None:
    x, y = [float(row[0]) for row in rows], [float(row[1]) for row in rows]
    assert kendall_tau_b(x, y) == pytest.approx(plain_tau_b(x, y), nan_ok=True)


def test_the_share_of_yes_is_the_observation_and_own_pairs_count(write: Callable[[str], Path], split: Split) -> None:
    rows = [
        ("a.jpg", "a.jpg#0", 3, 0),
        ("a.jpg", "b.jpg#1", 1, 2),
        ("b.jpg", "c.jpg#0", 0, 4),
        ("c.jpg", "a.jpg#1", 2, 2),
    ]
    path = write("".join(f"{image}\t{text}\t{yes / (yes + no)}\t{yes}\t{no}\n" for image, text, yes, no in rows))
    asked = read_crowd_annotations(path)
    assert asked.answers.tolist() == [3, 3, 4, 4]
    pairs = crowd_pairs(asked, split)
    scores = np.array([0.9, 0.4, 0.1, 0.1])
    found = crowd_agreement(scores, asked, pairs, resamples=50)
    assert found.tau_b == pytest.approx(plain_tau_b(scores.tolist(), [1.0, 1 / 3, 0.0, 0.5]))
    assert (found.pairs, found.answers) == (4, 14)
    assert found.interval is not None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "a.jpg\ta.jpg#0\t1\t3",
        "a.jpg\ta.jpg#0\t0.5\t3\t0",
        "a.jpg\ta.jpg#0\t1\t0\t0",
        "a.jpg\ta.jpg#0\tx\t1\t0",
        "a\tb\tnan\t1\t0",
    ],
)
def test_crowd_files_that_make_no_sense_are_refused(write: Callable[[str], Path], line: str) -> None:
    with pytest.raises(CorpusError):
        read_crowd_annotations(write(f"{line}\n"))


def test_crowd_pairs_of_another_split_are_refused(write: Callable[[str], Path], split: Split) -> None:
    with pytest.raises(QuintetError, match="judged pairs are not"):
        crowd_pairs(read_crowd_annotations(write("z.jpg\ta.jpg#0\t1\t3\t0\n")), split)
