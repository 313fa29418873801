"""A method of fragments over the patches and words of a dual encoder: SCAN, BFAN, MMCA or HREM over CLIP.

Not from one of the papers, which read regions of a detector and words of a GRU or of BERT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError, suggest
from quintet.models.bfan import build_bfan
from quintet.models.clip import DualEncoder, build_clip
from quintet.models.hrem import build_hrem
from quintet.models.mmca import build_mmca
from quintet.models.scan import build_scan

Method = Literal["scan", "bfan", "mmca", "hrem"]
Images = Literal["pixels", "features"]
METHODS: dict[str, Any] = {"scan": build_scan, "bfan": build_bfan, "mmca": build_mmca, "hrem": build_hrem}


class WordsOf(nn.Module):
    """The words of a frozen dual encoder, for those who keep them on disk."""

    def __init__(self, encoder: DualEncoder, name: str) -> None:
        super().__init__()
        self.encoder, self.name = encoder, name
        self.dim = encoder.widths[1]

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids, (n,) -> (n, L, dim)."""
        with torch.no_grad():
            return self.encoder.words(TextBatch(tokens, lengths))[0]


class ClipTokens(nn.Module):
    """The score is that of the method. Its Codes also hold the dual encoder's embedding, where the method has none of
    its own and images are pixels: search chooses candidates with it, and the method re-ranks them.
    """

    def __init__(self, encoder: DualEncoder, method: Any, images: Images, trainable: bool, name: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.method = method
        self.image_input: Literal["fragments", "pixels"] = "pixels" if images == "pixels" else "fragments"
        self.name = name
        self.keeps_embedding = images == "pixels" and not hasattr(method, "embed_dim")
        encoder.requires_grad_(trainable)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._frozen():
            self.encoder.eval()
        return self

    def _frozen(self) -> bool:
        return not any(parameter.requires_grad for parameter in self.encoder.parameters())

    @property
    def preprocess(self) -> Preprocess:
        """Only a matcher of pixels has one."""
        if self.image_input != "pixels":
            raise AttributeError("a matcher of features takes no pixels, so it has no preprocess")
        return self.encoder.preprocess

    @property
    def embed_dim(self) -> int:
        """Of the method, where it gives every item one vector."""
        return int(self.method.embed_dim)

    @property
    def region_dim(self) -> int:
        return int(self.method.region_dim)

    def frozen_text_encoder(self) -> WordsOf | None:
        """Where nothing but the words is wanted of a frozen encoder, so that training may read them from a file."""
        return WordsOf(self.encoder, self.name) if self._frozen() and not self.keeps_embedding else None

    def encode_images(self, images: ImageBatch) -> Codes:
        if self.image_input == "fragments":
            return self._method_codes(self.method.encode_images(images), None)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen()):
            patches, real, codes = self.encoder.patches(images)
        return self._method_codes(self.method.encode_images(ImageBatch(fragments=patches, mask=real)), codes)

    def encode_texts(self, texts: TextBatch) -> Codes:
        codes = None
        if texts.features is None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen()):
                words, codes = self.encoder.words(texts)
            texts = replace(texts, features=words)
        return self._method_codes(self.method.encode_texts(texts), codes)

    def _method_codes(self, codes: Codes, whole: Codes | None) -> Codes:
        if whole is None or self.training or not self.keeps_embedding:
            return codes
        return replace(codes, embedding=whole.embedding)

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return self.method.score(image_codes, text_codes)

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        return self.method.score_pairs(image_codes, text_codes)


def build_clip_tokens(
    *,
    source: str | None = None,
    method: str = "scan",
    arguments: dict[str, Any] | None = None,
    images: str = "pixels",
    image_dim: int | None = None,
    trainable: bool = False,
    config: dict[str, Any] | None = None,
    preprocess: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    pretrained: bool = True,
    vocabulary_size: int | None = None,
    end_token: int | None = None,
) -> ClipTokens:
    """SCAN, BFAN, MMCA or HREM over the patches and words of a dual encoder, such as CLIP.

    - `method`: "scan", "bfan", "mmca" or "hrem"; `arguments` are those of its matcher.
    - `images`: "pixels", through the encoder each time, or "features": its patches, which `quintet features` has stored
      with the tower of the same name.
    - `trainable`: train the dual encoder with the method; else it is frozen.
    - `source`, `config`, `preprocess`, `text`, `pretrained`, `vocabulary_size`, `end_token`: see the matcher `clip`.
    """
    for argument, value, choices in (("method", method, get_args(Method)), ("images", images, get_args(Images))):
        if value not in choices:
            raise RecipeError(f"matcher 'clip-tokens': {argument} cannot be {value!r}; {suggest(value, choices)}")
    if images == "features" and trainable:
        raise RecipeError("matcher 'clip-tokens': stored features do not change; leave trainable out, or take pixels")
    encoder = build_clip(
        source=source,
        config=config,
        preprocess=preprocess,
        text=text,
        pretrained=pretrained,
        vocabulary_size=vocabulary_size,
        end_token=end_token,
    )
    patches, words = encoder.widths
    if image_dim not in (None, patches):
        raise RecipeError(
            f"matcher 'clip-tokens': the stored features have {image_dim} channels, the encoder's patches {patches}; "
            "make them with `quintet features --tower` and the same model"
        )
    sizes = {"image_dim": patches, "vocabulary_size": 1, "text": "features", "text_dim": words}
    given = arguments or {}
    if taken := sizes.keys() & given.keys():
        raise RecipeError(f"matcher 'clip-tokens': {', '.join(sorted(taken))} of {method!r} follow from its encoder")
    try:
        inner = METHODS[method](**sizes, **given)
    except TypeError as error:
        raise RecipeError(f"matcher 'clip-tokens': arguments of {method!r}: {error}") from None
    return ClipTokens(encoder, inner, "pixels" if images == "pixels" else "features", trainable, source or "config")
