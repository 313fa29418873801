"""VSE++ and VSE-infinity: one vector an image, one vector a text; the score is their cosine.

Faghri, Fleet, Kiros, Fidler: VSE++: Improving Visual-Semantic Embeddings with Hard Negatives, BMVC 2018.
Chen, Hu, Wu, Jiang, Wang: Learning the Best Pooling Strategy for Visual Semantic Embedding, CVPR 2021 (GPO).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from quintet.backbones.create import create_tower, is_trained
from quintet.backbones.preprocess import Preprocess
from quintet.backbones.text_encoder import HuggingFaceText, pretrained_text
from quintet.backbones.tower import ImageTower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError, suggest
from quintet.layers.normalize import l2norm, widen
from quintet.layers.pooling import create_pooling
from quintet.layers.regions import ChannelDropout, RegionProjection
from quintet.layers.text import BiGRUEncoder, LastStateGRU
from quintet.scores import dot_score_pairs, dot_scores

POOLINGS = ("mean", "max", "gpo")
TEXT_POOLINGS = ("last", *POOLINGS)
PROJECTIONS = ("linear", "mlp")


class VSE(nn.Module):
    """Any image encoder beside any text encoder, both giving (n, embed_dim); the score is the cosine.

    >>> matcher = build_vse(vocabulary_size=10, image_dim=8, embed_dim=4, word_dim=4)
    >>> images = matcher.encode_images(ImageBatch(fragments=torch.randn(2, 5, 8)))
    >>> texts = matcher.encode_texts(TextBatch.from_ids([[1, 5, 2], [1, 2], [1, 7, 8, 2]]))
    >>> matcher.score(images, texts).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        image_encoder: FragmentEncoder | PixelEncoder,
        text_encoder: LastStateGRU | PooledTextEncoder,
        embed_dim: int,
        image_input: Literal["fragments", "pixels"] = "fragments",
        *,
        normalise_images: bool = True,
        normalise_texts: bool = True,
        absolute: bool = False,
        keep_fragments: bool = False,
    ) -> None:
        super().__init__()
        self.keep_fragments = keep_fragments
        self.normalise_images, self.normalise_texts, self.absolute = normalise_images, normalise_texts, absolute
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.embed_dim = embed_dim
        self.image_input = image_input

    @property
    def preprocess(self) -> Preprocess:
        """How images become the input of the image tower. Only a matcher of pixels has one."""
        if not isinstance(self.image_encoder, PixelEncoder):
            raise AttributeError("a matcher of features takes no pixels, so it has no preprocess")
        return self.image_encoder.tower.preprocess

    def encode_images(self, images: ImageBatch) -> Codes:
        if self.image_input == "pixels":
            if images.pixels is None:
                raise ValueError("this matcher has an image tower and takes pixels, not features")
            return self._encode_images(images.pixels)
        if images.fragments is None:
            raise ValueError("this matcher takes features, not pixels; give it a tower, or make features first")
        return self._encode_images(images.fragments, images.real())

    def _encode_images(self, *inputs: Tensor) -> Codes:
        if not (self.keep_fragments and self.training):
            return self._codes(self.image_encoder(*inputs), self.normalise_images)
        vectors, *fragments = self.image_encoder.with_fragments(*inputs)
        return self._codes(vectors, self.normalise_images, *fragments)

    def encode_texts(self, texts: TextBatch) -> Codes:
        if not (self.keep_fragments and self.training):
            return self._codes(self.text_encoder(texts.tokens, texts.lengths), self.normalise_texts)
        vectors, *fragments = self.text_encoder.with_words(texts.tokens, texts.lengths)
        return self._codes(vectors, self.normalise_texts, *fragments)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(image_codes, text_codes)

    def _codes(self, vectors: Tensor, unit: bool, fragments: Tensor | None = None, mask: Tensor | None = None) -> Codes:
        vectors = l2norm(widen(vectors), eps=0) if unit else widen(vectors)
        return Codes(embedding=vectors.abs() if self.absolute else vectors, fragments=fragments, mask=mask)


class FragmentEncoder(nn.Module):
    """Regions or grid cells projected and pooled."""

    def __init__(
        self, image_dim: int, embed_dim: int, pooling: str, projection: str, first_rank: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = ChannelDropout(dropout)
        self.projection = RegionProjection(image_dim, embed_dim, mlp=projection == "mlp")
        self.pooling = create_pooling(pooling, first_rank)
        # A mean and a linear map commute; pooling first saves a factor of L in the map.
        self.pool_first = pooling == "mean" and projection == "linear"

    def forward(self, fragments: Tensor, mask: Tensor) -> Tensor:
        """(n, L, image_dim), (n, L) -> (n, d)."""
        if self.pool_first:
            return self.projection(self.dropout(self.pooling(fragments, mask)))  # (n, image_dim) -> (n, d)
        return self.with_fragments(fragments, mask)[0]

    def with_fragments(self, fragments: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same (n, d), the projected fragments (n, L, d) and their mask."""
        projected = self.projection(self.dropout(fragments), mask)  # (n, L, d)
        return self.pooling(projected, mask), projected, mask


class PixelEncoder(nn.Module):
    """An image tower whose grid cells are the fragments.

    A tower without trained parameters stays in evaluation mode, so that its running statistics do not change, whether
    `trainable=False` or a stage's `freeze` pattern (`*.tower.*`) froze it.
    """

    def __init__(self, tower: ImageTower, fragments: FragmentEncoder, trainable: bool) -> None:
        super().__init__()
        self.tower = tower
        self.fragments = fragments
        if not trainable:
            tower.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.tower.parameters()):
            self.tower.eval()
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, d)."""
        return self.fragments(*self._cells(pixels))

    def with_fragments(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same (n, d), the projected cells (n, L, d) and their mask."""
        return self.fragments.with_fragments(*self._cells(pixels))

    def _cells(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        cells = self.tower(pixels).flatten(2).transpose(1, 2)  # (n, c, h, w) -> (n, h w, c)
        return cells, torch.ones(cells.shape[:2], dtype=torch.bool, device=cells.device)


class ProjectedWords(nn.Module):
    """The words of a BERT-like encoder in the common space, and their mask."""

    def __init__(self, encoder: HuggingFaceText, dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.linear = nn.Linear(encoder.dim, dim)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(n, L), (n,) -> (n, L, d), (n, L)."""
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        return self.linear(self.encoder(tokens, lengths)), mask


class PooledTextEncoder(nn.Module):
    """The words of a GRU or of a BERT-like encoder, pooled (VSE-infinity)."""

    def __init__(self, words: BiGRUEncoder | ProjectedWords, pooling: nn.Module) -> None:
        super().__init__()
        self.words = words
        self.pooling = pooling

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L), (n,) -> (n, d)."""
        return self.with_words(tokens, lengths)[0]

    def with_words(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same (n, d), the words (n, L, d) and their mask."""
        words, mask = self.words(tokens, lengths)
        return self.pooling(words, mask), words, mask


def build_vse(
    *,
    vocabulary_size: int,
    image_dim: int | None = None,
    embed_dim: int = 1024,
    word_dim: int = 300,
    pooling: str = "mean",
    text_pooling: str = "last",
    bidirectional: bool = False,
    projection: str = "linear",
    first_rank: int = 1,
    text: str = "gru",
    text_config: dict[str, Any] | None = None,
    text_pretrained: bool = True,
    dropout: float = 0.0,
    gru_layers: int = 1,
    normalise_images: bool = True,
    normalise_texts: bool = True,
    absolute: bool = False,
    keep_fragments: bool = False,
    tower: str | None = None,
    tower_weights: Path | str | None = None,
    tower_pretrained: bool = True,
    tower_trainable: bool | None = None,
) -> VSE:
    """VSE++ on features of `image_dim` channels, or on pixels where a `tower` is named.

    - The defaults are VSE++. VSE-infinity is `pooling="gpo", text_pooling="gpo", projection="mlp"`, with its GRU branch
      `bidirectional=True`; `first_rank=0` is how its released code counts ranks.
    - `text`: "gru", or "hf:FOLDER" or "hf:HUB_NAME" for a BERT-like encoder, which is fine-tuned: give it a learning
      rate of its own with an optimizer group that matches "matcher.text_encoder.words.encoder.*". `text_config` and
      `text_pretrained=False` make it without reading its weights.
    - `dropout` (not in the papers) is on the image features and on the word vectors of a GRU.
    - `keep_fragments` keeps regions and words before pooling in the Codes of training, for the loss `relation`.
    - `gru_layers`, `normalise_images` and `normalise_texts` (unit length of the vectors) and `absolute` (their absolute
      values) are for converted checkpoints.
    - `tower_trainable` left out: a pretrained tower stays as it is, one that starts from nothing is trained.
    """
    for argument, value, choices in (
        ("pooling", pooling, POOLINGS),
        ("text_pooling", text_pooling, TEXT_POOLINGS),
        ("projection", projection, PROJECTIONS),
    ):
        if value not in choices:
            raise RecipeError(f"matcher 'vse++': {argument} cannot be {value!r}; {suggest(str(value), choices)}")
    if text == "gru":
        text_encoder: LastStateGRU | PooledTextEncoder = _gru(
            vocabulary_size, word_dim, embed_dim, text_pooling, bidirectional, first_rank, dropout, gru_layers
        )
    elif text_pooling == "last":
        raise RecipeError("matcher 'vse++': the words of a BERT-like encoder need text_pooling gpo, mean or max")
    else:
        settings: dict[str, Any] = {"config": text_config, "pretrained": text_pretrained, "trainable": True}
        words = ProjectedWords(pretrained_text("vse++", text, "'gru'", vocabulary_size, **settings), embed_dim)
        text_encoder = PooledTextEncoder(words, create_pooling(text_pooling, first_rank))
    vectors: dict[str, Any] = {"normalise_images": normalise_images, "normalise_texts": normalise_texts}
    vectors |= {"absolute": absolute, "keep_fragments": keep_fragments}
    if tower is None:
        if image_dim is None:
            raise RecipeError("matcher 'vse++' needs image_dim (the channels of the features) or a tower (for pixels)")
        fragments = FragmentEncoder(image_dim, embed_dim, pooling, projection, first_rank, dropout)
        return VSE(fragments, text_encoder, embed_dim, **vectors)
    model = create_tower(tower, tower_weights, pretrained=tower_pretrained)
    if image_dim not in (None, model.dim):
        raise RecipeError(
            f"matcher 'vse++': tower {tower!r} gives {model.dim} channels; leave image_dim={image_dim} out"
        )
    trainable = not is_trained(tower, tower_weights, tower_pretrained) if tower_trainable is None else tower_trainable
    fragments = FragmentEncoder(model.dim, embed_dim, pooling, projection, first_rank, dropout)
    return VSE(PixelEncoder(model, fragments, trainable), text_encoder, embed_dim, "pixels", **vectors)


def _gru(
    vocabulary_size: int,
    word_dim: int,
    dim: int,
    pooling: str,
    bidirectional: bool,
    first_rank: int,
    dropout: float,
    layers: int,
) -> LastStateGRU | PooledTextEncoder:
    if pooling == "last":
        return LastStateGRU(vocabulary_size, word_dim, dim, bidirectional, dropout=dropout, layers=layers)
    words = BiGRUEncoder(vocabulary_size, word_dim, dim, bidirectional, dropout=dropout, layers=layers)
    return PooledTextEncoder(words, create_pooling(pooling, first_rank))
