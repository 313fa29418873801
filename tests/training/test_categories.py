from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintet.data.corpus import Corpus
from quintet.errors import RecipeError, RunError
from quintet.losses.instance import InstanceObjective
from quintet.models import create_model
from quintet.training import clusters as categories
from quintet.training.build import Objectives
from quintet.training.clusters import assign_categories
from quintet.training.inputs import TrainingData, open_data
from quintet.training.recipe import parse_recipe

pytest.importorskip("sklearn")


@pytest.fixture
def data(tiny_recipe: dict[str, Any]) -> TrainingData:
    return open_data(parse_recipe(tiny_recipe), print)


def matcher(name: str = "dual-path") -> Any:
    torch.manual_seed(0)
    sizes = {"text_layout": "small", "text_width": 2} if name == "dual-path" else {}
    return create_model(name, vocabulary_size=20, image_dim=8, embed_dim=4, word_dim=4, **sizes).train()


def assign(data: TrainingData, folder: Path, count: int = 3, model: Any = None) -> InstanceObjective:
    part = InstanceObjective(len(data.train.groups), 4, categories=count)
    objective = Objectives({"instance": part})
    model = model or matcher()
    assign_categories(objective, model, data, folder=folder, seed=(0, 0), device=torch.device("cpu"))
    return part


def test_groups_that_look_alike_get_one_category(data: TrainingData, tmp_path: Path) -> None:
    """K-means of the mean features of a group, as a plain sum over its images."""
    model = matcher()
    part = assign(data, tmp_path, model=model)
    labels = part.class_of_group.numpy()
    assert set(labels) == {0, 1, 2}
    assert model.training, "the matcher is left as it was"
    assert data.store is not None
    cells = data.store.batch([image.id for image in data.train.images]).fragments
    assert cells is not None
    means = cells.mean(dim=1).numpy()  # one image a group
    centres = np.stack([means[labels == label].mean(axis=0) for label in range(3)])
    nearest = ((means[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.8


def test_images_of_a_group_are_averaged(data: TrainingData, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        categories, "kmeans", lambda vectors, count, seed: seen.append(vectors) or np.zeros(6, np.int64)
    )
    pairs = data.train
    corpus = Corpus.open(data.corpus.root)
    two_each = [image.__class__(image.id, f"p{number // 2}", image.path) for number, image in enumerate(pairs.images)]
    texts = [pairs.texts[0].__class__(f"t{number}", f"p{number}", "a word") for number in range(6)]
    made = Corpus("people", two_each, texts, {"train": [f"p{number}" for number in range(6)]}, root=corpus.root)
    people = TrainingData(corpus, made.split("train"), data.validation, data.store)
    assign(people, tmp_path)
    assert data.store is not None
    cells = data.store.batch([image.id for image in people.train.images]).fragments
    assert cells is not None
    np.testing.assert_allclose(seen[0][1], cells[2:4].mean(dim=(0, 1)).numpy(), rtol=1e-5)


def test_they_are_found_once_and_kept(data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = assign(data, tmp_path).class_of_group
    monkeypatch.setattr(categories, "kmeans", None)
    assert torch.equal(assign(data, tmp_path, model=matcher()).class_of_group, first)
    with pytest.raises(RunError, match="another number of categories"):
        assign(data, tmp_path, count=2)
    (tmp_path / "categories.npy").write_bytes(b"broken")
    with pytest.raises(RunError, match="damaged"):
        assign(data, tmp_path)


def test_a_loss_that_goes_on_keeps_those_that_its_classifier_knows(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = InstanceObjective(len(data.train.groups), 4, categories=3)
    part.assign(torch.arange(len(data.train.groups)) % 3)
    monkeypatch.setattr(categories, "kmeans", None)
    objective, place = Objectives({"instance": part}), torch.device("cpu")
    assign_categories(objective, matcher(), data, folder=tmp_path, seed=(0, 1), device=place)
    assert torch.equal(part.class_of_group, torch.arange(len(data.train.groups)) % 3)


def test_other_matchers_have_no_pooled_features(data: TrainingData, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="use them with dual-path"):
        assign(data, tmp_path, model=matcher("vse++"))


def test_losses_without_categories_need_nothing(data: TrainingData, tmp_path: Path) -> None:
    objective = Objectives({"instance": InstanceObjective(len(data.train.groups), 4)})
    assign_categories(objective, None, data, folder=tmp_path, seed=(0, 0), device=torch.device("cpu"))
    assert not list(tmp_path.iterdir())
