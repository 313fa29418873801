"""Two small heads over a frozen image tower and a frozen text encoder: the matcher that Quintet ships.

Not from one of the five papers: a baseline for them, and a search that works out of the box.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from quintet.backbones.class_names import ClassNames
from quintet.backbones.onnx_text import OnnxText
from quintet.backbones.text_encoder import HuggingFaceText, pretrained_text
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError
from quintet.layers.normalize import l2norm
from quintet.layers.pooling import masked_mean
from quintet.scores import dot_score_pairs, dot_scores

MINILM = "minilm-int8"
FALL, LEAST = 1.5, 0.05  # the weight of class names falls with this power of a text's familiarity, down to the least


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


class Familiarity(nn.Module):
    """How familiar a text is: the variance of the training texts in its direction, beside theirs on average (one).

    With their mean m and covariance C, the Rayleigh quotient (t - m)' C (t - m) / |t - m|^2, divided by its own mean.
    The statistics run along in training, as those of a BatchNorm do.
    """

    momentum = 0.1
    mean: Tensor
    covariance: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("covariance", torch.eye(dim))  # divided by the mean quotient

    def forward(self, texts: Tensor) -> Tensor:
        """(n, dim) -> (n, 1)."""
        if self.training and len(texts) > 1:
            self._update(texts.detach())
        return self._quotient(texts - self.mean, self.covariance)

    def _quotient(self, centred: Tensor, covariance: Tensor) -> Tensor:
        squares = centred.square().sum(1, keepdim=True).clamp(min=1e-12)
        return ((centred @ covariance) * centred).sum(1, keepdim=True) / squares

    def _update(self, texts: Tensor) -> None:
        mean = texts.mean(0)
        covariance = torch.cov(texts.t())  # (dim, dim)
        covariance = covariance / self._quotient(texts - mean, covariance).mean()
        self.mean.lerp_(mean, self.momentum)
        self.covariance.lerp_(covariance, self.momentum)


class Heads(nn.Module):
    """The mean of grid cells and the mean of words, a head for each; the score is the cosine.

    With `class_names`, a vector has a second part: of an image the names of what the classifier sees in it, of a text
    its own sentence vector. A text gives the second part more weight the less familiar it is.
    """

    image_input: Literal["fragments", "pixels"] = "fragments"

    def __init__(
        self,
        image_head: Head,
        text_head: Head,
        text_encoder: OnnxText | HuggingFaceText,
        embed_dim: int,
        class_names: ClassNames | None = None,
        class_weight: float = 0.0,
        held: bool = False,
    ) -> None:
        super().__init__()
        self.image_head = image_head
        self.text_head = text_head
        self.text_encoder = text_encoder
        self.class_names = class_names
        self.class_weight = class_weight
        self.familiarity = None if class_names is None else Familiarity(text_encoder.dim)
        self.embed_dim = embed_dim if class_names is None else embed_dim + text_encoder.dim
        self.held = held

    def train(self, mode: bool = True) -> Heads:
        super().train(mode)
        if self.held:
            for part in self.modules():
                if isinstance(part, nn.BatchNorm1d | Familiarity):
                    part.eval()
        return self

    def frozen_text_encoder(self) -> OnnxText | HuggingFaceText:
        """The encoder, whose word features never change, so that training may read them from a file."""
        return self.text_encoder

    def encode_images(self, images: ImageBatch) -> Codes:
        if images.fragments is None:
            raise ValueError("this matcher takes features, not pixels; make features first")
        pooled = masked_mean(images.fragments, images.real())  # (n, c)
        head = l2norm(self.image_head(pooled), eps=0)
        if self.class_names is None:
            return Codes(embedding=head)
        return Codes(embedding=torch.cat([head, self.class_names(pooled)], dim=1) / 2**0.5)

    def encode_texts(self, texts: TextBatch) -> Codes:
        words = texts.features
        if words is None:
            with torch.no_grad():
                words = self.text_encoder(texts.tokens, texts.lengths)  # (n, L, c)
        pooled = l2norm(masked_mean(words, texts.real()), eps=0)  # (n, c)
        head = l2norm(self.text_head(pooled), eps=0)
        if self.familiarity is None:
            return Codes(embedding=head)
        weight = self.class_weight * self.familiarity(pooled).clamp(min=LEAST) ** -FALL  # (n, 1)
        return Codes(embedding=l2norm(torch.cat([head, weight * pooled], dim=1), eps=0))

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
    text_hidden: int | None = None,
    dropout: float = 0.5,
    text_dropout: float = 0.1,
    class_names: str | None = None,
    class_weight: float = 0.3,
    class_top: int = 10,
    class_temperature: float = 1.0,
    held: bool = False,
    text: str = MINILM,
    text_config: dict[str, Any] | None = None,
    text_pretrained: bool = True,
) -> Heads:
    """Two heads over frozen towers.

    - `text`: "minilm-int8" (see `OnnxText`), or "hf:FOLDER" or "hf:HUB_NAME" for a frozen BERT-like encoder.
    - `dropout` is of the image head; `text_dropout` is smaller, because texts have far fewer channels.
    - `class_names`: the towers that the features are of, "efficientnet-lite2+efficientnet-lite0", if the names of what
      their classifiers see are part of the score (`quintet.backbones.class_names`). `class_weight` is their weight
      beside the heads' 1 for a text of average familiarity, `class_top` how many classes are taken, at a
      `class_temperature` of the classifiers' softmax.
    - `held` keeps the statistics of standardising and of familiarity as they are: for fine-tuning on few images.
    """
    if class_names is not None and text != MINILM:
        raise RecipeError(f"class_names are sentence vectors of {MINILM}; leave text as it is")
    if text == MINILM:
        encoder: OnnxText | HuggingFaceText = OnnxText()
        if vocabulary_size > encoder.vocabulary_size:
            raise RecipeError(f"the tokenizer has {vocabulary_size} ids, {MINILM} knows {encoder.vocabulary_size}")
    else:
        settings: dict[str, Any] = {"config": text_config, "pretrained": text_pretrained, "trainable": False}
        encoder = pretrained_text("heads", text, repr(MINILM), vocabulary_size, **settings)
    return Heads(
        Head(image_dim, hidden, embed_dim, dropout),
        Head(encoder.dim, text_hidden or hidden, embed_dim, text_dropout),
        encoder,
        embed_dim,
        None if class_names is None else ClassNames(class_names, class_top, class_temperature),
        class_weight,
        held,
    )
