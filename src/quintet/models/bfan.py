"""BFAN: SCAN's attention in both directions, restricted to the focal fragments.

Liu, Mao, Liu, Zhang, Wang, Zhang: Focus Your Attention: A Bidirectional Focal Attention Network for Image-Text
Matching, ACM MM 2019.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.layers.regions import RegionProjection
from quintet.layers.text import BiGRUEncoder, WordFeatures
from quintet.models.fragments import Words, check_choice, create_words, encode_regions, encode_words
from quintet.scores.attention import Focal, Norm, Precision
from quintet.scores.cross_attention import AttentionMap, Direction, Engine, attention_map, bfan_scores


class BFAN(nn.Module):
    """A cross-attention matcher over unit fragments; `score` takes any number of pairs, block by block."""

    image_input: Literal["fragments", "pixels"] = "fragments"

    def __init__(
        self,
        image_encoder: RegionProjection,
        text_encoder: BiGRUEncoder | WordFeatures,
        *,
        normalise_images: bool,
        normalise_texts: bool,
        focal: Focal,
        norm: Norm,
        lambda_softmax: float,
        relu_slope: float,
        precision: Precision,
        engine: Engine,
        budget: int | None,
    ) -> None:
        super().__init__()
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.normalise_images, self.normalise_texts = normalise_images, normalise_texts
        self.attends: dict[str, Any] = {
            "focal": focal,
            "norm": norm,
            "lambda_softmax": lambda_softmax,
            "relu_slope": relu_slope,
        }
        self.computes: dict[str, Any] = {"precision": precision, "engine": engine, "budget": budget}

    def encode_images(self, images: ImageBatch) -> Codes:
        """Regions (n, L, d) of unit length; mask and boxes are kept."""
        return encode_regions(self.image_encoder, images, unit=self.normalise_images)

    def encode_texts(self, texts: TextBatch) -> Codes:
        """Words (n, L, d) of unit length with their mask."""
        return encode_words(self.text_encoder, texts, unit=self.normalise_texts)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts), between -2 and 2."""
        return bfan_scores(image_codes, text_codes, **self.attends, **self.computes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n,): row i against row i."""
        return bfan_scores(image_codes, text_codes, **self.attends, **self.computes, paired=True)

    def attention(self, image_code: Codes, text_code: Codes, direction: Direction = "t2i") -> AttentionMap:
        """Focal word-region weights of one image and one text, of either direction, with the regions' boxes."""
        return attention_map(image_code, text_code, direction=direction, **self.attends)


def build_bfan(
    *,
    image_dim: int,
    vocabulary_size: int,
    embed_dim: int = 1024,
    word_dim: int = 300,
    text: Words = "bigru",
    text_dim: int | None = None,
    focal: Focal = "equal",
    norm: Norm = "clipped_l2norm",
    lambda_softmax: float = 20.0,
    relu_slope: float = 0.1,
    bidirectional: bool = True,
    gru_layers: int = 1,
    normalise_images: bool = True,
    normalise_texts: bool = True,
    dropout: float = 0.0,
    image_dropout: float = 0.0,
    precision: Precision = "float32",
    engine: Engine = "auto",
    budget: int | None = None,
) -> BFAN:
    """BFAN from plain arguments; `bidirectional` is about the GRU. The published figures average `equal` and `prob`.

    `text="features"` reads words that come with the batch, of `text_dim` channels (see the matcher `clip-tokens`).
    `dropout` hides channels of word embeddings in training, `image_dropout` those of regions; the papers have neither.
    `gru_layers`, `normalise_images` and `normalise_texts` (unit length of fragments) are for converted checkpoints.
    `precision`, `engine` and `budget` (bytes) are about speed and memory, not about the method.

    >>> import torch
    >>> matcher = build_bfan(image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4, focal="prob")
    >>> images = matcher.encode_images(ImageBatch(fragments=torch.randn(2, 5, 8)))
    >>> texts = matcher.encode_texts(TextBatch.from_ids([[1, 5, 2], [1, 2], [3]]))
    >>> matcher.score(images, texts).shape
    torch.Size([2, 3])
    """
    check_choice("focal", focal, Focal)
    check_choice("norm", norm, Norm)
    gru: dict[str, Any] = {"bidirectional": bidirectional, "dropout": dropout, "layers": gru_layers}
    check_choice("precision", precision, Precision)
    check_choice("engine", engine, Engine)
    return BFAN(
        RegionProjection(image_dim, embed_dim, dropout=image_dropout),
        create_words(text, text_dim, vocabulary_size, word_dim, embed_dim, **gru),
        normalise_images=normalise_images,
        normalise_texts=normalise_texts,
        focal=focal,
        norm=norm,
        lambda_softmax=lambda_softmax,
        relu_slope=relu_slope,
        precision=precision,
        engine=engine,
        budget=budget,
    )
