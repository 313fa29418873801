"""Fixtures that several test folders share."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.cluster import Pool, WorkerLost
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


class FlakyWorkers:
    """Workers of a cluster, in this process: what is sent is pickled, tasks end in any order, and some die.

    `deaths`: numbers of tasks whose worker dies as if its node did. `poison`: kills whoever has such an item.
    """

    count = 3

    def __init__(self, make: Any, *arguments: Any, deaths: Sequence[int] = (), poison: Callable[[Any], bool]) -> None:
        self.made_by = pickle.dumps((make, arguments))
        self.deaths, self.poison, self.random = deaths, poison, random.Random(0)
        self.running: dict[int, tuple[Any, bytes]] = {}
        self.dead: list[Any] = []
        self.handles = self.tasks = 0

    def _handle(self, worker: Any, task: Any) -> int:
        self.handles += 1
        self.running[self.handles] = worker, pickle.dumps(task)
        return self.handles

    def start(self) -> tuple[Any, int]:
        make, arguments = pickle.loads(self.made_by)
        worker = make(*arguments)
        return worker, self._handle(worker, None)

    def send(self, worker: Any, task: Any) -> int:
        return self._handle(worker, task)

    def wait(self, handles: Sequence[int]) -> int:
        return self.random.choice(list(handles))

    def result(self, handle: int) -> Any:
        worker, sent = self.running.pop(handle)
        task = pickle.loads(sent)
        if task is None:
            return None
        self.tasks += 1
        killed = any(self.poison(item) for at, item in enumerate(task.items) if at not in task.lost)
        if killed or self.tasks in self.deaths:
            self.dead.append(worker)
        if any(worker is other for other in self.dead):
            raise WorkerLost("exit code 139")
        return pickle.loads(pickle.dumps(worker.work(task)))

    def stop(self, worker: Any) -> None:
        self.dead.append(worker)


@pytest.fixture
def flaky_workers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`flaky_workers(module)`: what the module does on Ray it does on `FlakyWorkers`."""

    def use(module: Any, deaths: Sequence[int] = (), poison: Callable[[Any], bool] = lambda item: False) -> None:
        @contextmanager
        def pool(cluster: Any, make: Any, *arguments: Any) -> Iterator[Pool]:
            yield Pool(FlakyWorkers(make, *arguments, deaths=deaths, poison=poison))

        monkeypatch.setattr(module, "worker_pool", pool)

    return use
