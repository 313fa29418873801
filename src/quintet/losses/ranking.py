"""The ranking loss of Dual-Path: a pair must score higher than each side with one random other (Eq. 4).

Zheng, Zheng, Garrett, Yang, Shen: Dual-Path Convolutional Image-Text Embeddings with Instance Loss, 2017.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from quintet import distributed
from quintet.codes import Codes
from quintet.data.batches import TextPool
from quintet.errors import RecipeError
from quintet.layers.normalize import BATCH_NORMS
from quintet.losses.step import Progress, Step, Term, at_least_float32
from quintet.protocols import evaluation_mode

STATISTICS = (*BATCH_NORMS, *(nn.Dropout, nn.Dropout1d, nn.Dropout2d))  # what evaluation mode changes in mining


def random_columns(allowed: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) one allowed column of each row, and (n,) bool: the row has one. `noise` is uniform, of the same shape.

    >>> allowed = torch.tensor([[False, True], [False, False]])
    >>> [found.tolist() for found in random_columns(allowed, torch.rand(2, 2))]
    [[1, 0], [True, False]]
    """
    return noise.masked_fill(~allowed, -1).argmax(dim=1), allowed.any(dim=1)


def hinge(right: Tensor, wrong: Tensor, margin: float) -> Tensor:
    """(n,): max(0, margin - (right - wrong))."""
    return (margin - (right - wrong)).clamp(min=0)


class RankingObjective(nn.Module):
    """L_rank (Eq. 4) of every pair in the batch.

    Terms: `text`, wrong texts for an image, and `image`, wrong images for a text; `weight` is lambda 1 of Eq. 9. An
    anchor costs nothing if the batch has no other group.

    `negatives`: "random" draws a pair of another group from the batch for each anchor and direction (the paper).
    "hardest" takes the text that scores highest among `pool` random training texts; the chosen text is then encoded
    with gradients. Images stay random. As in the released code, the pool is compared by the features of training (the
    same random shift of each text, after the last ReLU), with BatchNorm's running statistics and without dropout.

    Several processes draw the same noise: the result is that of one process.
    """

    def __init__(
        self,
        margin: float = 1.0,
        negatives: Literal["random", "hardest"] = "random",
        pool: int = 256,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if negatives not in ("random", "hardest"):
            raise ValueError(f"negatives must be random or hardest, got {negatives!r}")
        self.margin = margin
        self.weight = weight
        self.pool_size = pool if negatives == "hardest" else 0  # see `quintet.protocols.UsesTextPool`

    def phase(self, progress: Progress) -> None:
        """The computation never changes."""

    def forward(self, step: Step) -> dict[str, Term]:
        random = distributed.shared_generator(step.scores.device)
        noise = torch.rand((2, *step.scores.shape), generator=random, device=step.scores.device)
        costs = {
            "text": self._hardest(step) if self.pool_size else self._random(step, noise[0], of_images=True),
            "image": self._random(step, noise[1], of_images=False),
        }
        return {name: Term(values, self.weight, collapse_value=self.margin) for name, values in costs.items()}

    def _random(self, step: Step, noise: Tensor, of_images: bool) -> Tensor:
        """(b,): each anchor of this process against one random negative."""
        scores, same = (step.scores, step.same_group) if of_images else (step.scores.T, step.same_group.T)
        columns, has_one = random_columns(~same, noise)
        wrong = scores.gather(1, columns[:, None])[:, 0]  # (B,)
        return (hinge(scores.diagonal(), wrong, self.margin) * has_one)[step.mine]

    def _hardest(self, step: Step) -> Tensor:
        """(b,): each image of this process against the hardest text of the pool."""
        pool, images = step.batch.pool, step.batch.image_groups
        if pool is None:
            raise RecipeError("hardest negatives need a pool of texts (PairBatch.pool), and this batch has none")
        measured = self._measured(step, pool)
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            scores = step.matcher.score(at_least_float32(step.image_codes), at_least_float32(measured))  # (b, m)
        allowed = images[:, None] != pool.groups
        chosen = scores.masked_fill(~allowed, -torch.inf).argmax(dim=1)  # (b,)
        negatives = step.encode_texts(pool.texts.take(chosen))
        wrong = step.pair_scores(step.image_codes, negatives)
        right = step.scores.diagonal()[step.mine]
        return hinge(right, wrong, self.margin) * allowed.any(dim=1)

    def _measured(self, step: Step, pool: TextPool) -> Codes:
        """The pool's codes as in training, with running statistics; each process encodes its share."""
        total = len(pool.groups)
        with torch.no_grad(), evaluation_mode(step.matcher, STATISTICS):
            codes = step.matcher.encode_texts(pool.texts.take(distributed.share(total)))
            return distributed.gather_codes(codes, total)
