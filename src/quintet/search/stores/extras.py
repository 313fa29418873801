"""Packages that only some stores need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from quintet.search.errors import StoreError


def required(package: str, extra: str) -> Any:
    """The module, or an error that says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise StoreError(f"this store needs the extra `{extra}`: `pip install 'quintet[{extra}]'` ({error})") from None
