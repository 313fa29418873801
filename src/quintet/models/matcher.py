"""The one idea: encode, then score."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch


@runtime_checkable
class Matcher(Protocol):
    """What every method is: an `nn.Module` with these verbs.

    Losses, mining, evaluation, ensembles, search and benchmarks are written against them and nothing else.
    """

    image_input: Literal["fragments", "pixels"]  # what `encode_images` wants in its batch

    def encode_images(self, images: ImageBatch) -> Codes:
        """n images -> what the matcher keeps of them."""
        ...

    def encode_texts(self, texts: TextBatch) -> Codes:
        """n texts -> likewise."""
        ...

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts): every image against every text."""
        ...

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n,): row i against row i."""
        ...


@contextmanager
def evaluation_mode(matcher: Matcher) -> Iterator[None]:
    """Evaluation mode, then every module back in the mode it was in (parts kept frozen stay frozen)."""
    modes = [(module, module.training) for module in matcher.modules()] if isinstance(matcher, nn.Module) else []
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
