"""`quintet results`: result files of one's own and of others in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quintet.cli.options import Command, CommandGroup, JsonOption
from quintet.cli.terminal import print_json, print_text

results_app = typer.Typer(
    name="results", cls=CommandGroup, no_args_is_help=True, help="Collect results of several people and machines."
)


@results_app.callback()
def _group() -> None:
    pass


@results_app.command("add", cls=Command)
def add_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files of `quintet evaluate -o`, of a study or of a grid.")
    ],
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the results.")] = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Add result files to a leaderboard.

    `quintet results add mine.json --folder results`

    Files are copied into the folder, and its leaderboard.md is written and printed. Refused are results on another
    split or protocol, results that are there already, and files without code version, device, seed or split checksum.
    """
    from quintet.evaluation.leaderboard import TABLE, add_results

    board = add_results(files, folder=folder)
    if as_json:
        print_json(board.to_json(), indent=2)
        return
    print_text(board.table())
    Console(stderr=True).print(f"written: {board.folder / TABLE}", markup=False, highlight=False, soft_wrap=True)
