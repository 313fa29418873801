"""The methods, by name. A new one is a file in this folder and a line in `MODELS`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quintet.registry import Registry

if TYPE_CHECKING:
    from quintet.models.size_limit import create_model as create_model

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
        "clip": "quintet.models.clip:build_clip",
        "clip-tokens": "quintet.models.clip_tokens:build_clip_tokens",
    },
)


def list_models() -> list[str]:
    """The names that `create_model` takes."""
    return MODELS.names()


if not TYPE_CHECKING:  # `create_model` imports torch, which lists of names do without

    def __getattr__(name: str) -> Any:
        if name == "create_model":
            return import_module("quintet.models.size_limit").create_model
        raise AttributeError(f"module 'quintet.models' has no attribute {name!r}")
