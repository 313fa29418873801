"""The methods, by name. A new one is a file in this folder and a line in `BUILDERS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from quintet.errors import RecipeError, suggest

# name -> "module:function"; the function takes plain keyword arguments and returns a Matcher
BUILDERS: dict[str, str] = {
    "vse++": "quintet.models.vse:build_vse",
}


def list_models() -> list[str]:
    """The names that `create_model` takes."""
    return sorted(BUILDERS)


def model_builder(name: str) -> Callable[..., nn.Module]:
    """The function that makes the matcher of this name; its signature is the list of its arguments."""
    if name not in BUILDERS:
        raise RecipeError(f"there is no matcher {name!r}; {suggest(name, BUILDERS)}")
    module, function = BUILDERS[name].split(":")
    return getattr(import_module(module), function)


def create_model(name: str, **arguments: Any) -> nn.Module:
    """Make a matcher from its name and plain arguments.

    >>> matcher = create_model("vse++", image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4)
    >>> type(matcher).__name__
    'VSE'
    """
    builder = model_builder(name)
    known = inspect.signature(builder).parameters
    for argument in arguments:
        if argument not in known:
            raise RecipeError(f"matcher {name!r} takes no argument {argument!r}; {suggest(argument, known)}")
    lacking = [key for key, value in known.items() if value.default is inspect.Parameter.empty and key not in arguments]
    if lacking:
        raise RecipeError(f"matcher {name!r} needs the argument {lacking[0]!r}")
    return builder(**arguments)
