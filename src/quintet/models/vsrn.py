"""VSRN: regions reason about their relations, then are read in order into one vector for the image.

Li, Zhang, Li, Li, Fu: Visual Semantic Reasoning for Image-Text Matching, ICCV 2019.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError, suggest
from quintet.layers.normalize import l2norm, masked_batchnorm, widen
from quintet.layers.regions import RegionProjection
from quintet.layers.text import LastStateGRU
from quintet.scores import dot_score_pairs, dot_scores


class RegionRelation(nn.Module):
    """One residual block of graph convolution over all pairs of regions (VSRN Eq. 2 and 3).

        R = theta(V) phi(V)^T / N          affinity of every pair of regions, no softmax
        V* = BatchNorm(project(R g(V))) + V

    N is the number of real regions of an image. Padded ones take no part and are left out of the batch statistics. The
    BatchNorm starts with weight and bias 0, so a new block returns its input.

    >>> block = RegionRelation(4)
    >>> regions = torch.randn(2, 3, 4)
    >>> torch.equal(block(regions), regions)
    True
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.g = nn.Linear(dim, dim)
        self.theta = nn.Linear(dim, dim)
        self.phi = nn.Linear(dim, dim)
        self.project = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(self, regions: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L, d) and a mask (n, L), True where a region is real -> (n, L, d), padded regions zero."""
        values = self.g(regions)  # (n, L, d)
        counts = torch.full((len(regions), 1, 1), regions.shape[1], device=regions.device)
        if mask is not None:
            values = values * mask[..., None]
            counts = mask.sum(dim=1).clamp(min=1)[:, None, None]  # (n, 1, 1)
        affinity = self.theta(regions) @ self.phi(regions).transpose(1, 2) / counts  # (n, L, L)
        change = self._normalise(self.project(affinity @ values), mask)  # (n, L, d)
        related = regions + change
        return related if mask is None else related * mask[..., None]

    def _normalise(self, regions: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or not self.training:  # running statistics are of real regions already
            return self.norm(regions.flatten(0, 1)).view_as(regions)  # (n, L, d)
        return masked_batchnorm(self.norm, regions, mask)


def set_memory(gru: nn.GRU, positions: int) -> None:
    """Initialise the update gates of a GRU so that its channels remember 2 to `positions` positions, evenly spread.

    The update is h = (1 - z) n + z h, so a gate of z remembers about 1 / (1 - z) positions. torch starts at z = 1/2:
    the last state holds the last two positions, and the biases need thousands of steps before a whole sequence is
    read. Here they start at log(m - 1), for which 1 / (1 - z) = m (Tallec, Ollivier: Can recurrent neural networks
    warp time?, ICLR 2018, who draw m at random).

    >>> gru = nn.GRU(3, 2)
    >>> set_memory(gru, positions=10)
    >>> (1 / (1 - gru.bias_ih_l0[2:4].sigmoid())).round(decimals=4).tolist()
    [2.0, 10.0]
    """
    if positions < 2:
        raise ValueError(f"a GRU remembers at least 2 positions, got {positions}")
    update = slice(gru.hidden_size, 2 * gru.hidden_size)  # torch keeps the gates as reset, update, new
    spans = torch.linspace(2, positions, gru.hidden_size)
    with torch.no_grad():
        for name, parameter in gru.named_parameters():
            if name.startswith("bias_ih"):
                parameter[update] = (spans - 1).log()
            elif name.startswith("bias_hh"):
                parameter[update] = 0


NormaliseOver = Literal["channels", "regions"]

# The two published settings differ in these arguments.
VARIANTS: dict[str, dict[str, bool]] = {
    "f30k": {"normalise_input": False, "final_batchnorm": True},
    "coco": {"normalise_input": True, "final_batchnorm": False},
}


class VSRNImageEncoder(nn.Module):
    """Projection, region relation reasoning (Eq. 1 to 3), global semantic reasoning by a GRU (Eq. 4 to 7)."""

    def __init__(
        self,
        image_dim: int,
        embed_dim: int,
        blocks: int,
        normalise_input: bool,
        final_batchnorm: bool,
        normalise_over: NormaliseOver,
        dropout: float = 0.0,
        normalise: bool = True,
        absolute: bool = False,
    ) -> None:
        super().__init__()
        self.projection = RegionProjection(image_dim, embed_dim, dropout=dropout)
        self.relations = nn.ModuleList(RegionRelation(embed_dim) for _ in range(blocks))
        self.rnn = nn.GRU(embed_dim, embed_dim, batch_first=True)
        self.norm = nn.BatchNorm1d(embed_dim) if final_batchnorm else None
        self.normalise_input, self.normalise, self.absolute = normalise_input, normalise, absolute
        self.axis = {"channels": 2, "regions": 1}[normalise_over]

    def forward(self, regions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """(n, L, image_dim) -> embedding (n, d), reasoned regions (n, L, d) and their mask, real ones first."""
        if not len(regions):
            width = self.projection.fc.out_features
            return regions.new_zeros((0, width)), regions.new_zeros((*regions.shape[:2], width)), mask
        if mask is not None:
            regions, mask = _real_first(regions, mask)
        related = self.projection(regions, mask)  # (n, L, d), padded regions zero
        if self.normalise_input:
            related = l2norm(related, dim=self.axis, eps=0)
        for block in self.relations:
            related = block(related, mask)
        related = l2norm(related, dim=self.axis, eps=0)
        embedding = self._read(related, mask)  # (n, d)
        if self.norm is not None:
            embedding = self.norm(embedding)
        if self.normalise:
            embedding = _unit(embedding)
        return embedding.abs() if self.absolute else embedding, related, mask

    def _read(self, related: Tensor, mask: Tensor | None) -> Tensor:
        """(n, d): the state of the GRU after the last real region."""
        states, last = self.rnn(related)  # (n, L, d), (1, n, d)
        if mask is None:
            return last[0]
        at = (mask.sum(dim=1) - 1).clamp(min=0)  # (n,)
        return states[torch.arange(states.shape[0], device=at.device), at]


class VSRN(nn.Module):
    """An embedding matcher: the score of a pair is the cosine of its two vectors.

    In training the Codes of images also have the reasoned regions as `fragments`, which the caption loss reads. In
    evaluation they are left out: an index has one vector an image.
    """

    image_input: Literal["fragments", "pixels"] = "fragments"

    def __init__(self, image_encoder: VSRNImageEncoder, text_encoder: LastStateGRU, absolute: bool = False) -> None:
        super().__init__()
        self.absolute = absolute
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.embed_dim = self.region_dim = text_encoder.dim  # of Codes.embedding and of Codes.fragments

    def encode_images(self, images: ImageBatch) -> Codes:
        if images.fragments is None:
            raise RecipeError("VSRN reads features of regions, and this batch holds pixels; extract features first")
        embedding, regions, mask = self.image_encoder(images.fragments, images.mask)
        if self.training:
            return Codes(embedding=embedding, fragments=regions, mask=mask)
        return Codes(embedding=embedding)

    def encode_texts(self, texts: TextBatch) -> Codes:
        embedding = _unit(self.text_encoder(texts.tokens, texts.lengths))
        return Codes(embedding=embedding.abs() if self.absolute else embedding)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)


def build_vsrn(
    *,
    image_dim: int = 2048,
    vocabulary_size: int,
    embed_dim: int = 2048,
    word_dim: int = 300,
    variant: Literal["f30k", "coco"] = "f30k",
    normalise_input: bool | None = None,
    final_batchnorm: bool | None = None,
    normalise_over: NormaliseOver = "channels",
    blocks: int = 4,
    dropout: float = 0.0,
    image_dropout: float = 0.0,
    region_memory: int | None = None,
    word_memory: int | None = None,
    gru_layers: int = 1,
    normalise_images: bool = True,
    absolute: bool = False,
) -> VSRN:
    """VSRN in one of its two published variants, or between them.

    - `variant`: "f30k" takes the projected regions as they are and normalises the image's vector over the batch;
      "coco" makes the projected regions unit length first and has no such normalisation.
    - `normalise_input`, `final_batchnorm`: either of the two by itself, instead of what the variant says.
    - `normalise_over`: "channels" makes every region a unit vector, as the paper says; "regions" divides every channel
      by its length over the regions of the image, as the released code does (needed for its checkpoints).
    - `dropout` drops channels of word embeddings in training, `image_dropout` those of regions; the paper has neither.
    - `region_memory`, `word_memory`: how many positions the GRU over the regions, and the one over the words, remembers
      before training (`set_memory`). Left out, as in the released code, it is two.
    - `gru_layers` of the words, `normalise_images` (unit length of the image's vector) and `absolute` (absolute values
      in both vectors) are for converted checkpoints.

    >>> matcher = build_vsrn(image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4, variant="coco").eval()
    >>> matcher.encode_images(ImageBatch(fragments=torch.randn(2, 5, 8))).embedding.shape
    torch.Size([2, 4])
    """
    if variant not in VARIANTS:
        raise RecipeError(f"VSRN has no variant {variant!r}; {suggest(variant, VARIANTS)}")
    if normalise_over not in ("channels", "regions"):
        raise RecipeError(f"normalise_over is 'channels' or 'regions', not {normalise_over!r}")
    published = VARIANTS[variant]
    image_encoder = VSRNImageEncoder(
        image_dim,
        embed_dim,
        blocks,
        normalise_input=published["normalise_input"] if normalise_input is None else normalise_input,
        final_batchnorm=published["final_batchnorm"] if final_batchnorm is None else final_batchnorm,
        normalise_over=normalise_over,
        dropout=image_dropout,
        normalise=normalise_images,
        absolute=absolute,
    )
    text_encoder = LastStateGRU(vocabulary_size, word_dim, embed_dim, False, dropout=dropout, layers=gru_layers)
    for rnn, positions in ((image_encoder.rnn, region_memory), (text_encoder.rnn, word_memory)):
        if positions is not None:
            set_memory(rnn, positions)
    return VSRN(image_encoder, text_encoder, absolute)


def _unit(vectors: Tensor) -> Tensor:
    """(n, d) of length 1."""
    return l2norm(widen(vectors), dim=1, eps=0)


def _real_first(regions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The regions in the same order, but padded ones last."""
    position = torch.arange(mask.shape[1], device=mask.device)  # (L,)
    order = torch.where(mask, position, position + mask.shape[1]).argsort(dim=1)  # (n, L)
    return regions.gather(1, order[..., None].expand_as(regions)), mask.gather(1, order)
