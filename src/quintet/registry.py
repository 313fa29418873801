"""Tables from the names in recipes to builders, with errors that suggest the right name or argument."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

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
        self._check_types(name, arguments)
        try:
            return self.builder(name)(**arguments)
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            if isinstance(error, NotImplementedError | RecursionError) or "out of memory" in str(error):
                raise
            raise RecipeError(f"{self.kind} {name!r} refused its arguments: {error}") from error

    def _check_types(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise where a value is not of the type in the builder's signature: "abc" or NaN for a number."""
        from pydantic import ConfigDict, TypeAdapter, ValidationError

        builder = self.builder(name)
        try:
            hints = get_type_hints(builder.__init__ if inspect.isclass(builder) else builder)
        except (NameError, TypeError):  # a builder of C, or of a package whose annotations need another
            return
        strict = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
        for key in arguments.keys() & hints.keys():
            value = arguments[key]
            plain = value.item() if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0 else value  # of numpy
            try:
                TypeAdapter(hints[key], config=strict).validate_python(plain)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                names = get_args(hints[key]) if get_origin(hints[key]) is Literal else ()
                hint = suggest(value, names) if names and isinstance(value, str) else reason[:1].lower() + reason[1:]
                raise RecipeError(f"{self.kind} {name!r}: {key} cannot be {str(value)[:80]!r}; {hint}") from None
            if isinstance(plain, int) and plain < 0 and hints[key] is not float:
                raise RecipeError(f"{self.kind} {name!r}: {key} cannot be {plain}: it is a size or a count")

    def complete(self, name: str, arguments: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """`arguments`, completed with those `facts` that the builder takes and that are not set (sizes of the data)."""
        wanted = {key: facts[key] for key in self.parameters(name) if key in facts}
        return wanted | dict(arguments)
