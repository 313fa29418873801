"""`quintet models` and `quintet recipes`."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quintet.cli.options import JsonOption, complete_model, complete_recipe
from quintet.cli.terminal import print_json, print_text
from quintet.errors import RecipeError


def models_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="List the arguments of this matcher.", autocompletion=complete_model),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the matchers and the published models with a short name, or the arguments of a matcher.

    Arguments are set in a recipe, under `matcher:`, and defaults are shown as a recipe writes them.
    """
    from quintet.models import MODELS

    if name is None:
        rows = {known: MODELS.summary(known) for known in MODELS.names()}
        _show(rows, ("matcher", "what it is"), as_json)
        if not as_json:
            _show_aliases()
        return
    arguments = {
        key: "needed" if parameter.default is inspect.Parameter.empty else json.dumps(parameter.default)
        for key, parameter in MODELS.parameters(name).items()
    }
    _show(arguments, ("argument", "default"), as_json)


def _show_aliases() -> None:
    from quintet.data.pretrained import ALIASES, PREFIX

    table = Table("run", "model", "weights", "licence", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in table.columns:
        column.overflow = "fold"
    for short, model in ALIASES.items():
        table.add_row(f"{PREFIX}{short}", model.name, model.size, model.licence)
    Console().print("\n[bold]Published models[/] that stand for a run, as any hf:FOLDER or hf:HUB_NAME does:")
    Console().print(table, highlight=False)


def recipes_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[show NAME]",
            help="Print this recipe, a shipped one or a YAML file, with the recipe it extends filled in.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, as in stages.*.epochs=5; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; of one recipe, with all defaults.")] = False,
) -> None:
    """List the shipped recipes, or print one.

    `quintet recipes show vse-scenes > mine.yaml` starts a recipe of your own.
    """
    from quintet.training.recipe import list_recipes, load_recipe, show_recipe

    shown = names[1:] if names and names[0] == "show" else names or []
    if len(shown) > 1 or (names and not shown):
        raise RecipeError(f"name one recipe: `quintet recipes show NAME`; got {' '.join(names or [])!r}")
    if not shown:
        if changes:
            raise RecipeError("--set changes one recipe: `quintet recipes show NAME --set KEY=VALUE`")
        _show(list_recipes(), ("recipe", "how it is run"), as_json)
    elif as_json:
        print_json(load_recipe(shown[0], changes or ()).model_dump(mode="json", by_alias=True), indent=2)
    else:
        print_text(show_recipe(shown[0], changes or ()).removesuffix("\n"))


def _show(rows: dict[str, str], columns: tuple[str, str], as_json: bool) -> None:
    if as_json:
        print_json(rows, indent=2)
        return
    table = Table(*columns, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for key, value in rows.items():
        table.add_row(escape(key), escape(value))
    Console().print(table, highlight=False)
