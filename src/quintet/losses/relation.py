"""HREM's loss: relations among the instances of a batch in training, plain embeddings at inference.

In the order of the paper: fragments of every image and text are matched (Eq. 7, 8); connections and relevance make a
graph of the batch (Eq. 5 to 10); embeddings interact along it (Eq. 12); the loss compares initial and enhanced
embeddings (Eq. 11, 14).

Fu, Mao, Song, Zhang: Learning Semantic Relationship among Instances for Image-Text Matching, CVPR 2023.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet import distributed
from quintet.codes import Codes
from quintet.errors import RecipeError
from quintet.layers.fragment_attention import attention_heads, transformer_layer
from quintet.layers.normalize import l2norm, widen
from quintet.losses.distance_weighted import sampled_triplet
from quintet.losses.step import Progress, Step, Term

Matching = Literal["dot", "cosine", "scan"]
SLOPE = 0.1  # of the leaky ReLU of "scan"


def match_fragments(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    region_mask: Tensor,
    *,
    top: int = 10,
    matching: Matching = "dot",
    count_padding: bool = False,
) -> Tensor:
    """(T, I, 2, 1 + K): the overall value p and the best matches q of every pair, for I -> T and then for T -> I.

    A region is matched with its best word, a word with its best region. p is the mean of these values (Eq. 7), q the
    `top` largest in falling order (Eq. 8), filled up with 0 for texts of fewer words or images of fewer regions.

    - `matching`: "dot" is the paper's product of a region and a word, "cosine" the same with both of unit length,
      "scan" the released code's: unit length, leaky ReLU, then unit length over words (T -> I) or regions (I -> T).
    - `count_padding`: as in the released code, padded regions count like real ones, and a text with fewer than
      `top` words is filled up with padded ones.

    >>> words, regions = torch.eye(3)[None, :2], torch.eye(3)[None, 1:]
    >>> real = torch.ones(1, 2, dtype=torch.bool)
    >>> match_fragments(words, real, regions, real, top=3)[0, 0].tolist()
    [[0.5, 1.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0]]
    """
    taken = word_mask  # (T, W): the candidates for q
    if count_padding:
        position = torch.arange(words.shape[1], device=words.device)
        taken = position < word_mask.sum(dim=1, keepdim=True).clamp(min=top)
        region_mask = torch.ones_like(region_mask)
    if matching != "dot":
        words, regions = l2norm(words), l2norm(regions)
    products = (words.flatten(0, 1) @ regions.flatten(0, 1).T).unflatten(0, words.shape[:2])  # (T, W, I R)
    products = products.unflatten(2, regions.shape[:2])  # (T, W, I, R)
    of_word, of_region = products, products
    if matching == "scan":
        leaky = F.leaky_relu(products, SLOPE)
        inside = taken[:, :, None, None] & region_mask  # (T, W, I, R)
        leaky = leaky.masked_fill(~inside, 0)
        of_word, of_region = l2norm(leaky, dim=1), l2norm(leaky, dim=3)
    best_region = _highest(of_word, region_mask, dim=3).transpose(1, 2)  # (T, W, I) -> (T, I, W)
    best_word = _highest(of_region, word_mask[:, :, None, None], dim=1)  # (T, I, R)
    from_image = _summary(best_word, region_mask, region_mask, top)  # (T, I, 1 + K)
    from_text = _summary(best_region, word_mask[:, None], taken[:, None], top)
    return torch.stack([from_image, from_text], dim=2)  # (T, I, 2, 1 + K)


def _highest(values: Tensor, real: Tensor, dim: int) -> Tensor:
    """The largest real value along `dim`; 0 if none is real."""
    highest = values.masked_fill(~real, -math.inf).amax(dim=dim)
    return highest.masked_fill(highest == -math.inf, 0)


def _summary(best: Tensor, real: Tensor, taken: Tensor, top: int) -> Tensor:
    """(T, I, L) -> (T, I, 1 + K): the mean over `real` fragments, and the largest of the `taken` ones."""
    mean = best.masked_fill(~real, 0).sum(dim=2) / real.sum(dim=-1).clamp(min=1)  # (T, I)
    ranked = best.masked_fill(~taken, -math.inf).topk(min(top, best.shape[2]), dim=2).values
    ranked = F.pad(ranked.masked_fill(ranked == -math.inf, 0), (0, top - ranked.shape[2]))  # (T, I, K)
    return torch.cat([mean[..., None], ranked], dim=2)


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

    - `neighbours` (tau): the fraction of a block's columns that a row is connected with, including itself.
    - `top` (K): the length of a matching vector.
    - `sigma`, `distance`: relevance within a modality is exp(-|a - b|^2 / sigma) ("squared", Eq. 10) or, as in the
      released code, exp(-|a - b| / sigma) ("plain"). Eq. 10 as printed swaps the modalities; each uses its own here.

    Connections have no gradient. The two MLPs start with equal weights.
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
        if rows is columns:  # zero by definition; rounding errors would be large after the square root
            squared = squared.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), 0)
        squared = squared.clamp(min=0)
        if self.distance == "squared":
            return (-squared / self.sigma).exp()
        apart = squared > 0  # the root has no gradient at zero
        distance = torch.where(apart, squared, 1).sqrt().masked_fill(~apart, 0)
        return (-distance / self.sigma).exp()

    def regularisation(self, graph: AssociationGraph, images: Tensor, texts: Tensor) -> Tensor:
        """(N,): KL of the learned relevance between modalities from that of the embeddings, both softmaxed (Eq. 11).

        Row i belongs to image i and text i. The relevance of the embeddings is the target: it has no gradient.
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
    """(n, m) bool: the `fraction` x m most similar columns of each row, at least one, with all ties (Eq. 5, 6).

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


Relations = Literal["both", "inter", "intra"]


class FusionInteraction(nn.Module):
    """Images and texts as one sequence: relations within and across modalities at once (Figure 4b).

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

    In each of L layers an image attends to connected texts, then to connected images, then passes a feed-forward part;
    texts do the same in a branch of their own. Both branches read the input of the layer, so neither is ahead of the
    other. Every part has a residual connection and a layer normalisation after it.
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


class RelationObjective(nn.Module):
    """Matching losses of initial and relation-enhanced embeddings (Eq. 14), and the regularisation of Eq. 11.

    Requirements: a matcher whose Codes have an embedding and, in training, the fragments before pooling (hrem, or vse++
    and clip with `keep_fragments: true`).

    Terms, one value for each anchor pair, the sum of both directions: `initial` L(v, u); after the warm-up also
    `enhanced` L(v', u'), `enhanced_images` L(v', u), `enhanced_texts` L(v, u') and `regularisation`. For the log, with
    weight 0, `without_candidates` counts how often no negative could be drawn for an anchor.

    The graph: `mechanism` "fusion" or "standalone" with `layers` (L), `heads`, `hidden`, `dropout`; `neighbours` (tau);
    `relevance_weight` (lambda); `top` (K); `sigma`. The loss: `margin`, `nearest`, `farthest` and `sampling_dim`
    (default: that of the embeddings) of `sampled_triplet`; `regularisation`, its weight; relations start after
    `warmup_epochs` epochs and `warmup_steps` steps.

    Released code instead of the paper: `matching: scan`, `distance: plain`, `detach_fragments: true` (the graph then
    learns from fragments without changing them), `count_padding: true`, `regularisation: 10`, `sampling_dim: 512`,
    `warmup_steps: 8000`.

    Ablations: `relations` "both", "inter", "intra" or "none"; `neighbours: 1` connects everything;
    `relevance_weight: 0` leaves relevance out. `consistency: false` leaves out the brackets of Eq. 14: after the
    warm-up L(v', u') trains alone (L(v, u) is still logged). `consistency: initial` leaves out L(v', u) and L(v, u')
    only, as the released code with `cross_loss 0`.

    Several processes: the graph spans the global batch, and every process returns the values of its own anchors.
    """

    def __init__(
        self,
        embed_dim: int,
        mechanism: str = "fusion",
        layers: int = 1,
        heads: int | None = None,
        hidden: int | None = None,
        dropout: float = 0.1,
        neighbours: float = 0.5,
        relevance_weight: float = 1.5,
        top: int = 10,
        sigma: float = 1.0,
        matching: Matching = "dot",
        distance: Distance = "squared",
        detach_fragments: bool = False,
        count_padding: bool = False,
        relations: Relations | str = "both",
        consistency: bool | Literal["initial"] = True,
        regularisation: float = 1.0,
        margin: float = 0.2,
        nearest: float = 0.5,
        farthest: float | None = 1.7,
        sampling_dim: int | None = None,
        warmup_epochs: float = 0.0,
        warmup_steps: int = 0,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if matching not in ("dot", "cosine", "scan"):
            raise ValueError(f"matching is 'dot', 'cosine' or 'scan', not {matching!r}")
        if consistency not in (True, False, "initial"):
            raise ValueError(f"consistency is true, false or 'initial', not {consistency!r}")
        self.graph: AssociationGraphBuilder | None = None
        if relations != "none":
            self.graph = AssociationGraphBuilder(top, neighbours, sigma, distance)
            self.interaction = create_interaction(mechanism, embed_dim, layers, heads, hidden, dropout, relations)  # type: ignore[arg-type]
        self.relevance_weight = relevance_weight
        self.matching: Matching = matching
        self.top, self.detach_fragments, self.count_padding = top, detach_fragments, count_padding
        self.consistency, self.regularisation = consistency, regularisation
        self.sampling = {"dim": sampling_dim or embed_dim, "margin": margin, "nearest": nearest, "farthest": farthest}
        self.warmup_epochs, self.warmup_steps = warmup_epochs, warmup_steps
        self.margin, self.weight = margin, weight

    def forward(self, step: Step) -> dict[str, Term]:
        # Relations, scores and hinges are float32, even if the encoders ran in bfloat16.
        with torch.autocast(step.batch.text_groups.device.type, enabled=False):
            images = distributed.gather_rows(_embedding(step.image_codes), step.total)  # (N, d)
            texts = distributed.gather_rows(_embedding(step.text_codes), step.total)
            random = distributed.shared_generator(images.device)
            cost, without = self._cost(step, images, texts, random)
            warm = step.phase_of(self)
            weight = self.weight if self.consistency or not warm else 0.0
            terms = {"initial": Term(cost, weight, collapse_value=2 * self.margin)}
            if warm:
                more, further = self._relation_terms(step, images, texts, random)
                terms, without = terms | more, without + further
            return terms | {"without_candidates": Term(without, 0.0)}

    def phase(self, progress: Progress) -> bool:
        """Whether relations are on."""
        if self.graph is None:
            return False
        return progress.epoch >= self.warmup_epochs and progress.step >= self.warmup_steps

    def _relation_terms(
        self, step: Step, images: Tensor, texts: Tensor, random: torch.Generator | None
    ) -> tuple[dict[str, Term], Tensor]:
        """The terms of enhanced embeddings, and (n,): how often an anchor had no candidate in them."""
        assert self.graph is not None
        graph = self.graph(images, texts, self._matches(step))
        enhanced = self.interaction(images, texts, graph.bias(self.relevance_weight))
        images_, texts_ = (F.normalize(nodes, dim=1) for nodes in enhanced)  # (N, d) twice
        compared = {"enhanced": (images_, texts_)}
        if self.consistency is True:
            compared |= {"enhanced_images": (images_, texts), "enhanced_texts": (images, texts_)}
        costs = {name: self._cost(step, *pair, random) for name, pair in compared.items()}
        named = {name: Term(values, self.weight) for name, (values, _) in costs.items()}
        if self.regularisation:
            divergence = self.graph.regularisation(graph, images, texts)[step.mine]
            # The sum over anchors is a mean over the batch.
            named["regularisation"] = Term(divergence, self.weight * self.regularisation / step.total)
        return named, torch.stack([without for _, without in costs.values()]).sum(dim=0)

    def _matches(self, step: Step) -> Tensor:
        """(N texts, N images, 2, 1 + K): each process matches its own texts against all images."""
        image_codes, text_codes = (_with_fragments(codes) for codes in (step.image_codes, step.text_codes))
        if self.detach_fragments:
            image_codes, text_codes = image_codes.detach(), text_codes.detach()
        all_images = distributed.gather_codes(image_codes, step.total)
        assert all_images.fragments is not None
        assert text_codes.fragments is not None
        rows = match_fragments(
            text_codes.fragments,
            text_codes.real(),
            all_images.fragments,
            all_images.real(),
            top=self.top,
            matching=self.matching,
            count_padding=self.count_padding,
        )
        return distributed.gather_rows(rows, step.total)

    def _cost(self, step: Step, images: Tensor, texts: Tensor, random: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """(n,) twice: the costs of this process's anchors, both directions, and how many had no candidate."""
        scores = images @ texts.T  # (N, N)
        uniform = torch.rand((2, *scores.shape), generator=random, device=scores.device, dtype=scores.dtype)
        text, no_text = sampled_triplet(scores, step.same_group, uniform[0], **self.sampling)  # type: ignore[arg-type]
        image, no_image = sampled_triplet(scores.T, step.same_group.T, uniform[1], **self.sampling)  # type: ignore[arg-type]
        return (text + image)[step.mine], (no_text.to(scores.dtype) + no_image)[step.mine]


def _embedding(codes: Codes) -> Tensor:
    if codes.embedding is None:
        raise RecipeError("the relation loss needs a matcher with one vector an item; use it with hrem or vse++")
    return widen(codes.embedding).contiguous()


def _with_fragments(codes: Codes) -> Codes:
    if codes.fragments is None:
        raise RecipeError(
            "the relation loss reads fragments before pooling, and this matcher keeps none in training; "
            "use it with hrem, with vse++ or clip and matcher.keep_fragments=true, or set relations: none"
        )
    return Codes(fragments=widen(codes.fragments), mask=codes.mask)
