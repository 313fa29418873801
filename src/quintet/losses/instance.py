"""The instance loss of Dual-Path: every group of images and texts is a class; both modalities share one classifier.

Zheng, Zheng, Garrett, Yang, Shen: Dual-Path Convolutional Image-Text Embeddings with Instance Loss, 2017.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet import distributed
from quintet.codes import Codes
from quintet.errors import RecipeError
from quintet.layers.normalize import widen
from quintet.losses.step import Progress, Step, Term

ROWS = 1024  # rows of the weight that are initialised at a time


class ShardedClassifier(nn.Module):
    """W_share of Dual-Path Eq. 5 and 7. Each of P processes holds the weights of 1/P of the classes.

    Every process has the features of the whole batch and computes the logits of its own classes. Processes exchange
    four numbers an item: the largest logit, the sum of exponentials, the logit of the right class and the largest of
    the others. Initial weights are drawn block by block, so they do not depend on the number of processes.
    """

    def __init__(self, dim: int, classes: int, bias: bool = False) -> None:
        super().__init__()
        if classes < distributed.world_size():
            raise ValueError(f"{classes} classes cannot be divided among {distributed.world_size()} processes")
        self.classes = classes
        self.mine = distributed.share(classes)
        self.weight = nn.Parameter(_first_weights(dim, classes, self.mine))  # (classes of this process, dim)
        self.bias = nn.Parameter(torch.zeros(len(self.weight))) if bias else None
        for parameter in self.parameters():
            distributed.mark_sharded(parameter, classes)

    def forward(self, features: Tensor, targets: Tensor, others: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(n, dim) features and (n,) classes -> (n,) costs (Eq. 6, 8), and (n,) bool: another class is as likely.

        `others`: sampled softmax. Only the targets and these classes (none of them a target) are compared. Each of the
        others is weighted by the number of classes it represents, so that the sum of exponentials is unbiased.
        """
        if others is None:
            columns = torch.arange(self.mine.start, self.mine.stop, device=targets.device)
            logits = weighted = F.linear(features, self.weight, self.bias)  # (n, classes of this process)
        else:
            columns, shares = self._sampled(targets, others)
            rows = columns - self.mine.start
            logits = F.linear(features, self.weight[rows], None if self.bias is None else self.bias[rows])
            if not len(columns):  # no sampled class is in this process; the exchange needs a column
                logits, shares = F.pad(logits, (0, 1), value=-torch.inf), shares.new_zeros(1)  # (n, 1)
            weighted = logits + shares.log1p()
        here = (targets >= self.mine.start) & (targets < self.mine.stop)
        at = torch.searchsorted(columns, targets).clamp(max=logits.shape[1] - 1)[:, None]  # (n, 1)
        right = logits.gather(1, at)  # (n, 1)
        rivals = logits.detach().scatter(1, at, right.detach().masked_fill(here[:, None], -torch.inf))
        top, best = distributed.all_reduce_max(torch.stack([weighted.amax(dim=1), rivals.amax(dim=1)]))  # (n,) each
        sums = (weighted - top[:, None]).exp().sum(dim=1)  # (n,)
        sums, right = distributed.all_reduce_with_gradient(torch.stack([sums, right[:, 0].masked_fill(~here, 0)]))
        return top + sums.log() - right, right.detach() <= best

    def _sampled(self, targets: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The compared classes of this process, sorted, and how many further classes each represents."""
        needed = targets.unique()
        further = (self.classes - len(needed)) / max(len(others), 1) - 1
        columns, order = torch.cat([needed, others]).sort()
        shares = (order >= len(needed)) * further
        mine = (columns >= self.mine.start) & (columns < self.mine.stop)
        return columns[mine], shares[mine]


def _first_weights(dim: int, classes: int, mine: slice) -> Tensor:
    """He initialisation; the rows of one process."""
    parts = []
    for start in range(0, classes, ROWS):
        block = torch.randn(min(ROWS, classes - start), dim) * (2 / dim) ** 0.5
        parts.append(block[max(mine.start - start, 0) : max(mine.stop - start, 0)].clone())
    return torch.cat(parts)


class InstanceObjective(nn.Module):
    """-log softmax(W_share f)[group] of images (Eq. 5, 6) and of texts (Eq. 7, 8).

    Requirements: a matcher with one vector an item (dual-path: the feature before unit length). With a matcher that
    gives unit vectors in training, set `scale`, which multiplies them.

    Terms: `image` and `text`, weighted with `image_weight` (lambda 2 of Eq. 9) and `text_weight` (lambda 3); for the
    log, with weight 0, `image_error` and `text_error`, the fraction of misclassified items (Fig. 8).

    - `dropout`: on the features before the classifier.
    - `bias`: of the classifier (none in Eq. 5; some of the released networks have one).
    - `sampled`: sampled softmax with so many random classes beside those of the batch: less work for very many classes.
    - `categories`: K-means pseudo-categories instead of groups (Table IV). The trainer finds them before the stage.

    Several processes divide the classes (`ShardedClassifier`) and draw the same dropout and samples: the result is that
    of one process.
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
        """Whether every group has its pseudo-category, if they are used."""
        return self.categories is None or bool((self.class_of_group >= 0).all())

    def assign(self, categories: Tensor) -> None:
        """Set the pseudo-category of every group, (groups,)."""
        self.class_of_group.copy_(categories)

    def phase(self, progress: Progress) -> None:
        """The computation never changes."""

    def forward(self, step: Step) -> dict[str, Term]:
        batch = step.batch
        with torch.autocast(batch.text_groups.device.type, enabled=False):
            both = torch.stack([_features(step.image_codes), _features(step.text_codes)], dim=1)  # (b, 2, d)
            features = distributed.gather_rows(self.scale * both, step.total).flatten(0, 1)  # (2 B, d)
            groups = distributed.gather_rows(torch.stack([batch.image_groups, batch.text_groups], dim=1), step.total)
            targets = self._classes(groups.flatten())  # (2 B,)
            random = distributed.shared_generator(features.device)
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
            raise RecipeError("the instance loss has no pseudo-categories yet; call `assign` first")
        return classes

    def _dropped(self, features: Tensor, random: torch.Generator | None) -> Tensor:
        if not self.training or not self.dropout:
            return features
        kept = torch.rand(features.shape, generator=random, device=features.device) >= self.dropout
        return features * kept / (1 - self.dropout)

    def _others(self, targets: Tensor, random: torch.Generator | None) -> Tensor | None:
        """Random classes that are not in the batch; None: compare all classes."""
        if self.sampled is None:
            return None
        order = torch.randperm(self.classifier.classes, generator=random, device=targets.device)
        return order[~torch.isin(order, targets)][: self.sampled]


def _features(codes: Codes) -> Tensor:
    if codes.embedding is None:
        raise RecipeError("the instance loss classifies one vector an item, and this matcher has none; use dual-path")
    return widen(codes.embedding)
