"""`quintet export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quintet.cli.options import RunArgument
from quintet.errors import QuintetError


def export_command(
    run: RunArgument,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX files. Required: it is the only format.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the files; default: RUN-onnx."),
    ] = None,
) -> None:
    """Export the encoders of an embedding matcher to ONNX.

    `quintet export runs/mine --onnx -o towers` writes images.onnx, texts.onnx, towers.json (inputs and outputs) and
    tokenizer.json. The score of a pair is the dot product of the two outputs. The files are checked: onnxruntime must
    give the outputs of torch.
    """
    from quintet.runs.run_folder import check_run

    if not onnx:
        raise QuintetError("choose a format: add --onnx")
    check_run(run)

    from quintet.runs.onnx_export import export_onnx
    from quintet.runs.run import load

    report = export_onnx(load(run, device="cpu"), out or Path(f"{run.name}-onnx"))
    console = Console()
    for name, path in report.files.items():
        size = path.stat().st_size / 2**20
        console.print(
            f"{path}: {size:.1f} MiB, {name} to vectors; differs from torch by at most {report.difference[name]:.1e}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
