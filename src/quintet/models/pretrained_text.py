"""Text encoders that recipes name `hf:FOLDER` or `hf:HUB_NAME`."""

from __future__ import annotations

from typing import Any

from quintet.backbones.text_encoder import HuggingFaceText
from quintet.errors import RecipeError

PREFIX = "hf:"


def pretrained_text(matcher: str, text: str, others: str, vocabulary_size: int, **settings: Any) -> HuggingFaceText:
    """The encoder that `text` names, with `settings` as `HuggingFaceText` takes them; `others`: what else it may be."""
    if not text.startswith(PREFIX):
        raise RecipeError(f"matcher {matcher!r}: text is {others} or '{PREFIX}FOLDER_OR_HUB_NAME', not {text!r}")
    name = text.removeprefix(PREFIX)
    encoder = HuggingFaceText(name, **settings)
    if encoder.vocabulary_size < vocabulary_size:
        raise RecipeError(
            f"the tokenizer has {vocabulary_size} ids, but the text encoder {name} knows {encoder.vocabulary_size}; "
            f"use its own: data.tokenizer={{kind: wordpiece, source: {name}}}"
        )
    return encoder
