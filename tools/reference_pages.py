"""Write docs/reference/*.md from the code: commands, recipe fields, matchers and losses, Python functions and classes.

python -m tools.reference_pages

The pages are plain Markdown, so that they can be read in the repository too. Signatures are read from the
source, so the pages do not depend on the version of Python.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import quintet
from benchmarks.pages.plain_table import table
from quintet.files import write_text

REFERENCE = Path(__file__).resolve().parents[1] / "docs/reference"
COMMAND = "Written by `python -m tools.reference_pages` from the code."


def cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


# Commands


def commands_page() -> str:
    from quintet.cli.main import app

    group = typer.main.get_command(app)
    context = group.make_context("quintet", [], resilient_parsing=True)
    parts = [f"# Commands\n\n{COMMAND} `quintet COMMAND --help` prints the same."]
    parts += [_command_text(f"quintet {path}", command) for path, command in _commands(group, context)]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, context: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from _commands(command, context, f"{before}{name} ")
        elif not command.hidden:
            yield before + name, command


def _command_text(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## {name}", inspect.cleandoc(command.help or ""), f"```text\n{usage}\n```"]
    rows = []
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            names = f"`{parameter.metavar or parameter.name.upper()}`"
        else:
            value = "" if parameter.is_flag else f" {parameter.metavar or parameter.type.name.upper()}"
            names = ", ".join(f"`{option}{value}`" for option in [*parameter.opts, *parameter.secondary_opts])
        rows.append((cell(names), cell(_default(parameter)), cell(parameter.help or "")))
    return "\n\n".join(part for part in [*parts, table(("", "default", "meaning"), rows)] if part)


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", True)
    if isinstance(shown, str):
        return shown
    default = parameter.default
    if parameter.required:
        return "needed"
    empty = default is None or default is False or default == () or default == [] or callable(default)
    return "" if empty or not shown else f"`{default}`"


# Recipes


def recipe_page() -> str:
    from quintet.training.recipe_models import Recipe

    schema = Recipe.model_json_schema()
    parts = [
        f"# Recipe fields\n\n{COMMAND} [Training](../training.md) explains them with examples. "
        "The arguments of `matcher` and of each loss are in [matchers and losses](models.md).",
        _fields("the recipe", schema, schema["$defs"]),
    ]
    named = [name for name in _order(schema) if name != "NamedRecipe"]  # of which models.md has the fields
    parts += [_fields(name, schema["$defs"][name], schema["$defs"]) for name in named]
    return "\n\n".join(parts) + "\n"


def _order(schema: dict[str, Any]) -> list[str]:
    """The definitions as they are met when the recipe is read from top to bottom."""
    met: list[str] = []
    left = [schema]
    while left:
        for field in left.pop(0)["properties"].values():
            for name in re.findall(r"#/\$defs/(\w+)", str(field)):
                if name not in met:
                    met.append(name)
                    left.append(schema["$defs"][name])
    return met


def _fields(name: str, model: dict[str, Any], definitions: dict[str, Any]) -> str:
    needed = model.get("required", [])
    rows = []
    for key, field in model.get("properties", {}).items():
        default = "needed" if key in needed else f"`{json.dumps(field['default'])}`"
        if "$ref" in field:  # a section, whose defaults are in its own table
            default = ""
        rows.append((f"`{key}`", cell(_type(field)), cell(default), cell(field.get("description", ""))))
    title = _title(name) if name in definitions else name.capitalize()
    about = model.get("description", "") if name in definitions else ""
    return "\n\n".join(part for part in (f"## {title}", about, table(("field", "type", "default", ""), rows)) if part)


def _title(name: str) -> str:
    """
    >>> _title("BatchRecipe")
    'Batch'
    """
    return name.removesuffix("Recipe")


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        title = _title(field["$ref"].rpartition("/")[2])
        if title == "Named":
            return "[name and arguments](models.md#matchers)"
        return f"[{title}](#{title.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    names = {"integer": "whole number", "boolean": "true or false", "object": "mapping", "null": "`null`"}
    words = [names.get(field["type"], field["type"]) if "type" in field else "any"]
    for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")):
        words += [f"{sign} {field[key]}"] if key in field else []
    return words[0] + (f" ({', '.join(words[1:])})" if words[1:] else "")


# Matchers and losses


def models_page() -> str:
    from quintet.losses import OBJECTIVES
    from quintet.models import MODELS

    parts = [
        f"# Matchers and losses\n\n{COMMAND} These are the names that a [recipe](recipe.md) uses, each with its "
        "arguments. `image_dim` and `vocabulary_size` are filled in from the data."
    ]
    for title, registry, level in (("Matchers", MODELS, 3), ("Losses", OBJECTIVES, 3)):
        parts.append(f"## {title}")
        parts += [entry_text(name, registry.builder(name), level) for name in registry.entries]
    return "\n\n".join(parts) + "\n"


# Python

MODULES = {
    "quintet.protocols": "What a matcher and a loss are, and their optional abilities.",
    "quintet.losses.step": "What a loss is given, and what it returns.",
    "quintet.losses.triplet": "The hinge of VSE++, SCAN, BFAN, VSRN and HREM; the contrastive loss.",
    "quintet.losses.quintuplet": "AOQ.",
    "quintet.losses.instance": "Dual-Path, stage 1.",
    "quintet.losses.ranking": "Dual-Path, stage 2.",
    "quintet.losses.relation": "HREM.",
    "quintet.scores.cross_attention": "SCAN and BFAN: from fragments to scores.",
    "quintet.scores.joint_attention": "MMCA: from fragments to scores.",
    "quintet.evaluation.metrics": "R@K, rsum and the chance level of a score matrix.",
    "quintet.evaluation.ranks": "Ranks by counting.",
    "quintet.evaluation.significance": "Bootstrap intervals and the paired test.",
    "quintet.evaluation.human_agreement": "Agreement with people's judgements.",
}


def python_page() -> str:
    parts = [f"# quintet\n\n{COMMAND} [Quintet from Python](../python.md) shows these functions at work."]
    names = sorted(
        (name for name in quintet.__all__ if not name.startswith("_")), key=lambda name: (name[0].isupper(), name)
    )
    parts += [entry_text(name, getattr(quintet, name), 2) for name in names]
    return "\n\n".join(parts) + "\n"


def modules_page() -> str:
    import importlib

    parts = [
        f"# Modules\n\n{COMMAND} Pure functions on tensors, and the protocols that methods follow. Each can be used "
        "without the rest of Quintet."
    ]
    for name, about in MODULES.items():
        module = importlib.import_module(name)
        parts.append(f"## {name}\n\n{about}")
        parts += [entry_text(key, entry, 3) for key, entry in public(module)]
    return "\n\n".join(parts) + "\n"


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The functions and classes that a module defines, in its order."""
    for name, entry in vars(module).items():
        own = inspect.isfunction(entry) or inspect.isclass(entry)
        if own and not name.startswith("_") and entry.__module__ == module.__name__:
            yield name, entry


def entry_text(name: str, entry: Any, level: int) -> str:
    parts = [f"{'#' * level} {name}", f"```py\n{signature(entry)}\n```", docstring(entry)]
    if inspect.isclass(entry) and not issubclass(entry, BaseException):
        for key, member in vars(entry).items():
            member = getattr(member, "__func__", member)  # of class and static methods
            if not key.startswith("_") and inspect.isfunction(inspect.unwrap(member)) and docstring(member):
                parts += [f"```py\n{signature(member)}\n```", docstring(member)]
    return "\n\n".join(part for part in parts if part)


def signature(entry: Callable[..., Any]) -> str:
    """
    >>> print(signature(cell))
    cell(text: object) -> str
    """
    node = ast.parse(inspect.cleandoc("\n" + inspect.getsource(inspect.unwrap(entry)))).body[0]
    if isinstance(node, ast.ClassDef):
        return _class_signature(node)
    assert isinstance(node, ast.FunctionDef), entry
    return _laid_out(node.name, node.args, node.returns)


def _class_signature(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return f"{head}\n{_laid_out(node.name, each.args, None)}"
    fields = [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)]
    return "\n".join([head, *(f"    {each}" for each in fields if not each.startswith("_"))])


def _laid_out(name: str, arguments: ast.arguments, returns: ast.expr | None) -> str:
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    after = f" -> {ast.unparse(returns)}" if returns is not None else ""
    line = f"{name}({ast.unparse(arguments)}){after}"
    if len(line) <= 100:
        return line
    call = ast.parse(f"def f({ast.unparse(arguments)}): ...").body[0]
    assert isinstance(call, ast.FunctionDef)
    return f"{name}(\n" + "".join(f"    {each},\n" for each in _parts(call.args)) + f"){after}"


def _parts(arguments: ast.arguments) -> Iterator[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for each, default in zip(plain, defaults, strict=True):
        yield _argument(each, default)
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(each, default)
    if arguments.kwarg is not None:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    return f"{ast.unparse(argument)}{' = ' if argument.annotation else '='}{ast.unparse(default)}"


def docstring(entry: Any) -> str:
    """Its docstring, examples as blocks of code."""
    text = inspect.cleandoc(getattr(entry, "__doc__", None) or "")
    blocks = re.split(r"\n\s*\n", text)
    return "\n\n".join(f"```pycon\n{block}\n```" if block.lstrip().startswith(">>>") else block for block in blocks)


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page,
    "recipe": recipe_page,
    "models": models_page,
    "python": python_page,
    "modules": modules_page,
}


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        write_text(REFERENCE / f"{name}.md", page())
