"""HREM's objective: relations among the instances of a batch in training, plain embeddings at inference.

Fu, Mao, Song, Zhang: Learning Semantic Relationship among Instances for Image-Text Matching, CVPR 2023.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet import processes
from quintet.codes import Codes
from quintet.errors import RecipeError
from quintet.layers.fragment_matching import Matching, match_fragments
from quintet.layers.relation_attention import Relations, create_interaction
from quintet.layers.relation_graph import AssociationGraphBuilder, Distance
from quintet.losses.distance_weighted import sampled_triplet
from quintet.losses.step import Progress, Step, Term


class RelationObjective(nn.Module):
    """Matching losses of initial and relation-enhanced embeddings (HREM Eq. 14), and the regularisation of Eq. 11.

    Requirements: a matcher whose Codes carry an embedding and, in training, its fragments before pooling (hrem).

    Terms, one value an anchor pair, both directions added: `initial` L(v, u); after the warm-up also `enhanced`
    L(v', u'), `enhanced_images` L(v', u), `enhanced_texts` L(v, u') and `regularisation`. `without_candidates` (weight
    0, for the log) counts the times that nothing could be drawn for an anchor: both directions of all these losses.

    The graph: `mechanism` "fusion" or "standalone" with `layers` (L), `heads`, `hidden`, `dropout`; `neighbours` (tau);
    `relevance_weight` (lambda); `top` (K); `sigma`. The loss: `margin`, `nearest`, `farthest` and `sampling_dim`
    (default: that of the embeddings) of `sampled_triplet`; `regularisation`, its weight; relations start after
    `warmup_epochs` epochs and `warmup_steps` steps.

    Released code instead of the paper: `matching: scan`, `distance: plain`, `detach_fragments: true` (the graph then
    learns from fragments without changing them), `count_padding: true`, `regularisation: 10`, `sampling_dim: 512`,
    `warmup_steps: 8000`.

    Ablations: `relations` "both", "inter", "intra" or "none"; `neighbours: 1` connects everything;
    `relevance_weight: 0` leaves relevance out; `consistency: false` leaves out what Eq. 14 has in brackets, so
    that after the warm-up L(v', u') trains alone (L(v, u) is still logged).

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
        consistency: bool = True,
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
        # Relations, scores and hinges in float32, also where the encoders ran in bfloat16.
        with torch.autocast(step.batch.text_groups.device.type, enabled=False):
            images = processes.gather_rows(_embedding(step.image_codes), step.total)  # (N, d)
            texts = processes.gather_rows(_embedding(step.text_codes), step.total)
            random = processes.shared_generator(images.device)
            cost, without = self._cost(step, images, texts, random)
            warm = self.phase(step.progress)
            weight = self.weight if self.consistency or not warm else 0.0
            terms = {"initial": Term(cost, weight, flat=2 * self.margin)}
            if warm:
                more, further = self._relation_terms(step, images, texts, random)
                terms, without = terms | more, without + further
            return terms | {"without_candidates": Term(without, 0.0)}

    def phase(self, progress: Progress) -> bool:
        """Whether relations have started, where there are any."""
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
        if self.consistency:
            compared |= {"enhanced_images": (images_, texts), "enhanced_texts": (images, texts_)}
        costs = {name: self._cost(step, *pair, random) for name, pair in compared.items()}
        named = {name: Term(values, self.weight) for name, (values, _) in costs.items()}
        if self.regularisation:
            divergence = (
                self.graph.regularisation(graph, images, texts)[step.mine] / step.total
            )  # a mean over the batch
            named["regularisation"] = Term(divergence, self.weight * self.regularisation)
        return named, torch.stack([without for _, without in costs.values()]).sum(dim=0)

    def _matches(self, step: Step) -> Tensor:
        """(N texts, N images, 2, 1 + K): each process matches its own sentences with all pictures."""
        image_codes, text_codes = (_with_fragments(codes) for codes in (step.image_codes, step.text_codes))
        if self.detach_fragments:
            image_codes, text_codes = image_codes.detach(), text_codes.detach()
        all_images = processes.gather_codes(image_codes, step.total)
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
        return processes.gather_rows(rows, step.total)

    def _cost(self, step: Step, images: Tensor, texts: Tensor, random: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """(n,) twice: the costs of this process's anchors, both directions, and how many had no candidate."""
        scores = images @ texts.T  # (N, N)
        uniform = torch.rand((2, *scores.shape), generator=random, device=scores.device, dtype=scores.dtype)
        text, no_text = sampled_triplet(scores, step.same_group, uniform[0], **self.sampling)  # type: ignore[arg-type]
        image, no_image = sampled_triplet(scores.T, step.same_group.T, uniform[1], **self.sampling)  # type: ignore[arg-type]
        return (text + image)[step.mine], (no_text.to(scores.dtype) + no_image)[step.mine]


def _embedding(codes: Codes) -> Tensor:
    if codes.embedding is None:
        raise RecipeError("the relation loss needs a matcher with one vector an item; use it with hrem")
    return _single(codes.embedding).contiguous()


def _with_fragments(codes: Codes) -> Codes:
    if codes.fragments is None:
        raise RecipeError(
            "the relation loss reads fragments before pooling, and this matcher keeps none in training; "
            "use it with hrem, or set relations: none"
        )
    return Codes(fragments=_single(codes.fragments), mask=codes.mask)


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
