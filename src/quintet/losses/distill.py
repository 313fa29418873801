"""Distillation: a matcher learns the scores, or the embeddings, of a trained run. Not from the five papers.

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network, 2015, with the other modality's items of the batch
in place of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet import distributed
from quintet.codes import Codes
from quintet.errors import RecipeError
from quintet.losses.step import Progress, Step, Term, at_least_float32
from quintet.protocols import HasLogitScale, Matcher


def distill(scores: Tensor, teacher: Tensor) -> dict[str, Tensor]:
    """(n,) each: the divergence KL(teacher || student) of the softmax over the texts of image i, and images of text i.

    Both are (n, n) logits, images by texts.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> distill(logits, logits)["text"].tolist()
    [0.0, 0.0]
    """
    return {"text": _divergence(scores, teacher), "image": _divergence(scores.T, teacher.T)}


def _divergence(student: Tensor, teacher: Tensor) -> Tensor:
    target = teacher.log_softmax(dim=1)
    return (target.exp() * (target - student.log_softmax(dim=1))).sum(dim=1)


class DistillObjective(nn.Module):
    """A batch is to be scored, or embedded, as the run `teacher` does: a folder, a shipped name, or `hf:NAME`.

    The teacher encodes the training split once, before the stage starts.

    - `of: scores`: the softmax of the student's scores over `temperature` follows that of the teacher's scores over
      `teacher_temperature`; by default the teacher's own logit scale if it has learned one, else `temperature`.
    - `of: embeddings`: one minus the cosine of the teacher's embedding and a learned projection of the student's.

    Terms: `text` and `image`.
    """

    def __init__(
        self,
        teacher: str,
        of: Literal["scores", "embeddings"] = "scores",
        temperature: float = 0.05,
        teacher_temperature: float | None = None,
        weight: float = 1.0,
        embed_dim: int | None = None,
    ) -> None:
        super().__init__()
        if of == "embeddings" and embed_dim is None:
            raise ValueError("of: embeddings needs a matcher with one vector an item; use of: scores")
        if min(temperature, teacher_temperature or temperature) <= 0:
            raise ValueError("temperatures must be above 0")
        self.teacher, self.of, self.weight = teacher, of, weight  # see `quintet.protocols.UsesTeacher`
        self.temperature, self.teacher_temperature = temperature, teacher_temperature
        self.embed_dim = embed_dim
        self.project = nn.ModuleDict()  # of images and of texts, once the teacher's size is known
        self._codes: tuple[Codes, Codes] | None = None
        self._score: Callable[[Codes, Codes], Tensor] | None = None
        self._scale = 1.0

    def phase(self, progress: Progress) -> None:
        """The computation never changes."""

    def learn_from(self, teacher: Matcher, images: Codes, texts: Codes) -> None:
        """The teacher's codes of the whole training split, in its order."""
        self._codes = images, texts
        self._score = teacher.score  # not the module: its weights are no part of this loss
        own = float(teacher.logit_scale.detach()) if isinstance(teacher, HasLogitScale) else 1 / self.temperature
        self._scale = own if self.teacher_temperature is None else 1 / self.teacher_temperature
        if self.of == "embeddings":
            if images.embedding is None:
                raise RecipeError(f"loss 'distill': {self.teacher} gives no embeddings; use of: scores")
            assert self.embed_dim is not None
            size = images.embedding.shape[1]
            self.project = nn.ModuleDict({name: nn.Linear(self.embed_dim, size) for name in ("image", "text")})

    def forward(self, step: Step) -> dict[str, Term]:
        if self._codes is None or self._score is None:
            raise RecipeError("loss 'distill' has no codes of its teacher: call learn_from before training")
        costs = self._of_scores(step) if self.of == "scores" else self._of_embeddings(step)
        return {name: Term(values, self.weight) for name, values in costs.items()}

    def _of_scores(self, step: Step) -> dict[str, Tensor]:
        assert self._codes is not None
        assert self._score is not None
        rows = (step.batch.image_rows, step.batch.text_rows)
        images, texts = (
            at_least_float32(codes[distributed.gather_rows(row, step.total)].to(step.scores.device))
            for codes, row in zip(self._codes, rows, strict=True)
        )
        with torch.no_grad(), torch.autocast(step.scores.device.type, enabled=False):
            teacher = self._score(images, texts) * self._scale
        costs = distill(step.scores / self.temperature, teacher)
        return {name: values[step.mine] for name, values in costs.items()}

    def _of_embeddings(self, step: Step) -> dict[str, Tensor]:
        assert self._codes is not None
        costs = {}
        for name, codes, teacher, rows in (
            ("image", step.image_codes, self._codes[0], step.batch.image_rows),
            ("text", step.text_codes, self._codes[1], step.batch.text_rows),
        ):
            own, target = codes.embedding, teacher[rows].embedding
            assert own is not None
            assert target is not None
            with torch.autocast(own.device.type, enabled=False):
                costs[name] = 1 - F.cosine_similarity(self.project[name](own.float()), target.float().to(own.device))
        return costs
