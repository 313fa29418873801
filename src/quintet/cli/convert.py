"""`quintet convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from quintet.errors import RecipeError
from quintet.files import read_json


def convert_command(
    kind: str = typer.Argument(
        ..., help="scan, bfan, vsrn, vsepp, vse-infinity, hrem, or aoq (VSRN or BFAN with AOQ)."
    ),
    checkpoint: Path = typer.Argument(..., help="The authors' file, as model_best.pth.tar."),
    out: Path = typer.Option(..., "--out", "-o", help="The run folder to make."),
    vocab: Path | None = typer.Option(
        None, help="The vocabulary it was trained with: SCAN's JSON, the pickle of VSE++ and VSRN, or BERT's vocab.txt."
    ),
    option: list[str] | None = typer.Option(
        None,
        metavar="KEY=VALUE",
        help="An option of the authors' program instead of the one in the file; repeat for more.",
    ),
    features: str = typer.Option("regions", help="The features of a corpus that the matcher is to read."),
    as_json: bool = typer.Option(False, "--json", help="Print what was made as JSON and nothing else."),
) -> None:
    """Make a run of a checkpoint that an original implementation wrote. Nothing in the file is executed.

    `quintet convert scan model_best.pth.tar -o runs/scan --vocab f30k_precomp_vocab.json`

    Without `--vocab` the run takes token ids, not texts.
    """
    from quintet.runs.convert import convert

    run = convert(kind, checkpoint, out, vocab, options=_options(option or []), features=features)
    model, origin = read_json(run / "model.json"), read_json(run / "run.json")["origin"]
    if as_json:
        print(
            json.dumps({"run": str(run), "model": model, "assumed": origin["assumed"], "left_out": origin["left_out"]})
        )
        return
    console = Console(stderr=True)
    arguments = ", ".join(f"{name} {value}" for name, value in model["arguments"].items())
    console.print(f"made {run}: {model['name']} with {arguments}", highlight=False, markup=False, soft_wrap=True)
    for name, value in origin["assumed"].items():
        console.print(
            f"[yellow]note:[/] the file does not say {name}; took {value}, the default of the authors' program "
            f"(--option {name}=... sets another)",
            highlight=False,
            soft_wrap=True,
        )
    for what in origin["left_out"]:
        console.print(f"left out: {what}", highlight=False)
    if vocab is None:
        console.print("no vocabulary: this run takes token ids, not texts (--vocab FILE)", highlight=False)


def _options(settings: list[str]) -> dict[str, Any]:
    """`key=value` with numbers and true/false understood, anything else as text."""
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise RecipeError(f"--option {setting!r}: write KEY=VALUE, as in lambda_softmax=9")
        try:
            options[key] = json.loads(value.lower() if value.lower() in ("true", "false") else value)
        except json.JSONDecodeError:
            options[key] = value
    return options
