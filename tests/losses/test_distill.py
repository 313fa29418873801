"""Distillation against plain loops, and whole trainings with a teacher."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quintet
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, PairBatch, TextBatch
from quintet.errors import RecipeError
from quintet.losses.distill import DistillObjective, distill
from quintet.losses.step import Progress, Step
from quintet.training.recipe import parse_recipe
from quintet.training.stages import resume_run, train_recipe


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_divergence_against_a_loop() -> None:
    student, teacher = randn(4, 4, seed=0), randn(4, 4, seed=1)
    found = distill(student, teacher)
    for name, ours, theirs in (("text", student, teacher), ("image", student.T, teacher.T)):
        for i in range(4):
            p = [math.exp(x) for x in theirs[i].tolist()]
            q = [math.exp(x) for x in ours[i].tolist()]
            p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
            expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            assert found[name][i].item() == pytest.approx(expected)


class Dot(nn.Module):
    """Scores are dot products; an image is its first region."""

    def encode_images(self, images: ImageBatch) -> Codes:
        assert images.fragments is not None
        return Codes(embedding=images.fragments[:, 0])

    def encode_texts(self, texts: TextBatch) -> Codes:
        return Codes(embedding=randn(10, 3, seed=5)[texts.tokens[:, 0]])

    def score(self, images: Codes, texts: Codes) -> torch.Tensor:
        assert images.embedding is not None
        assert texts.embedding is not None
        return images.embedding @ texts.embedding.T


def batch() -> PairBatch:
    rows = torch.tensor([2, 0, 1])
    return PairBatch(
        ImageBatch(fragments=randn(3, 1, 3, seed=2)), TextBatch.from_ids([[4], [5], [6]]), rows, rows, rows, rows + 2
    )


def test_rows_of_the_teacher_are_those_of_the_batch() -> None:
    matcher: Any = Dot()
    objective = DistillObjective("teacher", temperature=0.5, teacher_temperature=0.25)
    images, texts = randn(3, 7, seed=3), randn(5, 7, seed=4)
    objective.learn_from(matcher, Codes(embedding=images), Codes(embedding=texts))
    step = Step(matcher, batch(), Progress())
    found = objective(step)
    teacher = torch.stack([torch.stack([images[i] @ texts[t] for t in (4, 2, 3)]) for i in (2, 0, 1)])
    for name, expected in distill(step.scores / 0.5, teacher / 0.25).items():
        torch.testing.assert_close(found[name].values, expected)
    assert not objective.state_dict(), "the teacher is no part of what is trained and saved"


def test_embeddings_follow_through_a_projection() -> None:
    matcher: Any = Dot()
    objective = DistillObjective("teacher", of="embeddings", embed_dim=3).double()
    images, texts = randn(3, 7, seed=3), randn(5, 7, seed=4)
    objective.learn_from(matcher, Codes(embedding=images), Codes(embedding=texts))
    found = objective(Step(matcher, batch(), Progress()))
    layer: Any = objective.project["image"]
    for i, row in enumerate((2, 0, 1)):
        own = layer(batch().images.fragments[i, 0].float())  # type: ignore[index]
        cosine = torch.cosine_similarity(own, images[row].float(), dim=0)
        assert found["image"].values[i].item() == pytest.approx(1 - cosine.item(), abs=1e-6)
    assert len(list(objective.parameters())) == 4


@pytest.mark.parametrize("of", ["scores", "embeddings"])
def test_a_student_learns_from_a_trained_run(tiny_recipe: dict[str, Any], tmp_path: Path, of: str) -> None:
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "teacher", device="cpu")
    tiny_recipe["matcher"] |= {"embed_dim": 6}
    tiny_recipe["stages"][0]["loss"] = {"distill": {"teacher": str(tmp_path / "teacher"), "of": of}}
    tiny_recipe["stages"][0] |= {"epochs": 2}
    train_recipe(parse_recipe(tiny_recipe), tmp_path / "student", device="cpu")
    log = [line for line in (tmp_path / "student" / "stages" / "online" / "log.jsonl").read_text().splitlines() if line]
    assert any('"distill.text"' in line for line in log)
    assert quintet.load(tmp_path / "student", device="cpu").matcher.embed_dim == 6  # type: ignore[attr-defined]
    assert resume_run(tmp_path / "student", device="cpu")


def test_a_teacher_must_exist(tiny_recipe: dict[str, Any], tmp_path: Path) -> None:
    tiny_recipe["stages"][0]["loss"] = {"distill": {"teacher": str(tmp_path / "nobody")}}
    with pytest.raises(RecipeError, match="teacher"):
        train_recipe(parse_recipe(tiny_recipe), tmp_path / "student", device="cpu")
    assert not (tmp_path / "student").exists()
