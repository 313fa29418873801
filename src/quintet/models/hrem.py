"""HREM: one vector an item, pooled from fragments after self-attention; relations among items in training only.

Fu, Mao, Song, Zhang: Learning Semantic Relationship among Instances for Image-Text Matching, CVPR 2023.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from quintet.backbones.text_encoder import SmallText, pretrained_text
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.layers.fragment_attention import FragmentAggregation
from quintet.layers.normalize import l2norm, widen
from quintet.layers.regions import RegionProjection
from quintet.layers.text import BiGRUEncoder, GivenWords
from quintet.models.fragments import check_choice
from quintet.scores import dot_score_pairs, dot_scores

Projection = Literal["linear", "mlp"]
Padding = Literal["ignored", "counted"]


class RegionEncoder(nn.Module):
    """Regions to the joint space, and to one vector (section 3.1, Eq. 2)."""

    def __init__(
        self,
        image_dim: int,
        projection: Projection,
        aggregation: FragmentAggregation,
        embed_dim: int,
        padding: Padding,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.projection = RegionProjection(image_dim, embed_dim, mlp=projection == "mlp", dropout=dropout)
        if self.projection.mlp is not None:
            for layer in self.projection.mlp.layers:
                nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.aggregation = aggregation
        self.padding = padding

    def forward(self, regions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(n, L, image_dim) -> embedding (n, d) and projected regions (n, L, d)."""
        projected = self.projection(regions, None if self.padding == "counted" else mask)
        return self.aggregation(projected, mask), projected


class WordEncoder(nn.Module):
    """Words of a GRU or of a BERT-like encoder to the joint space, and to one vector (section 3.1, Eq. 3)."""

    def __init__(self, words: nn.Module, aggregation: FragmentAggregation, embed_dim: int) -> None:
        super().__init__()
        self.words = words
        self.linear = nn.Linear(int(words.dim), embed_dim)  # type: ignore[arg-type]
        self.aggregation = aggregation

    def forward(self, texts: TextBatch) -> tuple[Tensor, Tensor, Tensor]:
        """n texts -> embedding (n, d), projected words (n, L, d) and their mask (n, L)."""
        mask = texts.real()  # (n, L)
        words = texts.features  # (n, L, width)
        if words is None:
            words = self.words(texts.tokens, texts.lengths)  # from a GRU with its mask
        projected = self.linear(words[0] if isinstance(words, tuple) else words)
        return self.aggregation(projected, mask), projected, mask


class HREM(nn.Module):
    """An embedding matcher: the score of a pair is the cosine of its two vectors.

    In training the Codes also have the projected fragments before pooling: the loss `relation` builds the graph of the
    batch from them. In evaluation they are left out.
    """

    image_input: Literal["fragments", "pixels"] = "fragments"

    def __init__(
        self,
        image_encoder: RegionEncoder,
        text_encoder: WordEncoder,
        embed_dim: int,
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        super().__init__()
        self.normalise_images, self.normalise_texts = normalise_images, normalise_texts
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.embed_dim = self.region_dim = embed_dim

    def encode_images(self, images: ImageBatch) -> Codes:
        if images.fragments is None:
            raise RecipeError("HREM reads features of regions, and this batch holds pixels; extract features first")
        embedding, regions = self.image_encoder(images.fragments, images.mask)
        embedding = _unit(embedding) if self.normalise_images else embedding
        if self.training:
            return Codes(embedding=embedding, fragments=regions, mask=images.mask)
        return Codes(embedding=embedding)

    def encode_texts(self, texts: TextBatch) -> Codes:
        embedding, words, mask = self.text_encoder(texts)
        embedding = _unit(embedding) if self.normalise_texts else embedding
        if self.training:
            return Codes(embedding=embedding, fragments=words, mask=mask)
        return Codes(embedding=embedding)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)


def _unit(vectors: Tensor) -> Tensor:
    """(n, d) of length 1."""
    return l2norm(widen(vectors), dim=1)


def build_hrem(
    *,
    image_dim: int = 2048,
    vocabulary_size: int,
    embed_dim: int = 1024,
    word_dim: int = 300,
    text: str = "bigru",
    text_dim: int | None = None,
    text_config: dict[str, Any] | None = None,
    text_pretrained: bool = True,
    projection: Projection = "linear",
    beta: float = 0.8,
    top: int = 1,
    heads: int | None = None,
    hidden: int | None = None,
    dropout: float = 0.1,
    image_dropout: float = 0.0,
    image_relation: bool = True,
    text_relation: bool = True,
    padding: Padding = "ignored",
    normalise_images: bool = True,
    normalise_texts: bool = True,
) -> HREM:
    """HREM's two encoders; the relations among instances are in the loss `relation`.

    - `text`: "bigru" (with `word_dim`), "small" (a small Transformer to train from scratch), "features" (words that
      come with the batch, see the matcher `clip-tokens`), or "hf:FOLDER" or "hf:HUB_NAME" for a BERT-like encoder,
      which is fine-tuned: give it a learning rate of its own with an optimizer group that matches
      "matcher.text_encoder.words.*". `text_dim` is the width of the first three (default: embed_dim).
    - `text_config`, `text_pretrained=False`: make the BERT-like encoder from its configuration, without reading its
      weights; a run keeps both, so that it opens anywhere.
    - `beta`, `top`, `heads`, `hidden`, `dropout`: of the aggregation (Eq. 2 and 3), see `FragmentAggregation`.
    - `image_dropout` hides channels of the regions in training; the paper has none.
    - `image_relation`, `text_relation`: False leaves out the self-attention among regions or words (Table 3a).
    - `normalise_images`, `normalise_texts`: False leaves the vectors as long as they are, for converted checkpoints.

    The released code is `projection="mlp"` (a residual MLP beside the linear map), `top=2` and `padding="counted"`
    (padded regions enter the batch statistics of that MLP and, through its biases, the fragments of the graph).

    >>> import torch
    >>> matcher = build_hrem(image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4).eval()
    >>> images = matcher.encode_images(ImageBatch(fragments=torch.randn(2, 5, 8)))
    >>> matcher.score(images, matcher.encode_texts(TextBatch.from_ids([[1, 5, 2], [1, 2], [3]]))).shape
    torch.Size([2, 3])
    """
    check_choice("projection", projection, Projection)
    check_choice("padding", padding, Padding)
    images, texts = (
        FragmentAggregation(embed_dim, beta, top, heads, hidden, dropout, relation)
        for relation in (image_relation, text_relation)
    )
    words = _words(text, vocabulary_size, word_dim, text_dim or embed_dim, text_config, text_pretrained)
    return HREM(
        RegionEncoder(image_dim, projection, images, embed_dim, padding, image_dropout),
        WordEncoder(words, texts, embed_dim),
        embed_dim,
        normalise_images,
        normalise_texts,
    )


def _words(
    text: str, vocabulary_size: int, word_dim: int, dim: int, config: dict[str, Any] | None, pretrained: bool
) -> nn.Module:
    if text == "bigru":
        return BiGRUEncoder(vocabulary_size, word_dim, dim)
    if text == "small":
        return SmallText(vocabulary_size, dim)
    if text == "features":
        return GivenWords(dim)
    settings: dict[str, Any] = {"config": config, "pretrained": pretrained, "trainable": True}
    return pretrained_text("hrem", text, "'bigru', 'small'", vocabulary_size, **settings)
