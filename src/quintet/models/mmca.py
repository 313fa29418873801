"""MMCA: regions and words are related within themselves and, stacked, with each other; two scores are added.

Wei, Zhang, Li, Zhang, Wu: Multi-Modality Cross Attention Network for Image and Text Matching, CVPR 2020.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from quintet.backbones.text_encoder import HuggingFaceText, SmallText, pretrained_text
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.layers.normalize import l2norm, widen
from quintet.layers.pooling import masked_mean
from quintet.layers.regions import RegionProjection
from quintet.layers.text import GivenWords
from quintet.layers.text_cnn import TextCNN, TextNorm
from quintet.layers.transformer_unit import Activation, Scale, TransformerUnit
from quintet.models.fragments import check_choice
from quintet.scores import dot_score_pairs, dot_scores
from quintet.scores.attention import Precision
from quintet.scores.cross_attention import AttentionMap
from quintet.scores.joint_attention import JointScorer, joint_attention_map, joint_tokens, joint_weights

SentenceCNN = Literal["encoder", "projected", "shared"]
Windows = Literal["overrun", "inside"]


class CrossModule(nn.Module):
    """The cross-attention module's weights: its Transformer unit and its text CNN (section 3.4)."""

    def __init__(self, unit: TransformerUnit, cnn: TextCNN) -> None:
        super().__init__()
        self.unit = unit
        self.cnn = cnn


class MMCA(nn.Module):
    """S(I, T) = i0 . c0 + alpha i1 . c1: embeddings of the items, and joint attention of each pair.

    Without its self-attention module (`region_unit` and `sentence_cnn` None) the score is alpha i1 . c1, and Codes have
    no embedding.

    Codes have i0 or c0 as `embedding`. Their `fragments` have, for each region or word, what the joint attention needs
    of the item: queries, keys, values and the attention within the item, computed once (see `JointTokens`). The
    embeddings alone (`score_embeddings`) can be a first stage whose best results the full score re-ranks.
    """

    image_input: Literal["fragments", "pixels"] = "fragments"

    def __init__(
        self,
        regions: RegionProjection,
        region_unit: TransformerUnit | None,
        text_encoder: HuggingFaceText | SmallText | GivenWords,
        words: nn.Module,
        sentence_cnn: TextCNN | None,
        cross: CrossModule | None,
        *,
        embed_dim: int,
        alpha: float,
        cnn_reads_projection: bool,
        precision: Precision,
        budget: int | None,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.regions = regions
        self.region_unit = region_unit
        self.text_encoder = text_encoder
        self.words = words
        self.sentence_cnn = sentence_cnn
        self.cross = cross
        self.alpha = alpha
        self.cnn_reads_projection = cnn_reads_projection
        self.computes: dict[str, Any] = {"precision": precision, "budget": budget, "recompute": recompute}
        self.embed_dim = embed_dim  # of Codes.embedding

    @property
    def joint(self) -> bool:
        """Whether pairs get a joint look at all."""
        return self.cross is not None and self.alpha != 0

    def frozen_text_encoder(self) -> HuggingFaceText | None:
        """The text encoder where its word features never change, so that training may read them from a file."""
        encoder = self.text_encoder
        return encoder if isinstance(encoder, HuggingFaceText) and encoder.repeatable else None

    def encode_images(self, images: ImageBatch) -> Codes:
        """i0 (Eq. 5) and the regions R; mask and boxes are kept."""
        if images.fragments is None:
            raise RecipeError("MMCA reads features of regions, and this batch holds pixels; extract features first")
        regions = self.regions(images.fragments, images.mask)  # (n, k, d)
        embedding = None
        if self.region_unit is not None:
            embedding = masked_mean(self.region_unit(regions, images.mask), images.real())  # (n, d)
        return self._codes(embedding, regions, images.mask, images.boxes)

    def encode_texts(self, texts: TextBatch) -> Codes:
        """c0 (Eq. 6 and 7) and the words E, projected to d channels."""
        features = texts.features
        if features is None:
            features = self.text_encoder(texts.tokens, texts.lengths)  # (n, m, width of the encoder)
        mask = texts.real()
        words = self.words(features).masked_fill(~mask[..., None], 0)  # (n, m, d)
        embedding = None
        if self.sentence_cnn is not None:
            embedding = self.sentence_cnn(words if self.cnn_reads_projection else features, mask)  # (n, d)
        return self._codes(embedding, words, mask, None)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts)."""
        if self.region_unit is None:
            return self.alpha * self._scorer()(image_codes, text_codes)
        scores = dot_scores(image_codes, text_codes)
        return scores + self.alpha * self._scorer()(image_codes, text_codes) if self.joint else scores

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n,): row i against row i."""
        if self.region_unit is None:
            return self.alpha * self._scorer()(image_codes, text_codes, paired=True)
        scores = dot_score_pairs(image_codes, text_codes)
        return scores + self.alpha * self._scorer()(image_codes, text_codes, paired=True) if self.joint else scores

    def score_embeddings(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts): i0 . c0 alone, which is the score at alpha = 0; a first stage for re-ranking."""
        if self.region_unit is None:
            raise RecipeError("this MMCA was made without its self-attention module, so its items have no embedding")
        return dot_scores(image_codes, text_codes)

    def attention(self, image_code: Codes, text_code: Codes) -> AttentionMap:
        """The attention of each word over the regions of an image, mean over the heads."""
        if self.cross is None:
            raise RecipeError("this MMCA was made without its cross-attention module, so there is no attention to show")
        return joint_attention_map(image_code, text_code, self.cross.unit)

    def joint_attention(self, image_code: Codes, text_code: Codes) -> Tensor:
        """(k + m, k + m): how much each region and word attends to each, mean over the heads; regions come first."""
        if self.cross is None:
            raise RecipeError("this MMCA was made without its cross-attention module, so there is no attention to show")
        return joint_weights(image_code, text_code, self.cross.unit).mean(dim=0)

    def _codes(self, embedding: Tensor | None, fragments: Tensor, mask: Tensor | None, boxes: Tensor | None) -> Codes:
        unit = None if embedding is None else l2norm(widen(embedding), eps=0)
        if not self.joint or self.cross is None:
            return Codes(embedding=unit)
        tokens = joint_tokens(self.cross.unit, fragments, mask)
        return Codes(embedding=unit, fragments=tokens.packed(), mask=mask, boxes=boxes)

    def _scorer(self) -> JointScorer:
        assert self.cross is not None
        return JointScorer(self.cross.unit, self.cross.cnn, **self.computes)


def build_mmca(
    *,
    image_dim: int = 2048,
    vocabulary_size: int,
    embed_dim: int = 256,
    heads: int = 16,
    alpha: float = 0.2,
    cross: bool = True,
    self_attention: bool = True,
    text: str = "small",
    text_trainable: bool = False,
    text_dropout: bool = False,
    text_pretrained: bool = True,
    text_config: dict[str, Any] | None = None,
    text_dim: int = 256,
    text_layers: int = 2,
    text_heads: int = 4,
    project_words: bool = True,
    sentence_cnn: SentenceCNN = "encoder",
    filters: int = 256,
    windows: Windows = "overrun",
    sentence_norm: TextNorm = "l2",
    scale: Scale = "sqrt_dk",
    ffn_dim: int | None = None,
    activation: Activation = "relu",
    attention_bias: bool = False,
    dropout: float = 0.0,
    image_dropout: float = 0.0,
    precision: Precision = "float32",
    budget: int | None = None,
    recompute: bool = True,
) -> MMCA:
    """MMCA from plain arguments. What the paper leaves open is an argument; docs/methods/mmca.md says why each default.

    - `cross=False` leaves the cross-attention module out (an ablation of the paper); `alpha` weighs it.
      `self_attention=False` leaves the other one out: the score is alpha i1 . c1.
    - `text`: "hf:FOLDER" or "hf:HUB_NAME" for a BERT-like encoder, frozen unless `text_trainable`; or "small", one of
      `text_dim` channels, `text_layers` layers and `text_heads` heads that is trained with the rest. `text_dropout`
      leaves a frozen encoder's dropout on in training, and gives the small one some (0.1). "features": words of
      `text_dim` channels that come with the batch (see the matcher `clip-tokens`). `text_config` and
      `text_pretrained=False` make a BERT-like encoder without reading its weights; a run keeps both, so that it opens
      anywhere.
    - `project_words`: a linear map of the encoder's outputs to `embed_dim`; False needs an encoder of that width.
    - `sentence_cnn`: the CNN of c0 reads the "encoder"'s outputs or the "projected" ones, with weights of its own, or
      is the one of c1 ("shared").
    - `windows`: CNN windows may "overrun" the last word, or lie "inside" the text; `filters` for each width.
    - `sentence_norm`: before c0 and c1 are normalised to unit length: nothing ("l2") or "layernorm" (Eq. 7).
    - `scale`, `ffn_dim`, `activation`, `attention_bias`, `dropout`: see `TransformerUnit`; for both units.
    - `image_dropout` hides channels of the regions in training; the paper has none.
    - `precision` ("bfloat16": half precision for pairs), `budget` (bytes of a block) and `recompute` (blocks are
      computed again in the backward pass) are about speed and memory, not about the method.

    >>> import torch
    >>> matcher = build_mmca(image_dim=8, vocabulary_size=10, embed_dim=8, heads=2, text_dim=4, filters=6).eval()
    >>> images = matcher.encode_images(ImageBatch(fragments=torch.randn(2, 5, 8)))
    >>> texts = matcher.encode_texts(TextBatch.from_ids([[1, 5, 2], [1, 2], [3]]))
    >>> matcher.score(images, texts).shape, matcher.score_embeddings(images, texts).shape
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """
    check_choice("sentence_cnn", sentence_cnn, SentenceCNN)
    check_choice("windows", windows, Windows)
    check_choice("sentence_norm", sentence_norm, TextNorm)
    check_choice("scale", scale, Scale)
    check_choice("activation", activation, Activation)
    check_choice("precision", precision, Precision)
    if text == "small":
        text_encoder: HuggingFaceText | SmallText | GivenWords = SmallText(
            vocabulary_size, text_dim, layers=text_layers, heads=text_heads, dropout=0.1 if text_dropout else 0.0
        )
    elif text == "features":
        text_encoder = GivenWords(text_dim)
    else:
        settings = {"config": text_config, "pretrained": text_pretrained, "trainable": text_trainable}
        text_encoder = pretrained_text("mmca", text, "'small'", vocabulary_size, dropout=text_dropout, **settings)
    text_width = text_encoder.dim
    needs_words = cross or sentence_cnn == "projected"  # of the regions' width
    if needs_words and not project_words and text_width != embed_dim:
        raise RecipeError(
            f"words are stacked with regions of {embed_dim} channels, and the text encoder gives {text_width}; "
            "leave project_words on, or make embed_dim equal"
        )
    if not self_attention and (not cross or alpha == 0):
        raise RecipeError("self_attention=False leaves the cross-attention module alone: cross=True and an alpha but 0")
    if not self_attention and sentence_cnn != "encoder":
        raise RecipeError(f"sentence_cnn={sentence_cnn!r} is of the self-attention module, which is left out")
    if sentence_cnn == "shared" and not cross:
        raise RecipeError("sentence_cnn='shared' needs the cross-attention module; use 'projected' without it")

    def unit() -> TransformerUnit:
        shape: dict[str, Any] = {"ffn_dim": ffn_dim, "activation": activation, "scale": scale}
        return TransformerUnit(embed_dim, heads, bias=attention_bias, dropout=dropout, **shape)

    def cnn(width: int) -> TextCNN:
        return TextCNN(width, embed_dim, filters=filters, norm=sentence_norm, inside=windows == "inside")

    cross_module = CrossModule(unit(), cnn(embed_dim)) if cross else None
    first_cnn: TextCNN | None
    if not self_attention:
        first_cnn = None
    elif sentence_cnn == "shared" and cross_module is not None:
        first_cnn = cross_module.cnn
    else:
        first_cnn = cnn(text_width if sentence_cnn == "encoder" else embed_dim)
    return MMCA(
        RegionProjection(image_dim, embed_dim, dropout=image_dropout),
        unit() if self_attention else None,
        text_encoder,
        nn.Linear(text_width, embed_dim) if project_words and needs_words else nn.Identity(),
        first_cnn,
        cross_module,
        embed_dim=embed_dim,
        alpha=alpha,
        cnn_reads_projection=sentence_cnn != "encoder",
        precision=precision,
        budget=budget,
        recompute=recompute,
    )
