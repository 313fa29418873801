"""Tables from the names in recipes to builders, with errors that suggest the right name or argument."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quintet.errors import RecipeError, suggest

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Registry:
    """`entries` maps a name to "module:builder"; the module is imported when the name is first used."""

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self.entries = entries

    def names(self) -> list[str]:
        return sorted(self.entries)

    def builder(self, name: str) -> Callable[..., Any]:
        if name not in self.entries:
            raise RecipeError(f"there is no {self.kind} {name!r}; {suggest(name, self.entries)}")
        module, attribute = self.entries[name].split(":")
        return getattr(import_module(module), attribute)

    def summary(self, name: str) -> str:
        """The first line of a builder's docstring, read from the source: nothing is imported."""
        module, attribute = self.entries[name].split(":")
        spec = find_spec(module)
        assert spec is not None, module
        assert spec.origin is not None, module
        for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == attribute:
                return (ast.get_docstring(node) or "").partition("\n")[0]
        return ""

    def parameters(self, name: str) -> Mapping[str, inspect.Parameter]:
        """The arguments its builder takes."""
        return inspect.signature(self.builder(name)).parameters

    def create(self, name: str, **arguments: Any) -> Any:
        known = self.parameters(name)
        for argument in arguments:
            if argument not in known:
                raise RecipeError(f"{self.kind} {name!r} takes no argument {argument!r}; {suggest(argument, known)}")
        for key, parameter in known.items():
            if parameter.kind in VARIADIC:  # *args and **kwargs need no value
                continue
            if parameter.default is inspect.Parameter.empty and key not in arguments:
                raise RecipeError(f"{self.kind} {name!r} needs the argument {key!r}")
        try:
            return self.builder(name)(**arguments)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"{self.kind} {name!r} refused its arguments: {error}") from error

    def complete(self, name: str, arguments: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """`arguments`, completed with those `facts` that the builder takes and that are not set (sizes of the data)."""
        wanted = {key: facts[key] for key in self.parameters(name) if key in facts}
        return wanted | dict(arguments)
