"""The two ways in which embeddings of a batch exchange what they know along their relations (HREM section 3.3.2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from quintet.layers.fragment_attention import attention_heads, transformer_layer

Relations = Literal["both", "inter", "intra"]


class FusionInteraction(nn.Module):
    """Pictures and sentences as one sequence: relations within and across modalities at once (Figure 4b).

    L post-norm Transformer layers with attention softmax(Q K^T / sqrt(d_k) + lambda S) over what A connects (Eq. 12).
    """

    def __init__(
        self,
        dim: int,
        layers: int = 1,
        heads: int | None = None,
        hidden: int | None = None,
        dropout: float = 0.1,
        relations: Relations = "both",
    ) -> None:
        super().__init__()
        self.relations = relations
        self.layers = nn.ModuleList(transformer_layer(dim, heads, hidden, dropout) for _ in range(layers))

    def forward(self, images: Tensor, texts: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(N, d), (N, d) and the bias of the graph (2 N, 2 N) -> enhanced (N, d), (N, d), not normalised."""
        nodes = torch.cat([images, texts])[None]  # (1, 2 N, d)
        if self.relations != "both":
            side = torch.arange(nodes.shape[1], device=bias.device) < len(images)
            same = side[:, None] == side  # (2 N, 2 N)
            bias = bias.masked_fill(same if self.relations == "inter" else ~same, -torch.inf)
        for layer in self.layers:
            nodes = layer(nodes, src_mask=bias)
        return nodes[0, : len(images)], nodes[0, len(images) :]


class StandaloneInteraction(nn.Module):
    """Two branches: first across modalities, then within each (Figure 4a).

    In each of L layers a picture attends to the sentences it is connected with, then to the pictures, and goes through
    a feed-forward part; sentences do the same in a branch of their own. Both branches look at the layer's input, so
    that neither is ahead of the other. Residual connections and layer normalisation come after every part.
    """

    def __init__(
        self,
        dim: int,
        layers: int = 1,
        heads: int | None = None,
        hidden: int | None = None,
        dropout: float = 0.1,
        relations: Relations = "both",
    ) -> None:
        super().__init__()
        settings = (dim, attention_heads(dim, heads), hidden or dim, dropout, relations)
        self.images = nn.ModuleList(_Branch(*settings) for _ in range(layers))
        self.texts = nn.ModuleList(_Branch(*settings) for _ in range(layers))

    def forward(self, images: Tensor, texts: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(N, d), (N, d) and the bias of the graph (2 N, 2 N) -> enhanced (N, d), (N, d), not normalised."""
        count = len(images)
        upper, lower = bias[:count], bias[count:]
        for image_branch, text_branch in zip(self.images, self.texts, strict=True):
            images, texts = (
                image_branch(images, texts, across=upper[:, count:], within=upper[:, :count]),
                text_branch(texts, images, across=lower[:, :count], within=lower[:, count:]),
            )
        return images, texts


class _Branch(nn.Module):
    """One layer of one modality."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float, relations: Relations) -> None:
        super().__init__()
        self.inter = _Attention(dim, heads, dropout) if relations != "intra" else None
        self.intra = _Attention(dim, heads, dropout) if relations != "inter" else None
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, dim), nn.Dropout(dropout)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, nodes: Tensor, others: Tensor, across: Tensor, within: Tensor) -> Tensor:
        if self.inter is not None:
            nodes = self.inter(nodes, others, across)
        if self.intra is not None:
            nodes = self.intra(nodes, nodes, within)
        return self.norm(nodes + self.feed_forward(nodes))


class _Attention(nn.Module):
    """Multi-head attention with a bias, residual connection and normalisation."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, queries: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """(n, d), (m, d), (n, m) -> (n, d)."""
        inputs = (queries[None], values[None], values[None])
        attended, _ = self.attention(*inputs, attn_mask=bias, need_weights=False)  # (1, n, d)
        return self.norm(queries + self.dropout(attended[0]))


def create_interaction(
    mechanism: str,
    dim: int,
    layers: int = 1,
    heads: int | None = None,
    hidden: int | None = None,
    dropout: float = 0.1,
    relations: Relations = "both",
) -> nn.Module:
    """`fusion` or `standalone`. `relations` restricts either to one kind (the paper's ablation)."""
    makers: dict[str, type[nn.Module]] = {"fusion": FusionInteraction, "standalone": StandaloneInteraction}
    if mechanism not in makers:
        raise ValueError(f"there is no mechanism {mechanism!r}; choose one of: {', '.join(makers)}")
    if relations not in ("both", "inter", "intra"):
        raise ValueError(f"relations are 'both', 'inter' or 'intra', not {relations!r}")
    if layers < 1:
        raise ValueError(f"the interaction needs at least one layer, got {layers}")
    return makers[mechanism](dim, layers, heads, hidden, dropout, relations)
