"""The methods, by name. A new one is a file in this folder and a line in `MODELS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quintet.registry import Registry

if TYPE_CHECKING:
    from quintet.protocols import Matcher

# name -> "module:function"; the function takes plain keyword arguments and returns a Matcher
MODELS = Registry(
    "matcher",
    {
        "vse++": "quintet.models.vse:build_vse",
        "scan": "quintet.models.scan:build_scan",
        "bfan": "quintet.models.bfan:build_bfan",
        "vsrn": "quintet.models.vsrn:build_vsrn",
        "mmca": "quintet.models.mmca:build_mmca",
        "hrem": "quintet.models.hrem:build_hrem",
        "dual-path": "quintet.models.dual_path:build_dual_path",
        "heads": "quintet.models.heads:build_heads",
    },
)


def list_models() -> list[str]:
    """The names that `create_model` takes."""
    return MODELS.names()


def create_model(name: str, **arguments: Any) -> Matcher:
    """Make a matcher from its name and plain arguments.

    >>> matcher = create_model("vse++", image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4)
    >>> type(matcher).__name__
    'VSE'
    """
    from quintet.models.size_limit import build_within  # imports torch

    return build_within(MODELS, name, arguments)
