"""`quintet export`."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from quintet.errors import QuintetError


def export_command(
    run: Path = typer.Argument(..., metavar="RUN", help="A run of an embedding matcher.", show_default=False),
    onnx: bool = typer.Option(False, "--onnx", help="As ONNX files, so far the only form."),
    out: Path | None = typer.Option(None, "--out", "-o", metavar="FOLDER", help="Where they go; default: RUN-onnx."),
) -> None:
    """Write the two towers of an embedding matcher as ONNX files, checked against torch with onnxruntime.

    `quintet export runs/mine --onnx -o towers` writes images.onnx, texts.onnx, towers.json (what goes in and out) and
    tokenizer.json. The score of a pair is the dot product of the two outputs.
    """
    from quintet.runs.run import open_run
    from quintet.search.onnx_export import export_onnx

    if not onnx:
        raise QuintetError("say in which form the towers are to be written: --onnx")
    report = export_onnx(open_run(run), out or Path(f"{run.name}-onnx"))
    console = Console()
    for name, path in report.files.items():
        size = path.stat().st_size / 2**20
        console.print(
            f"{path}: {size:.1f} MiB, {name} to vectors; differs from torch by at most {report.difference[name]:.1e}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
