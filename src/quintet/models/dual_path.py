"""Dual-Path: an image CNN and a text CNN, trained end to end into one space; the score is the cosine.

Zheng, Zheng, Garrett, Yang, Shen: Dual-Path Convolutional Image-Text Embeddings with Instance Loss, 2017.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.backbones.create import create_tower
from quintet.backbones.preprocess import Preprocess
from quintet.backbones.tower import ImageTower
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError, suggest
from quintet.layers.normalize import l2norm, widen
from quintet.scores import dot_score_pairs, dot_scores

EPS = 1e-3  # the released BatchNorms'; the paper names none


def two_layer_head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """fc, BatchNorm, ReLU, fc, as in the paper. The first fc has no bias: its BatchNorm would subtract it."""
    return nn.Sequential(
        _linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), _linear(hidden, outputs, bias=True)
    )


class ReleasedHead(nn.Module):
    """fc, BatchNorm and ReLU for each of `widths` (released code). In evaluation the last ReLU is left out."""

    def __init__(self, inputs: int, *widths: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList(_linear(a, b, bias=False) for a, b in pairwise((inputs, *widths)))
        self.norm = nn.ModuleList(nn.BatchNorm1d(width, EPS) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) -> (n, last width)."""
        last = len(self.linear) - 1
        for number, (linear, norm) in enumerate(zip(self.linear, self.norm, strict=True)):
            x = norm(linear(x))
            if number < last or self.training:
                x = F.relu(x)
        return x


def _linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.kaiming_normal_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def shift_counts(lengths: Tensor, positions: int) -> Tensor:
    """(n,): the number of positions at which a text of each length can start; a text that is cut has one.

    >>> shift_counts(torch.tensor([1, 30, 40]), 32).tolist()
    [32, 3, 1]
    """
    return positions - lengths.clamp(max=positions) + 1


def random_starts(position_noise: Tensor, lengths: Tensor, positions: int) -> Tensor:
    """(n,): uniform over all shifts, where `position_noise` (n,) are uniform in [0, 1).

    >>> random_starts(torch.tensor([0.0, 0.99, 0.5]), torch.tensor([10, 10, 40]), 32).tolist()
    [0, 22, 0]
    """
    counts = shift_counts(lengths, positions)
    return torch.minimum((position_noise * counts).long(), counts - 1)  # float32 may round up to the count


def place_words(tokens: Tensor, lengths: Tensor, starts: Tensor, positions: int) -> Tensor:
    """(n, L) ids, (n,), (n,) -> (n, positions): each text from its start on, 0 elsewhere; long texts are cut.

    >>> place_words(torch.tensor([[7, 8, 9]]), torch.tensor([2]), torch.tensor([1]), 4).tolist()
    [[0, 7, 8, 0]]
    """
    source = torch.arange(positions, device=tokens.device) - starts[:, None]  # (n, positions): index of the word
    real = (source >= 0) & (source < lengths[:, None])
    return tokens.gather(1, source.clamp(0, tokens.shape[1] - 1)).masked_fill(~real, 0)


def every_shift(lengths: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """(m,) rows and (m,) starts of all shifts of all texts, m in all.

    >>> rows, starts = every_shift(torch.tensor([3, 4]), 4)
    >>> rows.tolist(), starts.tolist()
    ([0, 0, 1], [0, 1, 0])
    """
    counts = shift_counts(lengths, positions)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), counts)
    first = counts.cumsum(0) - counts  # (n,): where the shifts of a text begin
    return rows, torch.arange(len(rows), device=lengths.device) - first[rows]


TextLayout = Literal["resnet50", "resnet152", "released", "small"]
LengthPooling = Literal["average", "max"]


class Stage(NamedTuple):
    """Blocks of one length, in multiples of the base width: `inner` channels inside a block, `outer` after it."""

    blocks: int
    inner: int
    outer: int
    stride: int
    first_inner: int  # of the first block, which is no bottleneck in the released code
    pad_left: bool = False  # also where the length is halved


def _as_resnet(*depths: int) -> tuple[Stage, ...]:
    widths = (2**number for number in range(4))
    strides = (1, 2, 2, 2)
    return tuple(Stage(d, w, 4 * w, stride, w) for d, w, stride in zip(depths, widths, strides, strict=True))


LAYOUTS: dict[str, tuple[Stage, ...]] = {
    "resnet50": _as_resnet(3, 4, 6, 3),
    "resnet152": _as_resnet(3, 8, 36, 3),
    "released": (
        Stage(3, 1, 4, 1, 2, pad_left=True),
        Stage(4, 2, 8, 2, 8, pad_left=True),
        Stage(6, 4, 16, 2, 16, pad_left=True),
        Stage(1, 8, 32, 1, 32, pad_left=True),
    ),
    "small": _as_resnet(1, 1, 1, 1),
}


class ResidualTextCNN(nn.Module):
    """(n, length) word ids, 0 where a position is empty -> (n, 32 width).

    `layout`: the blocks of ResNet-50 (3, 4, 6, 3; the paper), of ResNet-152 (3, 8, 36, 3), the released 14 blocks
    (3, 4, 6, 1, whose last stage keeps its length), or one block a stage for small corpora. The word table starts as
    Glorot and Bengio propose, convolutions as He et al. do.

    The released embedding has a bias. The BatchNorm after it subtracts any constant, so there is none here.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dim: int = 300,
        layout: TextLayout = "resnet50",
        width: int = 64,
        pooling: LengthPooling = "average",
    ) -> None:
        super().__init__()
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        if pooling not in get_args(LengthPooling):
            raise ValueError(f"pooling must be average or max, got {pooling!r}")
        self.pooling = pooling
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        nn.init.xavier_uniform_(self.embed.weight)
        self.norm = nn.BatchNorm1d(word_dim, EPS)
        blocks: list[nn.Module] = []
        inputs = word_dim
        for stage in LAYOUTS[layout]:
            for number in range(stage.blocks):
                inner, stride = (stage.first_inner, stage.stride) if number == 0 else (stage.inner, 1)
                pad_left = stage.pad_left or stride == 1
                blocks.append(TextBlock(inputs, inner * width, stage.outer * width, stride, pad_left))
                inputs = stage.outer * width
        self.blocks = nn.Sequential(*blocks)
        self.dim = inputs

    def forward(self, words: Tensor) -> Tensor:
        empty = words == 0
        x = self.embed(words).masked_fill(empty[..., None], 0)  # (n, length, word_dim)
        x = self.blocks(_normalised(x, self.norm))  # (n, length / 4 or 8, dim)
        return x.mean(dim=1) if self.pooling == "average" else x.amax(dim=1)  # (n, dim)


class TextBlock(nn.Module):
    """1x1, 1x2 and 1x1 convolutions, each with BatchNorm, added to the input: F(x) + x of Fig. 3.

    Channels come last, so a convolution is one matrix product over all positions. The weights of a 1x2 are those of the
    first position beside those of the second.
    """

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, pad_left: bool) -> None:
        super().__init__()
        self.stride, self.pad_left = stride, pad_left
        self.conv1, self.bn1 = _product(inputs, inner), nn.BatchNorm1d(inner, EPS)
        self.conv2, self.bn2 = _product(2 * inner, inner), nn.BatchNorm1d(inner, EPS)
        self.conv3, self.bn3 = _product(inner, outputs), nn.BatchNorm1d(outputs, EPS)
        self.changes_shape = inputs != outputs or stride != 1
        if self.changes_shape:
            self.shortcut, self.shortcut_bn = _product(inputs, outputs), nn.BatchNorm1d(outputs, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, inputs) -> (n, length / stride, rounded up, outputs)."""
        out = F.relu(_normalised(self.conv1(x), self.bn1))
        out = F.relu(_normalised(self.conv2(_pairs(out, self.stride, self.pad_left)), self.bn2))
        out = _normalised(self.conv3(out), self.bn3)
        if self.changes_shape:
            x = _normalised(self.shortcut(x[:, :: self.stride]), self.shortcut_bn)
        return F.relu(out + x)


def _pairs(x: Tensor, stride: int, pad_left: bool) -> Tensor:
    """(n, length, d) -> (n, length / stride, rounded up, 2 d): the input of a 1x2 convolution at each position."""
    length = x.shape[1]
    x = F.pad(x, (0, 0, 1, 0) if pad_left else (0, 0, 0, length % 2))
    if stride == 1:
        return torch.cat([x[:, :-1], x[:, 1:]], dim=2)
    count = (length + 1) // 2
    return x[:, : 2 * count].reshape(x.shape[0], count, 2 * x.shape[2])


def _normalised(x: Tensor, norm: nn.Module) -> Tensor:
    return norm(x.flatten(0, 1)).view_as(x)  # statistics over all positions of all texts


def _product(inputs: int, outputs: int) -> nn.Linear:
    product = nn.Linear(inputs, outputs, bias=False)
    nn.init.kaiming_normal_(product.weight)
    return product


Alignment = Literal["shift", "left"]
TestPositions = Literal["left", "all"]
BLOCK = 4096  # shifted texts encoded at a time


class DualPath(nn.Module):
    """f_img (Eq. 1) beside f_text (Eq. 3).

    In training `Codes.embedding` has the outputs of the heads, which the instance loss classifies. In evaluation they
    are normalised to unit length, so that their dot product is the score.

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
    def preprocess(self) -> Preprocess:
        """How images become the input of the image tower. Only a matcher of pixels has one."""
        if not isinstance(self.image_encoder, PixelPath):
            raise AttributeError("a matcher of features takes no pixels, so it has no preprocess")
        return self.image_encoder.tower.preprocess

    @property
    def uses_position_noise(self) -> bool:
        """Whether texts are shifted at random in training, so that their batches need `position_noise`."""
        return self.text_encoder.alignment == "shift"

    def encode_images(self, images: ImageBatch) -> Codes:
        return self._codes(self.image_encoder(images))

    def encode_texts(self, texts: TextBatch) -> Codes:
        return self._codes(self.text_encoder(texts))

    def image_features(self, images: ImageBatch) -> Tensor:
        """(n, channels): the input of the image head, pool5 of a ResNet."""
        return self.image_encoder.pooled(images)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_scores(_unit(image_codes), _unit(text_codes))

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return dot_score_pairs(_unit(image_codes), _unit(text_codes))

    def _codes(self, features: Tensor) -> Codes:
        codes = Codes(embedding=widen(features))
        return codes if self.training else _unit(codes)


def _unit(codes: Codes) -> Codes:
    return codes.map(lambda features: l2norm(features, eps=0))


class PixelPath(nn.Module):
    """Image tower, average over its grid, head. `flip_test`: in evaluation, the mean over image and mirror image."""

    image_input: Literal["pixels"] = "pixels"

    def __init__(self, tower: ImageTower, head: nn.Module, flip_test: bool) -> None:
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
    """The mean of precomputed cells or regions, head: the fixed image CNN of stage I, computed once."""

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
    """Words at their positions, text CNN, head.

    `alignment` "shift" starts a text at a random position in training (position shift), "left" always at the first. In
    evaluation texts start at the first, or with `test_positions` "all" their features are averaged over all shifts.
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
        """n texts -> (n, d)."""
        if not self.training and self.test_positions == "all":
            return self._every_shift(texts)
        return self._encode(texts.tokens, texts.lengths, self._starts(texts))

    def _starts(self, texts: TextBatch) -> Tensor:
        if self.alignment == "left" or not self.training:
            return torch.zeros_like(texts.lengths)
        if texts.position_noise is None:
            raise ValueError(
                "position shift needs a random number for each text; this TextBatch has none: set position_noise, "
                "(n,) in [0, 1), or encode in evaluation mode"
            )
        return random_starts(texts.position_noise, texts.lengths, self.length)

    def _encode(self, tokens: Tensor, lengths: Tensor, starts: Tensor) -> Tensor:
        return self.head(self.cnn(place_words(tokens, lengths, starts, self.length)))

    def _every_shift(self, texts: TextBatch) -> Tensor:
        rows, starts = every_shift(texts.lengths, self.length)
        parts = [
            self._encode(texts.tokens[row], texts.lengths[row], start)
            for row, start in zip(rows.split(BLOCK), starts.split(BLOCK), strict=True)
        ]
        features = torch.cat(parts)  # (shifts of all texts, d)
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
    test_positions="all"`. `view="squeeze"` measures on the whole image instead of its central square (people are
    taller than wide); `flip_test=False` where texts say left and right. `image_hidden` left out: 2,048, or the
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
        raise RecipeError("matcher 'dual-path': test_positions 'all' is for texts that were shifted in training")
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
