"""Fixtures that several test folders share."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.data.corpus import Corpus, Image, Split, Text
from quintet.data.feature_store import Part, write_manifest
from quintet.evaluation.split_protocols import PROTOCOLS


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with photographs and weights that are not part of the project; skips where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("QUINTET_SHARED", beside))
    if not folder.is_dir():
        pytest.skip(f"no shared folder at {folder} (set QUINTET_SHARED to one with flickr8k/ and weights/)")
    return folder


@pytest.fixture(scope="session")
def references() -> Path:
    """Numbers computed with the authors' programs; see README.md there."""
    return Path(__file__).parent / "references"


@pytest.fixture
def folds_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """COCO's protocol of five folds without its number of images, for tests on small splits."""
    monkeypatch.setitem(PROTOCOLS, "5fold", dataclasses.replace(PROTOCOLS["5fold"], images=None))


WORDS = ("red", "green", "blue", "small", "large", "round", "square", "striped", "plain", "old", "new", "odd")


def make_tiny_corpus(folder: Path, groups: int = 24, captions: int = 2, seed: int = 0) -> Path:
    """A learnable corpus of features: a group has three words, and its features are the sum of their vectors."""
    rng = np.random.default_rng(seed)
    meaning = rng.normal(size=(len(WORDS), 8)).astype(np.float32)
    names = [f"g{number}" for number in range(groups)]
    images, texts, features = [], [], []
    for name in names:
        chosen = rng.choice(len(WORDS), 3, replace=False)
        images.append(Image(f"{name}.jpg", name))
        features.append(meaning[chosen].sum(0) + 0.1 * rng.normal(size=(4, 8)))
        for number in range(captions):
            words = " ".join(WORDS[word] for word in rng.permutation(chosen))
            texts.append(Text(f"{name}#{number}", name, f"a {words} thing"))
    cut = groups // 4
    splits = {"train": names[2 * cut :], "dev": names[:cut], "test": names[cut : 2 * cut]}
    Corpus("tiny", images, texts, splits, root=folder).save(folder)
    store = folder / "features" / "toy"
    store.mkdir(parents=True)
    np.save(store / "features.npy", np.stack(features).astype(np.float32))
    rows = np.stack([np.zeros(groups, np.int64), np.arange(groups)], axis=1)
    parts = [Part("features.npy")]
    write_manifest(store, [image.id for image in images], rows, parts, fragments=4, dim=8, tower={"name": "toy"})
    return folder


@pytest.fixture(scope="session")
def make_corpus() -> Callable[[Path], Path]:
    """Makes a tiny corpus of one's own, to damage."""
    return make_tiny_corpus


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_corpus(tmp_path_factory.mktemp("corpora") / "tiny")


TINY_RECIPE: dict[str, Any] = {
    "name": "tiny",
    "data": {"features": "toy", "tokenizer": {"min_count": 1}},
    "matcher": {"name": "vse++", "embed_dim": 8, "word_dim": 6, "dropout": 0.1},
    "stages": [
        {
            "name": "online",
            "loss": {"triplet": {"margin": 0.2, "warmup_epochs": 1}},
            "batches": {"size": 6},
            "optimizer": {"name": "adam", "lr": 0.01},
            "epochs": 2,
            "log_every": 2,
            "checkpoint_every": 1,
        }
    ],
}


@pytest.fixture
def tiny_recipe(tiny_corpus: Path) -> dict[str, Any]:
    """A recipe that trains on `tiny_corpus` in well under a second."""
    recipe = copy.deepcopy(TINY_RECIPE)
    recipe["data"]["corpus"] = str(tiny_corpus)
    return recipe


@pytest.fixture(scope="session")
def make_split() -> Callable[..., Split]:
    def make(image_groups: Sequence[int], text_groups: Sequence[int], name: str = "test") -> Split:
        images = [Image(f"i{row}", str(group)) for row, group in enumerate(image_groups)]
        texts = [Text(f"t{row}", str(group), f"text {row}") for row, group in enumerate(text_groups)]
        groups = [str(group) for group in dict.fromkeys(image_groups)]
        return Corpus("small", images, texts, {name: groups}).split(name)

    return make
