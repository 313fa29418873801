from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.sampling import epoch_batches
from quintet.errors import QuintetError
from quintet.training import clusters as neighbours
from quintet.training.clusters import kmeans, neighbour_batches


def blobs(clusters: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(clusters), size)
    return rng.normal(size=(clusters, 6))[truth] * 10 + rng.normal(size=(len(truth), 6)) * 0.1, truth


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_finds_well_separated_blobs(seed: int) -> None:
    vectors, truth = blobs(5, 40)
    labels = kmeans(vectors, 5, seed=(seed,))
    spread = sum(np.square(part - part.mean(0)).sum() for part in (vectors[labels == label] for label in range(5)))
    assert spread < 0.5 * np.square(vectors - vectors.mean(0)).sum()
    assert all(len(set(labels[truth == cluster])) == 1 for cluster in range(5)), "no blob is torn apart"


def test_kmeans_is_a_function_of_vectors_and_seed() -> None:
    vectors = np.random.default_rng(1).normal(size=(5000, 4)).astype(np.float32)  # more than one batch
    labels = kmeans(vectors, 7, seed=(3, 1))
    assert np.array_equal(labels, kmeans(vectors, 7, seed=(3, 1)))
    assert not np.array_equal(labels, kmeans(vectors, 7, seed=(3, 2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "import_module", lambda name: SingleThreaded())
        assert np.array_equal(labels, kmeans(vectors, 7, seed=(3, 1))), "however many threads there are"


class SingleThreaded:
    """sklearn.cluster, on one thread."""

    def MiniBatchKMeans(self, *arguments: Any, **options: Any) -> Any:  # noqa: N802
        from sklearn.cluster import MiniBatchKMeans
        from threadpoolctl import threadpool_limits

        class Limited(MiniBatchKMeans):
            def fit_predict(self, *inputs: Any, **more: Any) -> Any:
                with threadpool_limits(1):
                    return super().fit_predict(*inputs, **more)

        return Limited(*arguments, **options)


def test_kmeans_of_equal_or_few_vectors() -> None:
    assert kmeans(np.ones((5, 2)), 3, seed=(0,)).shape == (5,)
    assert len(set(kmeans(np.eye(3), 3, seed=(0,)))) == 3
    assert kmeans(np.eye(3), 1, seed=(0,)).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"3 vectors .*4 clusters"):
        kmeans(np.eye(3), 4, seed=(0,))


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(QuintetError, match=r"pip install 'quintet-retrieval\[cluster\]'.*batches\.kind=random"):
        kmeans(np.eye(3), 2, seed=(0,))


def split_of(captions: list[int]) -> Split:
    names = [str(number) for number in range(len(captions))]
    texts = [
        Text(f"{name}#{k}", name, "a dog", name)
        for name, count in zip(names, captions, strict=True)
        for k in range(count)
    ]
    return Corpus("c", [Image(name, name) for name in names], texts, {"train": names}).split("train")


@given(
    captions=st.lists(st.integers(1, 4), min_size=4, max_size=30),
    clusters=st.integers(1, 5),
    per=st.sampled_from(["texts", "images"]),
    drop_last=st.booleans(),
    seed=st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_an_epoch_visits_the_same_pairs_in_as_many_batches(
    captions: list[int], clusters: int, per: Literal["texts", "images"], drop_last: bool, seed: int
) -> None:
    split = split_of(captions)
    labels = np.random.default_rng(seed).integers(clusters, size=len(captions))
    batches = neighbour_batches(split, labels, 6, 3, seed=(seed, 1), per=per, drop_last=drop_last)
    plain = epoch_batches(split, 6, seed=(seed, 1), per=per, drop_last=drop_last)
    assert sorted(map(len, batches)) == sorted(map(len, plain))
    pairs = np.concatenate(batches)
    assert len(np.unique(pairs[:, 1])) == len(pairs), "no text comes twice"
    assert all(split.texts[text].image == split.images[image].id for image, text in pairs)
    if per == "texts" and sum(map(len, plain)) == len(split.texts):
        assert sorted(pairs[:, 1]) == list(range(len(split.texts)))
    again = neighbour_batches(split, labels, 6, 3, seed=(seed, 1), per=per, drop_last=drop_last)
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))


@given(
    captions=st.lists(st.integers(1, 3), min_size=20, max_size=60),
    clusters=st.integers(1, 7),
    seed=st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_no_batch_holds_an_image_twice(captions: list[int], clusters: int, seed: int) -> None:
    split = split_of(captions)
    labels = np.random.default_rng(seed).integers(clusters, size=len(captions))
    for batch in neighbour_batches(split, labels, 6, 3, seed=(seed, 1)):
        assert len(set(batch[:, 0])) == len(batch)


def test_images_repeat_only_where_there_are_fewer_than_a_batch_holds() -> None:
    batches = neighbour_batches(split_of([4] * 5), np.zeros(5, int), 8, 4, seed=(0,))
    assert [len(batch) for batch in batches].count(8) == 2
    assert sorted(np.concatenate(batches)[:, 1]) == list(range(20))


def test_batches_are_bunches_of_one_cluster_with_different_images() -> None:
    split = split_of([3] * 48)
    labels = np.arange(48) % 4  # twelve images each
    batches = neighbour_batches(split, labels, 8, 4, seed=(0,))
    for batch in batches:
        for bunch in np.split(batch, 2):
            assert len(set(labels[bunch[:, 0]])) == 1
            assert len(set(bunch[:, 0])) == 4, "one text for each image"
    together = {(labels[batch[0, 0]], labels[batch[4, 0]]) for batch in batches}
    assert len(together) > 4, "which clusters meet is a matter of chance"
    other = neighbour_batches(split, labels, 8, 4, seed=(1,))
    assert any(not np.array_equal(one, two) for one, two in zip(batches, other, strict=True))
