"""`quintet models` and `quintet recipes`: what there is to choose from."""

from __future__ import annotations

import inspect
import json

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def models_command(
    name: str | None = typer.Argument(None, help="Show the arguments of this matcher."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the matchers, or the arguments of one: each can be set in a recipe under `matcher:`."""
    from quintet.models import MODELS

    if name is None:
        rows = {known: _first_line(MODELS.builder(known)) for known in MODELS.names()}
        _show(rows, ("matcher", "what it is"), as_json)
        return
    arguments = {
        key: "needed" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        for key, parameter in MODELS.parameters(name).items()
    }
    _show(arguments, ("argument", "default"), as_json)


def recipes_command(
    name: str | None = typer.Argument(None, help="Print this recipe, to read or to copy."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the shipped recipes, or print one: `quintet recipes vse-scenes > mine.yaml` starts your own."""
    from quintet.training.recipe import list_recipes, load_recipe, recipe_text

    if name is not None and as_json:
        print(json.dumps(load_recipe(name).model_dump(mode="json", by_alias=True), indent=2))
        return
    if name is not None:
        print(recipe_text(name), end="")
        return
    _show(list_recipes(), ("recipe", "how it is run"), as_json)


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _show(rows: dict[str, str], columns: tuple[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(*columns, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for key, value in rows.items():
        table.add_row(escape(key), escape(value))
    Console().print(table, highlight=False)
