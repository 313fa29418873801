"""Dual-Path: an image CNN and a text CNN, trained end to end into one space; the score is the cosine.

Zheng, Zheng, Garrett, Yang, Shen: Dual-Path Convolutional Image-Text Embeddings with Instance Loss, 2017.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from quintet.backbones import create_tower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError, suggest
from quintet.layers.feature_heads import ReleasedHead, two_layer_head
from quintet.layers.normalize import HALF, l2norm
from quintet.layers.residual_text_cnn import LAYOUTS, LengthPooling, ResidualTextCNN
from quintet.layers.word_places import every_shift, place_words, random_starts, shift_counts
from quintet.scores.embedding import dot_score_pairs, dot_scores

Alignment = Literal["shift", "left"]
TestPositions = Literal["left", "all"]
BLOCK = 4096  # shifted sentences encoded at a time


class DualPath(nn.Module):
    """f_img (Eq. 1) beside f_text (Eq. 3).

    In training `Codes.embedding` holds the features as they leave the heads, which is what the instance loss
    classifies; in evaluation it holds them at unit length, so that their dot product is the score.

    >>> matcher = build_dual_path(vocabulary_size=10, image_dim=8, embed_dim=4, text_layout="small", text_width=2)
    >>> images = matcher.eval().encode_images(ImageBatch(fragments=torch.randn(2, 5, 8)))
    >>> texts = matcher.encode_texts(TextBatch.from_ids([[4, 5, 6], [7], [9, 8]]))
    >>> matcher.score(images, texts).shape
    torch.Size([2, 3])
    """

    def __init__(self, image_encoder: PixelPath | FeaturePath, text_encoder: TextPath, embed_dim: int) -> None:
        super().__init__()
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.embed_dim = embed_dim
        self.image_input = image_encoder.image_input

    @property
    def preprocess(self) -> Any:
        """How pictures become pixels: the image tower's own way. Only matchers of pixels have it."""
        if not isinstance(self.image_encoder, PixelPath):
            raise AttributeError("a matcher of features takes no pixels, so it has no preprocess")
        return self.image_encoder.tower.preprocess

    @property
    def random_places(self) -> bool:
        """Whether sentences are shifted at random in training, so that their batches need `chances`."""
        return self.text_encoder.alignment == "shift"

    def encode_images(self, images: ImageBatch) -> Codes:
        return self._codes(self.image_encoder(images))

    def encode_texts(self, texts: TextBatch) -> Codes:
        return self._codes(self.text_encoder(texts))

    def image_features(self, images: ImageBatch) -> Tensor:
        """(n, channels): what the head is given, pool5 of a ResNet."""
        return self.image_encoder.pooled(images)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(_unit(image_codes), _unit(text_codes))

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(_unit(image_codes), _unit(text_codes))

    def _codes(self, features: Tensor) -> Codes:
        # Under autocast the features come in half precision, too coarse for margins and ranks.
        codes = Codes(embedding=features.float() if features.dtype in HALF else features)
        return codes if self.training else _unit(codes)


def _unit(codes: Codes) -> Codes:
    return codes.map(lambda features: l2norm(features, eps=0))


class PixelPath(nn.Module):
    """Image tower, average over its grid, head; measured with `flip_test`, the mean over picture and mirror image."""

    image_input: Literal["pixels"] = "pixels"

    def __init__(self, tower: Any, head: nn.Module, flip_test: bool) -> None:
        super().__init__()
        self.tower = tower
        self.head = head
        self.flip_test = flip_test

    def pooled(self, images: ImageBatch) -> Tensor:
        if images.pixels is None:
            raise ValueError("this matcher has an image tower and takes pixels, not features")
        return self.tower.pooled(images.pixels)

    def forward(self, images: ImageBatch) -> Tensor:
        features = self.head(self.pooled(images))  # (n, d)
        if self.training or not self.flip_test:
            return features
        assert images.pixels is not None
        return (features + self.head(self.tower.pooled(images.pixels.flip(-1)))) / 2


class FeaturePath(nn.Module):
    """The mean of precomputed cells or regions, head: the image CNN of stage I, computed once for all epochs."""

    image_input: Literal["fragments"] = "fragments"

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def pooled(self, images: ImageBatch) -> Tensor:
        if images.fragments is None:
            raise ValueError("this matcher takes features, not pixels; give it a tower, or make features first")
        real = images.real()[..., None]  # (n, L, 1)
        return images.fragments.masked_fill(~real, 0).sum(dim=1) / real.sum(dim=1)  # (n, image_dim)

    def forward(self, images: ImageBatch) -> Tensor:
        return self.head(self.pooled(images))  # (n, d)


class TextPath(nn.Module):
    """Words at their places, text CNN, head.

    `alignment` "shift" puts a sentence anywhere in training (position shift), "left" always at the beginning. Measured
    sentences stand at the beginning, or with `test_positions` "all" their features are averaged over all shifts.
    """

    def __init__(
        self, cnn: ResidualTextCNN, head: nn.Module, length: int, alignment: Alignment, test_positions: TestPositions
    ) -> None:
        super().__init__()
        self.cnn = cnn
        self.head = head
        self.length = length
        self.alignment = alignment
        self.test_positions = test_positions

    def forward(self, texts: TextBatch) -> Tensor:
        """n sentences -> (n, d)."""
        if not self.training and self.test_positions == "all":
            return self._every_shift(texts)
        return self._encode(texts.tokens, texts.lengths, self._starts(texts))

    def _starts(self, texts: TextBatch) -> Tensor:
        if self.alignment == "left" or not self.training:
            return torch.zeros_like(texts.lengths)
        if texts.chances is None:
            raise ValueError(
                "position shift places a sentence by its random number, and this TextBatch has none: set chances, "
                "(n,) in [0, 1), or encode in evaluation mode"
            )
        return random_starts(texts.chances, texts.lengths, self.length)

    def _encode(self, tokens: Tensor, lengths: Tensor, starts: Tensor) -> Tensor:
        return self.head(self.cnn(place_words(tokens, lengths, starts, self.length)))

    def _every_shift(self, texts: TextBatch) -> Tensor:
        rows, starts = every_shift(texts.lengths, self.length)
        parts = [
            self._encode(texts.tokens[row], texts.lengths[row], start)
            for row, start in zip(rows.split(BLOCK), starts.split(BLOCK), strict=True)
        ]
        features = torch.cat(parts)  # (shifts of all sentences, d)
        sums = features.new_zeros(len(texts), features.shape[1]).index_add_(0, rows, features)  # (n, d)
        return sums / shift_counts(texts.lengths, self.length)[:, None]


def build_dual_path(
    *,
    vocabulary_size: int,
    image_dim: int | None = None,
    embed_dim: int = 2048,
    word_dim: int = 300,
    length: int = 32,
    text_layout: str = "resnet50",
    text_width: int = 64,
    text_pooling: str = "average",
    alignment: str = "shift",
    test_positions: str = "left",
    head: str = "paper",
    image_hidden: int | None = None,
    tower: str | None = None,
    tower_weights: Path | str | None = None,
    tower_pretrained: bool = True,
    view: str = "center",
    flip_test: bool = True,
) -> DualPath:
    """Dual-Path on pixels through `tower`, or on features of `image_dim` channels where none is named.

    The defaults are the paper's. The released code is `text_layout="released", text_pooling="max", head="released",
    test_positions="all"`. `view="squeeze"` measures on the whole picture instead of its central square (people are
    taller than wide); `flip_test=False` where sentences say left and right. `image_hidden` left out: 2,048, or the
    channels of the tower where these are more (VGG's 4,096).
    """
    for argument, value, choices in (
        ("text_layout", text_layout, tuple(LAYOUTS)),
        ("text_pooling", text_pooling, get_args(LengthPooling)),
        ("alignment", alignment, get_args(Alignment)),
        ("test_positions", test_positions, get_args(TestPositions)),
        ("head", head, ("paper", "released")),
        ("view", view, ("center", "squeeze")),
    ):
        if value not in choices:
            raise RecipeError(f"matcher 'dual-path': {argument} cannot be {value!r}; {suggest(str(value), choices)}")
    if alignment == "left" and test_positions == "all":
        raise RecipeError("matcher 'dual-path': test_positions 'all' is for sentences that were shifted in training")
    if length < 1:
        raise RecipeError(f"matcher 'dual-path': length must be 1 or more, got {length}")
    cnn = ResidualTextCNN(vocabulary_size, word_dim, text_layout, text_width, text_pooling)  # type: ignore[arg-type]
    text_head = two_layer_head(cnn.dim, embed_dim, embed_dim) if head == "paper" else ReleasedHead(cnn.dim, embed_dim)
    texts = TextPath(cnn, text_head, length, alignment, test_positions)  # type: ignore[arg-type]
    if tower is None:
        if image_dim is None:
            raise RecipeError("matcher 'dual-path' needs a tower (for pixels) or image_dim (the channels of features)")
        return DualPath(FeaturePath(_image_head(head, image_dim, image_hidden, embed_dim)), texts, embed_dim)
    model = create_tower(tower, tower_weights, pretrained=tower_pretrained)
    if image_dim not in (None, model.dim):
        raise RecipeError(f"matcher 'dual-path': tower {tower!r} gives {model.dim} channels; leave image_dim out")
    if view == "squeeze":
        model.preprocess = model.preprocess.squeezed()
    image_head = _image_head(head, model.dim, image_hidden, embed_dim)
    return DualPath(PixelPath(model, image_head, flip_test), texts, embed_dim)


def _image_head(kind: str, inputs: int, hidden: int | None, outputs: int) -> nn.Module:
    hidden = hidden or max(inputs, outputs)
    return two_layer_head(inputs, hidden, outputs) if kind == "paper" else ReleasedHead(inputs, hidden, outputs)
