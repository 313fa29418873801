"""`quintet train`."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from quintet import distributed
from quintet.cli.progress import TrainingDisplay
from quintet.errors import RecipeError


def train_command(
    recipe: str | None = typer.Argument(None, help="A shipped recipe (see `quintet recipes`) or a YAML file."),
    overrides: list[str] | None = typer.Argument(
        None,
        metavar="[KEY=VALUE]...",
        help="Any field of the recipe, as in stages.online.epochs=5 or matcher.embed_dim=256.",
    ),
    out: Path | None = typer.Option(None, "--out", "-o", help="The run folder to make."),
    corpus: Path | None = typer.Option(None, help="The corpus to train on; the same as data.corpus=FOLDER."),
    resume: Path | None = typer.Option(None, help="Go on with this run where it stopped, exactly."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
    as_json: bool = typer.Option(False, "--json", help="Print the selected metrics as JSON and nothing else."),
) -> None:
    """Train a recipe into a run folder.

    `quintet train vse-scenes --corpus corpora/scenes -o runs/first`

    A run that was stopped, killed or lost power goes on where it was: `quintet train --resume runs/first`.
    Several processes share a batch: `torchrun --nproc-per-node 2 -m quintet train ...`.
    """
    from quintet.training import stages
    from quintet.training.recipe import load_recipe

    first = distributed.is_main_launched()
    console = Console(stderr=True, quiet=as_json or not first)
    if resume is not None:
        if recipe is not None:
            raise RecipeError("--resume takes no recipe: the run has its own")
        if out is not None or corpus is not None:
            raise RecipeError("--resume takes neither --out nor --corpus: the run has its own folder and corpus")
        with TrainingDisplay(console) as display:
            summaries = stages.resume(resume, device=device, display=display)
        folder = resume
    else:
        if recipe is None or out is None:
            raise RecipeError(
                "name a recipe and a folder: `quintet train RECIPE -o RUN` (`quintet recipes` lists them)"
            )
        settings = [*(overrides or []), *([f"data.corpus={json.dumps(str(corpus))}"] if corpus else [])]
        loaded = load_recipe(recipe, settings)
        with TrainingDisplay(console) as display:
            summaries = stages.train(loaded, out, device=device, display=display)
        folder = out
    if as_json and first:
        print(json.dumps({"run": str(folder), "stages": summaries}))
    console.print(f"finished: {folder}; measure it with `quintet evaluate {folder}`", highlight=False, markup=False)
