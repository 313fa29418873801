"""The `quintet` command: parse, call the library, print. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

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
from quintet.cli.mining import mine_command
from quintet.cli.options import Command, CommandGroup
from quintet.cli.push import push_command
from quintet.cli.report import report_command
from quintet.cli.results import results_app
from quintet.cli.runs import run_app
from quintet.cli.search import search_command
from quintet.cli.serve import serve_command
from quintet.cli.study import study_app
from quintet.cli.terminal import finish_streams, prepare_streams, print_error, print_text
from quintet.cli.train import train_command
from quintet.errors import QuintetError

SEARCH = "Search your photos"
TRAIN = "Train"
MEASURE = "Evaluate and analyse"
TOOLS = "Mine, convert, export"

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Image-text retrieval: search your photos by text; train, mine, evaluate and serve the published methods.",
)
app.command("index", cls=Command, rich_help_panel=SEARCH)(index_command)
app.command("search", cls=Command, rich_help_panel=SEARCH)(search_command)
app.command("serve", cls=Command, rich_help_panel=SEARCH)(serve_command)
app.command("demo", cls=Command, rich_help_panel=SEARCH)(demo_command)
app.command("train", cls=Command, rich_help_panel=TRAIN)(train_command)
app.command("features", cls=Command, rich_help_panel=TRAIN)(features_command)
app.add_typer(data_app, name="data", rich_help_panel=TRAIN)
app.command("recipes", cls=Command, rich_help_panel=TRAIN)(recipes_command)
app.command("models", cls=Command, rich_help_panel=TRAIN)(models_command)
app.command("evaluate", cls=Command, rich_help_panel=MEASURE)(evaluate_command)
app.command("analyse", cls=Command, rich_help_panel=MEASURE)(analyse_command)
app.command("report", cls=Command, rich_help_panel=MEASURE)(report_command)
app.add_typer(study_app, name="study", rich_help_panel=MEASURE)
app.add_typer(results_app, name="results", rich_help_panel=MEASURE)
app.command("mine", cls=Command, rich_help_panel=TOOLS)(mine_command)
app.command("convert", cls=Command, rich_help_panel=TOOLS)(convert_command)
app.add_typer(run_app, name="run", rich_help_panel=TOOLS)
app.command("export", cls=Command, rich_help_panel=TOOLS)(export_command)
app.command("push", cls=Command, rich_help_panel=TOOLS)(push_command)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print_text(f"quintet {quintet.__version__}")
        raise typer.Exit


def run() -> None:
    """Exit status: 0 done, 1 an error that its message explains, 2 wrong usage, 130 interrupted.

    3: `quintet index` is done, but kept what it could not list.
    """
    is_search = sys.argv[1:2] == ["search"]
    if is_search:
        gc.disable()  # a search is over before there is anything to collect
    prepare_streams()
    status = _run()
    written = finish_streams()
    status = status if written else status or 1
    if is_search and "torch" in sys.modules and not isinstance(status, str):
        atexit._run_exitfuncs()
        os._exit(status or 0)  # taking torch's modules down would take a third of a second
    sys.exit(status)


def _run() -> int | str | None:
    try:
        app(prog_name="quintet")
    except SystemExit as stop:
        return stop.code
    except QuintetError as error:
        print_error(str(error))
    except BrokenPipeError:
        pass
    except KeyboardInterrupt:
        with suppress(OSError):
            Console(stderr=True).print("interrupted", style="yellow")
        return 130
    else:
        return 0
    return 1
