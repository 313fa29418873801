"""`quintet index`."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from quintet.cli.progress import work_bar

if TYPE_CHECKING:
    from quintet.search.build import BuildReport

SHOWN = 20  # unreadable images that are printed; --json gives them all


class Precision(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


def index_command(
    run: Path = typer.Argument(..., metavar="RUN", help="The trained run that looks at them.", show_default=False),
    sources: list[Path] = typer.Argument(
        None, metavar="PICTURES...", help="Folders (with all inside), corpora, tar shards.", show_default=False
    ),
    out: Path = typer.Option(..., "--out", "-o", metavar="INDEX", help="The folder of the index.", show_default=False),
    texts: Path | None = typer.Option(
        None, help="Texts to find with images: a file with one a line, a .jsonl with `text`, or a corpus."
    ),
    ensemble: list[Path] = typer.Option([], "--with", metavar="RUN", help="Another run; scores are averaged."),
    rerank_with: list[Path] = typer.Option(
        [], metavar="RUN", help="A cross-attention run (SCAN, BFAN, MMCA) that can put the best results in order."
    ),
    split: str | None = typer.Option(None, help="Of corpora, only this split."),
    store: str = typer.Option(
        "auto", help="exact, faiss, faiss?kind=hnsw, milvus:FILE.db, milvus+http://HOST:PORT, postgresql://..."
    ),
    precision: Precision = typer.Option(Precision.BFLOAT16, help="How fragments for re-ranking are kept."),
    batch_size: int = typer.Option(32, min=1, help="Images encoded at once; a GPU likes more."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
    workers: int = typer.Option(4, min=1, help="Threads that read images."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an index of other runs."),
    as_json: bool = typer.Option(False, "--json", help="Print a report as JSON and nothing else."),
) -> None:
    """Make images searchable, or bring their index up to date.

    `quintet index runs/mine ~/Images -o holiday` looks at every image once. The same command, given again, adds
    what is new, drops what is gone, and knows files that were moved or renamed by their content.

    Stopped or killed, the index stays as it was, and the same command goes on. Unreadable images are listed.
    """
    from quintet.search.build import build_index

    console = Console(stderr=True, quiet=as_json)
    with work_bar(console, "indexing", "items") as progress:
        report = build_index(
            [run, *ensemble],
            sources or [],
            out,
            texts=texts,
            rerank_with=rerank_with,
            split=split,
            store=store,
            precision=precision.value,
            device=device,
            batch_size=batch_size,
            workers=workers,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print(json.dumps({"index": str(out), **asdict(report)}, ensure_ascii=False))
    else:
        _print(out, report, console)


def _print(index: Path, report: BuildReport, console: Console) -> None:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    for path, why in report.unreadable[:SHOWN]:
        say(f"unreadable: {why if path in why else f'{path}: {why}'}")
    if len(report.unreadable) > SHOWN:
        say(f"... and {len(report.unreadable) - SHOWN} more; --json lists all")
    rate = f", {report.encoded / report.seconds:.1f} a second" if report.encoded and report.seconds else ""
    say(
        f"{index}: {report.added} added, {report.kept} kept, {report.dropped} dropped, {len(report.unreadable)} "
        f"unreadable; {report.encoded} encoded{rate}"
    )
    say(f'search it with: quintet search {index} "a dog in the water"')
