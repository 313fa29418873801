"""`quintet train`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quintet.cli.options import DeviceOption, complete_recipe
from quintet.cli.progress import TrainingDisplay
from quintet.cli.resume import says_how_to_go_on
from quintet.cli.terminal import print_json, shell_quoted
from quintet.errors import RecipeError


def train_command(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="Name of a shipped recipe (`quintet recipes` lists them), or a YAML file.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Fields of the recipe to change, as in stages.online.epochs=5 or matcher.embed_dim=256.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="RUN", help="Run folder to write.")] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(metavar="CORPUS", help="Corpus folder to train on; sets the field data.corpus of the recipe."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue this run from its last checkpoint, bit-exactly.")
    ] = None,
    device: DeviceOption = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the validation metrics of each stage as JSON and nothing else.")
    ] = False,
) -> None:
    """Train a recipe into a run folder.

    `quintet train vse-scenes --corpus corpora/scenes -o runs/first`

    `quintet train --resume runs/first` continues a run that was stopped.

    Several processes share each batch: `torchrun --nproc-per-node 2 -m quintet train ...`.
    """
    from quintet.runs.run_folder import is_begun, read_head

    if resume is not None:
        if recipe is not None:
            raise RecipeError("--resume takes no recipe: the run has its own")
        if out is not None or corpus is not None:
            raise RecipeError("--resume takes neither --out nor --corpus: the run has its own folder and corpus")
        if os.environ.get("RANK", "0") == "0":  # under torchrun the first node has it, and others get a copy
            read_head(resume)
    else:
        from quintet.data.corpus import read_corpus_head
        from quintet.training.recipe import load_recipe

        if recipe is None or out is None:
            raise RecipeError(
                "name a recipe and a folder: `quintet train RECIPE -o RUN` (`quintet recipes` lists them)"
            )
        settings = [*(overrides or []), *([f"data.corpus={json.dumps(str(corpus))}"] if corpus else [])]
        loaded = load_recipe(recipe, settings)
        if loaded.data.corpus is not None:
            read_corpus_head(loaded.data.corpus)

    from quintet import distributed
    from quintet.training.stages import train

    first = distributed.is_main_launched()
    console = Console(stderr=True, quiet=as_json or not first)
    folder = resume or out
    with says_how_to_go_on(console, "no step is made yet, and the same command goes on"):
        try:
            with TrainingDisplay(console) as display:
                run = train(
                    recipe, corpus, out=out, overrides=overrides or (), resume=resume, device=device, display=display
                )
        except KeyboardInterrupt as stop:
            if folder is None or not is_begun(folder):
                raise
            message = f"stopped; it goes on where it was with `quintet train --resume {shell_quoted(folder)}`"
            console.print(message, highlight=False, markup=False, soft_wrap=True)
            raise typer.Exit(getattr(stop, "status", 130)) from None
    if as_json and first:
        print_json({"run": str(run.folder), "stages": read_head(run.folder)["stages"]})
    message = f"finished: {run.folder}; evaluate it with `quintet evaluate {shell_quoted(run.folder)}`"
    console.print(message, highlight=False, markup=False, soft_wrap=True)
