"""Two small heads over a frozen image tower and a frozen text encoder: the matcher that Quintet ships.

Not from one of the five papers: a baseline for them, and a search that works out of the box.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from quintet.backbones.onnx_text import OnnxText
from quintet.backbones.text_encoder import HuggingFaceText, pretrained_text
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.layers.normalize import l2norm
from quintet.layers.pooling import masked_mean
from quintet.scores import dot_score_pairs, dot_scores

MINILM = "minilm-int8"


class Head(nn.Module):
    """Standardised features through a linear map plus an MLP.

    >>> Head(8, 16, 4, dropout=0.1)(torch.randn(3, 8)).shape
    torch.Size([3, 4])
    """

    def __init__(self, in_dim: int, hidden: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.standard = nn.BatchNorm1d(in_dim, affine=False)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(in_dim, dim)
        self.mlp = nn.Sequential(nn.Linear(in_dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, features: Tensor) -> Tensor:
        """(n, in_dim) -> (n, dim)."""
        features = self.dropout(self.standard(features))
        return self.norm(self.linear(features) + self.mlp(features))


class Heads(nn.Module):
    """The mean of grid cells and the mean of words, a head for each; the score is the cosine."""

    image_input: Literal["fragments", "pixels"] = "fragments"

    def __init__(
        self, image_head: Head, text_head: Head, text_encoder: OnnxText | HuggingFaceText, embed_dim: int
    ) -> None:
        super().__init__()
        self.image_head = image_head
        self.text_head = text_head
        self.text_encoder = text_encoder
        self.embed_dim = embed_dim

    def frozen_text_encoder(self) -> OnnxText | HuggingFaceText:
        """The encoder, whose word features never change, so that training may read them from a file."""
        return self.text_encoder

    def encode_images(self, images: ImageBatch) -> Codes:
        if images.fragments is None:
            raise ValueError("this matcher takes features, not pixels; make features first")
        pooled = masked_mean(images.fragments, images.real())  # (n, c)
        return Codes(embedding=l2norm(self.image_head(pooled), eps=0))

    def encode_texts(self, texts: TextBatch) -> Codes:
        words = texts.features
        if words is None:
            with torch.no_grad():
                words = self.text_encoder(texts.tokens, texts.lengths)  # (n, L, c)
        pooled = l2norm(masked_mean(words, texts.real()), eps=0)  # (n, c)
        return Codes(embedding=l2norm(self.text_head(pooled), eps=0))

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)


def build_heads(
    *,
    vocabulary_size: int,
    image_dim: int,
    embed_dim: int = 512,
    hidden: int = 1024,
    dropout: float = 0.5,
    text_dropout: float = 0.1,
    text: str = MINILM,
    text_config: dict[str, Any] | None = None,
    text_pretrained: bool = True,
) -> Heads:
    """Two heads over frozen towers.

    - `text`: "minilm-int8" (see `OnnxText`), or "hf:FOLDER" or "hf:HUB_NAME" for a frozen BERT-like encoder.
    - `dropout` is of the image head; `text_dropout` is smaller, because texts have far fewer channels.
    """
    if text == MINILM:
        encoder: OnnxText | HuggingFaceText = OnnxText()
        if vocabulary_size > encoder.vocabulary_size:
            raise RecipeError(f"the tokenizer has {vocabulary_size} ids, {MINILM} knows {encoder.vocabulary_size}")
    else:
        settings: dict[str, Any] = {"config": text_config, "pretrained": text_pretrained, "trainable": False}
        encoder = pretrained_text("heads", text, repr(MINILM), vocabulary_size, **settings)
    image_head = Head(image_dim, hidden, embed_dim, dropout)
    return Heads(image_head, Head(encoder.dim, hidden, embed_dim, text_dropout), encoder, embed_dim)
