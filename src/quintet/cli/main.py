"""The `quintet` command: parse, call the library, print."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from typer.core import TyperGroup

import quintet
from quintet.cli.analyse import analyse_command
from quintet.cli.convert import convert_command
from quintet.cli.data import data_app
from quintet.cli.demo import demo_command
from quintet.cli.evaluate import evaluate_command
from quintet.cli.export import export_command
from quintet.cli.features import features_command
from quintet.cli.index import index_command
from quintet.cli.lists import models_command, recipes_command
from quintet.cli.mine import mine_command
from quintet.cli.report import report_command
from quintet.cli.search import search_command
from quintet.cli.serve import serve_command
from quintet.cli.study import StudyCommand, study_command
from quintet.cli.train import train_command
from quintet.errors import QuintetError, suggest


class _Commands(TyperGroup):
    """Commands that answer a typo with the nearest name."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]  # click's own signature
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"there is no command {args[0]!r}; {suggest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Match images and texts: train the published methods, measure them, search your own images.",
)
app.add_typer(data_app, name="data")
app.command("demo")(demo_command)
app.command("features")(features_command)
app.command("train")(train_command)
app.command("evaluate")(evaluate_command)
app.command("analyse")(analyse_command)
app.command("report")(report_command)
app.command("mine")(mine_command)
app.command("study", cls=StudyCommand)(study_command)
app.command("index")(index_command)
app.command("search")(search_command)
app.command("serve")(serve_command)
app.command("convert")(convert_command)
app.command("export")(export_command)
app.command("models")(models_command)
app.command("recipes")(recipes_command)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(f"quintet {quintet.__version__}")
        raise typer.Exit


def run() -> None:
    """Exit status: 0 done, 1 an error that its message explains, 2 wrong usage, 130 interrupted."""
    errors = Console(stderr=True)
    try:
        app()
    except QuintetError as error:
        errors.print("error:", style="bold red", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        sys.exit(130)
