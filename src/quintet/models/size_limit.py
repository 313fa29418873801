"""Build what a name and arguments describe within a bound of memory, which is checked before each tensor is made."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from quintet.errors import RecipeError
from quintet.models import MODELS
from quintet.protocols import Matcher
from quintet.registry import Registry

MAX_TENSORS = 10_000  # the largest published matchers have about a thousand
ELEMENT = 4  # bytes
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.arange}


class _TooLargeError(Exception):
    """More memory or more tensors than allowed; not an error of a library, so that nothing catches it on the way."""


class _Bounded(TorchFunctionMode):
    """Counts what torch's factory functions are asked for, and refuses before they allocate it."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.used, self.tensors = limit, 0, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES or func is torch.Tensor.clone:  # deepcopy clones the parameters of a layer
            self.tensors += 1
            self.used += ELEMENT * (_elements(kwargs.get("size", args)) if func in _FACTORIES else args[0].numel())
            if self.used > self.limit or self.tensors > MAX_TENSORS:
                raise _TooLargeError
        return func(*args, **kwargs)


def _elements(sizes: Sequence[Any]) -> int:
    """How many elements `torch.empty(*sizes)` makes, or `torch.empty(sizes)`."""
    shape = next((size for size in sizes if isinstance(size, list | tuple)), sizes)
    return math.prod(size for size in shape if isinstance(size, int))


def create_model(name: str, **arguments: Any) -> Matcher:
    """Make a matcher from its name and plain arguments.

    >>> matcher = create_model("vse++", image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4)
    >>> type(matcher).__name__
    'VSE'
    """
    matcher: Matcher = build_within(MODELS, name, arguments)
    return matcher


def build_within(registry: Registry, name: str, arguments: Mapping[str, Any], limit: int | None = None) -> Any:
    """`registry.create`, with at most `limit` bytes of tensors.

    The default is half the memory of this machine: training needs as much again for the gradients.
    """
    if limit is None:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        with _Bounded(limit):
            return registry.create(name, **arguments)
    except _TooLargeError:
        sizes = sorted(_sizes(arguments), key=lambda size: -size[1])[:3]
        listed = ", ".join(f"{key}={size}" for key, size in sizes)
        raise RecipeError(
            f"{registry.kind} {name!r} with {listed} would take more than {limit / 2**30:.1f} GiB; choose smaller sizes"
        ) from None


def _sizes(arguments: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _sizes(value, f"{prefix}{key}.")
        elif isinstance(value, int):
            yield f"{prefix}{key}", value
