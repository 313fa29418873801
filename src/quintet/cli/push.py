"""`quintet push`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quintet.cli.options import RunArgument


def push_command(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Model on the hub.", show_default=False)],
    licence: Annotated[str, typer.Option(metavar="ID", help="Licence of the weights, as apache-2.0.")],
    result: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Result of `quintet evaluate RUN -o FILE` for the model card.")
    ] = None,
    limits: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it should not be used for, for the model card.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a private model, where it is new.")] = False,
) -> None:
    """Upload a run to the hub of Hugging Face, with a model card written from it.

    `quintet push runs/mine OWNER/NAME --licence apache-2.0 --result result.json`

    Then `hub:OWNER/NAME` stands wherever a run may stand. Log in before with `hf auth login`.
    """
    from quintet.runs.hub_upload import push

    page = push(run, name, licence=licence, result=result, limits=limits, private=private)
    Console().print(f"uploaded: {page}; open it as hub:{name}", highlight=False, markup=False, soft_wrap=True)
