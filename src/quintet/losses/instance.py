"""The instance loss of Dual-Path: every image/text group is a class, and both modalities share one classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet import processes
from quintet.codes import Codes
from quintet.errors import RecipeError
from quintet.layers.normalize import HALF
from quintet.layers.sharded_classifier import ShardedClassifier
from quintet.losses.step import Step, Term


class InstanceObjective(nn.Module):
    """-log softmax(W_share f)[group] of pictures (Eq. 5, 6) and of sentences (Eq. 7, 8).

    Requirements: a matcher with one vector an item (dual-path: the feature before unit length). With a matcher that
    gives unit vectors in training, set `scale`, which multiplies them.

    Terms: `image` and `text`, weighted with `image_weight` (lambda 2 of Eq. 9) and `text_weight` (lambda 3); for the
    log, with weight 0, `image_error` and `text_error`, the share of items taken for another class (Fig. 8).

    - `dropout`: on the features in front of the classifier.
    - `bias`: the classifier has one (Eq. 5 has none, some of the released networks do).
    - `sampled`: sampled softmax; so many random classes are compared beside those of the batch. Less work with very
      many classes; the weights stay.
    - `categories`: K-means pseudo-categories instead of groups (Table IV). The trainer finds them before the stage.

    Several processes share out the classes (`ShardedClassifier`), and dropout and samples are drawn alike: the result
    is that of one process.
    """

    class_of_group: Tensor

    def __init__(
        self,
        groups: int,
        embed_dim: int,
        dropout: float = 0.75,
        image_weight: float = 1.0,
        text_weight: float = 1.0,
        bias: bool = False,
        scale: float = 1.0,
        sampled: int | None = None,
        categories: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if sampled is not None and sampled < 1:
            raise ValueError(f"sampled must be 1 or more classes, got {sampled}")
        if categories is not None and not 2 <= categories <= groups:
            raise ValueError(f"categories must be 2 to {groups}, the number of training groups, got {categories}")
        self.dropout = dropout
        self.weights = {"image": image_weight, "text": text_weight}
        self.scale = scale
        self.sampled = sampled
        self.categories = categories
        self.classifier = ShardedClassifier(embed_dim, groups if categories is None else categories, bias)
        if categories is not None:
            self.register_buffer("class_of_group", torch.full((groups,), -1))

    @property
    def assigned(self) -> bool:
        """Whether every group has its pseudo-category."""
        return bool((self.class_of_group >= 0).all())

    def assign(self, categories: Tensor) -> None:
        """Set the pseudo-category of every group, (groups,)."""
        self.class_of_group.copy_(categories)

    def forward(self, step: Step) -> dict[str, Term]:
        batch = step.batch
        with torch.autocast(batch.text_groups.device.type, enabled=False):
            both = torch.stack([_features(step.image_codes), _features(step.text_codes)], dim=1)  # (b, 2, d)
            features = processes.gather_rows(self.scale * both, step.total).flatten(0, 1)  # (2 B, d)
            groups = processes.gather_rows(torch.stack([batch.image_groups, batch.text_groups], dim=1), step.total)
            targets = self._classes(groups.flatten())  # (2 B,)
            random = processes.shared_generator(features.device)
            costs, wrong = self.classifier(self._dropped(features, random), targets, self._others(targets, random))
        costs, errors = (values.view(-1, 2)[step.mine].T for values in (costs, wrong.to(costs.dtype)))  # (2, b) each
        terms = {name: Term(part, self.weights[name]) for name, part in zip(self.weights, costs, strict=True)}
        for name, part in zip(self.weights, errors, strict=True):
            terms[f"{name}_error"] = Term(part, weight=0.0)
        return terms

    def _classes(self, groups: Tensor) -> Tensor:
        if self.categories is None:
            return groups
        classes = self.class_of_group[groups]
        if groups.device.type == "cpu" and bool((classes < 0).any()):
            raise RecipeError("the pseudo-categories of the instance loss have not been found yet; call `assign` first")
        return classes

    def _dropped(self, features: Tensor, random: torch.Generator | None) -> Tensor:
        if not self.training or not self.dropout:
            return features
        chances = torch.rand(features.shape, generator=random, device=features.device)
        return features * (chances >= self.dropout) / (1 - self.dropout)

    def _others(self, targets: Tensor, random: torch.Generator | None) -> Tensor | None:
        """Random classes that nobody in the batch belongs to; None: compare all."""
        if self.sampled is None:
            return None
        order = torch.randperm(self.classifier.classes, generator=random, device=targets.device)
        return order[~torch.isin(order, targets)][: self.sampled]


def _features(codes: Codes) -> Tensor:
    if codes.embedding is None:
        raise RecipeError("the instance loss classifies one vector an item, and this matcher has none; use dual-path")
    return codes.embedding.float() if codes.embedding.dtype in HALF else codes.embedding
