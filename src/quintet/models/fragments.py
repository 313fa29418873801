"""What the cross-attention matchers share: unit regions, unit words, and builders that name a wrong choice."""

from __future__ import annotations

from typing import Any, get_args

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch
from quintet.errors import RecipeError, suggest
from quintet.layers.normalize import l2norm
from quintet.layers.regions import RegionProjection
from quintet.layers.text import BiGRUEncoder


def encode_regions(encoder: RegionProjection, images: ImageBatch) -> Codes:
    """Projected regions of unit length (n, L, d); mask and boxes are kept."""
    if images.fragments is None:
        raise RecipeError("this matcher reads features of regions, and the batch holds pixels; extract features first")
    return Codes(fragments=l2norm(encoder(images.fragments, images.mask)), mask=images.mask, boxes=images.boxes)


def encode_words(encoder: BiGRUEncoder, texts: TextBatch) -> Codes:
    """Words of unit length (n, L, d) and their mask."""
    words, mask = encoder(texts.tokens, texts.lengths)
    return Codes(fragments=l2norm(words), mask=mask)


def check_choice(argument: str, value: str, choices: Any) -> None:
    """Raise unless `value` is one of the strings of the Literal `choices`."""
    if value not in get_args(choices):
        raise RecipeError(f"{argument} cannot be {value!r}; {suggest(str(value), get_args(choices))}")
