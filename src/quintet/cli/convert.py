"""`quintet convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from quintet.cli.options import JsonOption, one_of
from quintet.cli.terminal import print_json
from quintet.errors import RecipeError
from quintet.files import read_json

KINDS = ("scan", "bfan", "vsrn", "vsepp", "vse-infinity", "hrem", "aoq")


def convert_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Implementation that wrote the checkpoint: scan, bfan, vsrn, vsepp, vse-infinity, hrem, or aoq (VSRN "
            "or BFAN trained with AOQ).",
            **one_of("kind of checkpoint", KINDS),
        ),
    ],
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", help="The authors' file, as model_best.pth.tar.", exists=True, dir_okay=False
        ),
    ],
    vocab: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Vocabulary of the checkpoint: SCAN's JSON, the pickle of VSE++ and VSRN, or BERT's vocab.txt. "
            "Without it, the run takes token ids instead of texts.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Overrides an option of the authors' program in the file; may be repeated."
        ),
    ] = None,
    features: Annotated[
        str, typer.Option(metavar="NAME", help="Features that the run reads: CORPUS/features/NAME.")
    ] = "regions",
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Run folder to write.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Convert a checkpoint of an original implementation into a run.

    `quintet convert scan model_best.pth.tar -o runs/scan --vocab f30k_precomp_vocab.json`

    Nothing in the file is executed.
    """
    from quintet.runs.convert import convert

    run = convert(kind, checkpoint, out, vocab, options=_options(option or []), features=features).folder
    model, origin = read_json(run / "model.json"), read_json(run / "run.json")["origin"]
    if as_json:
        print_json({"run": str(run), "model": model, "assumed": origin["assumed"], "left_out": origin["left_out"]})
        return
    console = Console(stderr=True)
    arguments = ", ".join(f"{name} {value}" for name, value in model["arguments"].items())
    console.print(f"made {run}: {model['name']} with {arguments}", highlight=False, markup=False, soft_wrap=True)
    for name, value in origin["assumed"].items():
        console.print(
            f"[yellow]note:[/] the file does not say {name}; took {value}, the default or what the tensors tell "
            f"(--option {name}=... sets another)",
            highlight=False,
            soft_wrap=True,
        )
    for what in origin["left_out"]:
        console.print(f"left out: {what}", highlight=False, markup=False)
    if vocab is None:
        console.print("no vocabulary: this run takes token ids, not texts (--vocab FILE)", highlight=False)


def _options(settings: list[str]) -> dict[str, Any]:
    """KEY=VALUE settings as a dict; values are parsed as JSON where they can be, else kept as text."""
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
