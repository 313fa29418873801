"""Fixtures: two runs that were trained on the tiny corpus, as subjects of analyses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintet.data.corpus import Corpus
from quintet.report.analysis import Options, Subject, open_subjects
from quintet.training.recipe import parse_recipe
from quintet.training.stages import train_recipe


def two_rounds(recipe: dict[str, Any]) -> dict[str, Any]:
    second = copy.deepcopy(recipe["stages"][0])
    second |= {"name": "offline", "loss": {"quintuplet": {}}}
    second["negatives"] = {"from": "online", "top_texts": 4, "top_images": 2}
    return recipe | {"stages": [recipe["stages"][0], second]}


@pytest.fixture(scope="session")
def two_seeds(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a` and `b`: two seeds of a recipe of two rounds."""
    pytest.importorskip("matplotlib")
    home = tmp_path_factory.mktemp("runs")
    recipe: dict[str, Any] = {
        "name": "tiny",
        "data": {"features": "toy", "corpus": str(tiny_corpus), "tokenizer": {"min_count": 1}},
        "matcher": {"name": "vse++", "embed_dim": 8, "word_dim": 6},
        "stages": [{"name": "online", "loss": {"triplet": {}}, "batches": {"size": 6}, "epochs": 2, "log_every": 2}],
    }
    for seed, name in enumerate("ab"):
        train_recipe(parse_recipe(two_rounds(recipe) | {"seed": seed}), home / name, device="cpu")
    return home


@pytest.fixture
def subjects(two_seeds: Path, tiny_corpus: Path) -> list[Subject]:
    return open_subjects(
        [two_seeds / "a", two_seeds / "b"], Corpus.open(tiny_corpus), "test", device=torch.device("cpu")
    )


@pytest.fixture(scope="session")
def few() -> Options:
    """Options that keep analyses short."""
    return Options(samples=5, batches=2, batch_size=4, images=4)


@pytest.fixture(scope="session")
def whole_scores() -> Callable[[Subject], np.ndarray]:
    """(n_images, n_texts): the scores of a subject in one call of its matcher."""

    def score(subject: Subject) -> np.ndarray:
        member = subject.member
        return member.matcher.score(member.image_codes, member.text_codes).detach().numpy()

    return score
