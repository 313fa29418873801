"""The cross-embedding association graph of a batch: who is connected with whom, and how much (HREM section 3.3.1).

Nodes are the embeddings of N pictures and then of their N sentences, so that both matrices have four blocks (Eq. 4):

    [ I -> I   I -> T ]
    [ T -> I   T -> T ]
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Distance = Literal["squared", "plain"]


@dataclass(frozen=True)
class AssociationGraph:
    connected: Tensor  # (2 N, 2 N) bool: A, row attends to column
    relevance: Tensor  # (2 N, 2 N): S

    def bias(self, weight: float) -> Tensor:
        """(2 N, 2 N): what Eq. 12 adds to attention logits: lambda S where connected, minus infinity elsewhere."""
        return (weight * self.relevance).masked_fill(~self.connected, -torch.inf)


class AssociationGraphBuilder(nn.Module):
    """Connections (Eq. 5 to 7) and relevance (Eq. 8 to 10) of a batch.

    - `neighbours` (tau): the fraction of a block's columns that a row is connected with, itself among them.
    - `top` (K): the length of a matching vector.
    - `sigma`, `distance`: relevance within a modality is exp(-|a - b|^2 / sigma) ("squared", Eq. 10) or, as in the
      released code, exp(-|a - b| / sigma) ("plain"). Eq. 10 as printed swaps the modalities; each uses its own here.

    Connections carry no gradient. The two MLPs start alike.
    """

    def __init__(
        self, top: int = 10, neighbours: float = 0.5, sigma: float = 1.0, distance: Distance = "squared"
    ) -> None:
        super().__init__()
        if not 0 < neighbours <= 1:
            raise ValueError(f"neighbours is a fraction above 0 and up to 1, got {neighbours}")
        if top < 1 or sigma <= 0 or distance not in ("squared", "plain"):
            raise ValueError(
                f"top must be at least 1, sigma above 0, distance 'squared' or 'plain': {top, sigma, distance}"
            )
        self.neighbours, self.sigma, self.distance = neighbours, sigma, distance
        self.image_to_text = nn.Sequential(nn.Linear(top, top), nn.ReLU(), nn.Linear(top, 1))
        self.text_to_image = copy.deepcopy(self.image_to_text)

    def forward(self, images: Tensor, texts: Tensor, matches: Tensor) -> AssociationGraph:
        """Unit embeddings (N, d) twice, and the result of `match_fragments` (N texts, N images, 2, 1 + K)."""
        from_image, from_text = matches[:, :, 0].transpose(0, 1), matches[:, :, 1]  # (I, T, 1 + K), (T, I, 1 + K)
        blocks = [(images @ images.T, from_image[..., 0]), (from_text[..., 0], texts @ texts.T)]
        connected = [torch.cat([nearest(block, self.neighbours) for block in row], dim=1) for row in blocks]
        within_images, within_texts = self.closeness(images, images), self.closeness(texts, texts)
        upper = torch.cat([within_images, matching_relevance(self.image_to_text, from_image)], dim=1)
        lower = torch.cat([matching_relevance(self.text_to_image, from_text), within_texts], dim=1)
        return AssociationGraph(torch.cat(connected), torch.cat([upper, lower]))  # (2 N, 2 N) twice

    def closeness(self, rows: Tensor, columns: Tensor) -> Tensor:
        """exp(-distance / sigma) of every two embeddings (Eq. 10)."""
        squared = rows.square().sum(1)[:, None] + columns.square().sum(1) - 2 * rows @ columns.T
        if rows is columns:  # zero by definition; rounding would leave some distance, large after a square root
            squared = squared.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), 0)
        squared = squared.clamp(min=0)
        if self.distance == "squared":
            return (-squared / self.sigma).exp()
        apart = squared > 0  # the root has no gradient at zero
        distance = torch.where(apart, squared, 1).sqrt().masked_fill(~apart, 0)
        return (-distance / self.sigma).exp()

    def regularisation(self, graph: AssociationGraph, images: Tensor, texts: Tensor) -> Tensor:
        """(N,): KL of the learned relevance between modalities from that of the embeddings, both softmaxed (Eq. 11).

        Row i is of picture i and of sentence i. The embeddings are the guide: no gradient goes into them.
        """
        count = len(images)
        with torch.no_grad():
            guide = self.closeness(images, texts)  # (I, T)
        from_image, from_text = graph.relevance[:count, count:], graph.relevance[count:, :count]
        return row_divergence(from_image, guide) + row_divergence(from_text, guide.T)


def matching_relevance(mlp: nn.Module, matches: Tensor) -> Tensor:
    """s = MLP(q) + p of every pair (Eq. 9): (..., 1 + K) -> (...)."""
    return mlp(matches[..., 1:]).squeeze(-1) + matches[..., 0]


def nearest(similarity: Tensor, fraction: float) -> Tensor:
    """(n, m) bool: in each row the first `fraction` x m by similarity, at least one; ties are all in (Eq. 5, 6).

    >>> nearest(torch.tensor([[0.1, 0.9, 0.5, 0.3], [1.0, 0.0, 1.0, 1.0]]), 0.5).int().tolist()
    [[0, 1, 1, 0], [1, 0, 1, 1]]
    """
    similarity = similarity.detach()
    count = max(1, int(fraction * similarity.shape[1]))
    return similarity >= similarity.topk(count, dim=1).values[:, -1:]


def row_divergence(learned: Tensor, guide: Tensor) -> Tensor:
    """(n,): KL(softmax(learned) || softmax(guide)) of each row."""
    log_learned, log_guide = learned.log_softmax(dim=1), guide.log_softmax(dim=1)
    return (log_learned.exp() * (log_learned - log_guide)).sum(dim=1)
