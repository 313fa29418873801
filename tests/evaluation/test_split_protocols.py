from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.errors import QuintetError
from quintet.evaluation.metrics import retrieval_metrics
from quintet.evaluation.split_protocols import PROTOCOLS, chance_of_parts, find_protocol, metrics_of_parts, rank_split

MakeSplit = Callable[..., Split]


@pytest.mark.usefixtures("folds_of_any_size")
def test_five_folds_are_averaged_over_consecutive_groups(make_split: MakeSplit) -> None:
    groups = np.arange(50)
    split = make_split(groups, np.repeat(groups, 3))
    scores = np.random.default_rng(0).random((50, 150), dtype=np.float32)
    matrix = torch.from_numpy(scores)
    parts = rank_split(find_protocol("5fold"), split, lambda i, t: matrix[i, t], block=(4, 7))
    folds = [
        retrieval_metrics(scores[k : k + 10, 3 * k : 3 * k + 30], np.arange(10), np.repeat(np.arange(10), 3))
        for k in range(0, 50, 10)
    ]
    found = metrics_of_parts(parts)
    for name in folds[0]:
        assert found[name] == pytest.approx(np.mean([fold[name] for fold in folds]))
    assert found["rsum"] == sum(found[f"{d}_r{k}"] for d in ("i2t", "t2i") for k in (1, 5, 10))
    assert chance_of_parts(parts)["t2i_r1"] == pytest.approx(10.0)


@pytest.mark.usefixtures("folds_of_any_size")
def test_folds_keep_every_group_whole_whatever_its_size(make_split: MakeSplit) -> None:
    split = make_split([0, 0, 1, 2, 2, 2, 3, 4, 5], [0, 1, 1, 1, 2, 3, 3, 4, 4, 5])
    parts = find_protocol("5fold").parts(split)
    assert [images.start for images, _ in parts] == [0] + [images.stop for images, _ in parts[:-1]]
    assert parts[-1][0].stop == 9
    assert parts[-1][1].stop == 10
    for images, texts in parts:
        assert set(split.image_groups[images]) == set(split.text_groups[texts])


def test_identity_counts_any_image_of_the_person(make_split: MakeSplit) -> None:
    split = make_split([0, 0, 1, 1], [0, 1])
    matrix = torch.tensor([[0.1, 0.2], [0.9, 0.3], [0.8, 0.1], [0.0, 0.25]])
    (ranks,) = rank_split(find_protocol("identity"), split, lambda i, t: matrix[i, t])
    assert ranks.t2i.best.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["5fold", "5k"])
def test_the_protocols_of_coco_are_for_5000_images_with_texts_of_their_own(make_split: MakeSplit, name: str) -> None:
    for groups in (range(1_000), range(4_999), range(5_001), np.arange(5_000) // 2):
        with pytest.raises(QuintetError, match="5,000 images"):
            find_protocol(name).parts(make_split(groups, groups))
    parts = find_protocol(name).parts(make_split(range(5_000), np.repeat(range(5_000), 5)))
    size = 5_000 if name == "5k" else 1_000
    expected = [(slice(k, k + size), slice(5 * k, 5 * (k + size))) for k in range(0, 5_000, size)]
    assert parts == expected


def test_the_right_command_is_told_where_the_corpus_has_the_right_split() -> None:
    names = [str(number) for number in range(5_000)]
    images, texts = [Image(name, name) for name in names], [Text(f"{name}#0", name, "a dog") for name in names]
    corpus = Corpus("coco", images, texts, {"test": names[:1_000], "testall": names})
    protocol = find_protocol("5fold")
    with pytest.raises(QuintetError, match="--split testall --protocol 5fold"):
        protocol.check(corpus.split("test"), corpus)
    with pytest.raises(QuintetError, match=r"`data\.test=testall --protocol"):
        protocol.check(corpus.split("test"), corpus, choose="data.test={}")
    protocol.check(corpus.split("testall"), corpus)


@pytest.mark.usefixtures("folds_of_any_size")
def test_folds_of_rows_in_disorder_are_refused(make_split: MakeSplit) -> None:
    ordered = make_split(range(5), range(5))
    shuffled = Split(
        "test", ordered.images, ordered.texts, ordered.groups, ordered.image_groups[::-1], ordered.text_groups
    )
    with pytest.raises(QuintetError, match="ordered by group"):
        find_protocol("5fold").parts(shuffled)


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(QuintetError, match="did you mean '5fold'"):
        find_protocol("5-fold")
    assert set(PROTOCOLS) == {"full", "5fold", "5k", "identity"}
