"""SCAN: words attend to regions, or regions to words; the score of a pair aggregates the cosines.

Lee, Chen, Hua, Hu, He: Stacked Cross Attention for Image-Text Matching, ECCV 2018.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.layers.regions import RegionProjection
from quintet.layers.text import BiGRUEncoder, WordFeatures
from quintet.models.fragments import Words, check_choice, create_words, encode_regions, encode_words
from quintet.scores.attention import Aggregation, Norm, Precision
from quintet.scores.cross_attention import AttentionMap, Direction, Engine, attention_map, scan_scores


class SCAN(nn.Module):
    """A cross-attention matcher over unit fragments; `score` takes any number of pairs, block by block."""

    image_input: Literal["fragments", "pixels"] = "fragments"

    def __init__(
        self,
        image_encoder: RegionProjection,
        text_encoder: BiGRUEncoder | WordFeatures,
        *,
        normalise_images: bool,
        normalise_texts: bool,
        direction: Direction,
        norm: Norm,
        aggregation: Aggregation,
        lambda_softmax: float,
        lambda_lse: float,
        relu_slope: float,
        precision: Precision,
        engine: Engine,
        budget: int | None,
    ) -> None:
        super().__init__()
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.normalise_images, self.normalise_texts = normalise_images, normalise_texts
        self.direction: Direction = direction
        self.attends: dict[str, Any] = {"norm": norm, "lambda_softmax": lambda_softmax, "relu_slope": relu_slope}
        self.sums_up: dict[str, Any] = {"aggregation": aggregation, "lambda_lse": lambda_lse}
        self.computes: dict[str, Any] = {"precision": precision, "engine": engine, "budget": budget}

    def encode_images(self, images: ImageBatch) -> Codes:
        """Regions (n, L, d) of unit length; mask and boxes are kept."""
        return encode_regions(self.image_encoder, images, unit=self.normalise_images)

    def encode_texts(self, texts: TextBatch) -> Codes:
        """Words (n, L, d) of unit length with their mask."""
        return encode_words(self.text_encoder, texts, unit=self.normalise_texts)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts)."""
        return self._score(image_codes, text_codes, paired=False)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n,): row i against row i."""
        return self._score(image_codes, text_codes, paired=True)

    def attention(self, image_code: Codes, text_code: Codes) -> AttentionMap:
        """Word-region weights of one image and one text, with the regions' boxes."""
        return attention_map(image_code, text_code, direction=self.direction, **self.attends)

    def _score(self, image_codes: Codes, text_codes: Codes, paired: bool) -> Tensor:
        settings = {**self.attends, **self.sums_up, **self.computes}
        return scan_scores(image_codes, text_codes, direction=self.direction, paired=paired, **settings)


def build_scan(
    *,
    image_dim: int,
    vocabulary_size: int,
    embed_dim: int = 1024,
    word_dim: int = 300,
    text: Words = "bigru",
    text_dim: int | None = None,
    direction: Direction = "t2i",
    norm: Norm = "clipped_l2norm",
    aggregation: Aggregation = "lse",
    lambda_softmax: float = 9.0,
    lambda_lse: float = 6.0,
    relu_slope: float = 0.0,
    bidirectional: bool = True,
    gru_layers: int = 1,
    normalise_images: bool = True,
    normalise_texts: bool = True,
    dropout: float = 0.0,
    image_dropout: float = 0.0,
    precision: Precision = "float32",
    engine: Engine = "auto",
    budget: int | None = None,
) -> SCAN:
    """SCAN from plain arguments.

    `relu_slope` is 0 as in the paper; the authors' code, and so their checkpoints and published numbers, use 0.1.
    `text="features"` reads words that come with the batch, of `text_dim` channels (see the matcher `clip-tokens`).
    `dropout` hides channels of word embeddings in training, `image_dropout` those of regions; the papers have neither.
    `gru_layers`, `normalise_images` and `normalise_texts` (unit length of fragments) are for converted checkpoints.
    `precision`, `engine` and `budget` (bytes) are about speed and memory, not about the method.

    >>> import torch
    >>> matcher = build_scan(image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4)
    >>> images = matcher.encode_images(ImageBatch(fragments=torch.randn(2, 5, 8)))
    >>> texts = matcher.encode_texts(TextBatch.from_ids([[1, 5, 2], [1, 2], [3]]))
    >>> matcher.score(images, texts).shape
    torch.Size([2, 3])
    """
    check_choice("direction", direction, Direction)
    check_choice("norm", norm, Norm)
    gru: dict[str, Any] = {"bidirectional": bidirectional, "dropout": dropout, "layers": gru_layers}
    check_choice("aggregation", aggregation, Aggregation)
    check_choice("precision", precision, Precision)
    check_choice("engine", engine, Engine)
    return SCAN(
        RegionProjection(image_dim, embed_dim, dropout=image_dropout),
        create_words(text, text_dim, vocabulary_size, word_dim, embed_dim, **gru),
        normalise_images=normalise_images,
        normalise_texts=normalise_texts,
        direction=direction,
        norm=norm,
        aggregation=aggregation,
        lambda_softmax=lambda_softmax,
        lambda_lse=lambda_lse,
        relu_slope=relu_slope,
        precision=precision,
        engine=engine,
        budget=budget,
    )
