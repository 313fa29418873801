"""What the cross-attention matchers share: unit regions, unit words, and builders that name a wrong choice."""

from __future__ import annotations

from typing import Any, Literal, get_args

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError, suggest
from quintet.layers.normalize import l2norm
from quintet.layers.regions import RegionProjection
from quintet.layers.text import BiGRUEncoder, WordFeatures

Words = Literal["bigru", "features"]


def encode_regions(encoder: RegionProjection, images: ImageBatch, unit: bool = True) -> Codes:
    """Projected regions (n, L, d), of unit length by default; mask and boxes are kept."""
    if images.fragments is None:
        raise RecipeError("this matcher reads features of regions, and the batch holds pixels; extract features first")
    regions = encoder(images.fragments, images.mask)
    return Codes(fragments=l2norm(regions) if unit else regions, mask=images.mask, boxes=images.boxes)


def create_words(
    text: Words, text_dim: int | None, vocabulary_size: int, word_dim: int, dim: int, **gru: Any
) -> BiGRUEncoder | WordFeatures:
    """A GRU, with what `BiGRUEncoder` takes, or a map of features of `text_dim` channels that come with the batch."""
    check_choice("text", text, Words)
    if text == "bigru":
        return BiGRUEncoder(vocabulary_size, word_dim, dim, **gru)
    if text_dim is None:
        raise RecipeError("text='features' needs text_dim, the channels of these features")
    return WordFeatures(text_dim, dim)


def encode_words(encoder: BiGRUEncoder | WordFeatures, texts: TextBatch, unit: bool = True) -> Codes:
    """Words (n, L, d), of unit length by default, and their mask."""
    if isinstance(encoder, WordFeatures):
        words, mask = encoder(texts.features), texts.real()
    else:
        words, mask = encoder(texts.tokens, texts.lengths)
    return Codes(fragments=l2norm(words) if unit else words, mask=mask)


def check_choice(argument: str, value: str, choices: Any) -> None:
    """Raise unless `value` is one of the strings of the Literal `choices`."""
    if value not in get_args(choices):
        raise RecipeError(f"{argument} cannot be {value!r}; {suggest(str(value), get_args(choices))}")
