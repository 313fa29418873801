"""`quintet run`: what can be asked of a run folder."""

from __future__ import annotations

import typer
from rich.console import Console

from quintet.cli.options import Command, CommandGroup, JsonOption, RunArgument
from quintet.cli.terminal import print_json, shown
from quintet.errors import QuintetError, RunError

run_app = typer.Typer(name="run", cls=CommandGroup, no_args_is_help=True, help="Check the files of a trained run.")


@run_app.callback()
def _group() -> None:
    pass


@run_app.command("verify", cls=Command)
def verify_command(run: RunArgument, as_json: JsonOption = False) -> None:
    """Compare every file of a run with the checksum that was taken when it was written.

    `quintet run verify runs/first`

    Exit status 0: all files are what was written; 1: some are damaged or missing, and are listed. Nothing is changed.
    """
    from quintet.runs.run_folder import read_head, verify_run

    found = verify_run(run)
    if not found.damaged and read_head(found.folder)["status"] == "complete":
        from quintet.runs.run import load

        try:
            load(found.folder, device="cpu")
        except QuintetError as error:
            found.damaged["model.json"] = str(error)
    if as_json:
        facts = {"run": str(found.folder), "files": found.checked, "checksums": found.has_checksums}
        print_json(facts | {"damaged": found.damaged})
    console = Console(stderr=True, quiet=as_json)
    for problem in found.damaged.values():
        console.print(problem, highlight=False, markup=False, soft_wrap=True)
    if found.damaged:
        raise RunError(
            f"{len(found.damaged)} of {found.checked} files of {found.folder} are damaged or missing: "
            f"{', '.join(found.damaged)}"
        )
    known = "are what was written" if found.has_checksums else "can be read (an earlier version wrote no checksums)"
    console.print(f"{found.checked} files of {shown(found.folder)} {known}", highlight=False, markup=False)
