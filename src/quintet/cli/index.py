"""`quintet index`."""

from __future__ import annotations

import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from quintet.cli.options import (
    COMPUTE,
    OUTPUT,
    DeviceOption,
    JsonOption,
    RayGpusOption,
    RayOption,
    RayWorkersOption,
    WorkersOption,
    complete_run,
)
from quintet.cli.progress import work_bar
from quintet.cli.resume import says_how_to_go_on
from quintet.cli.terminal import print_json, shell_quoted, shown
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from quintet.search.indexing import BuildReport

SHOWN = 20  # unreadable images to print; --json gives all
LONGEST = 500  # characters of a line about one


class Precision(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


def index_command(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="Trained run used to encode the images, or the name of one that comes with Quintet.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IMAGES]...",
            help="Folders of images (searched with their subfolders), image files, corpora, tar shards or Parquet "
            "files; folders and shards also behind s3://, gs:// and https://.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts to index: a file with one per line, a .jsonl file with `text`, or a corpus.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="Split to index of a corpus; default: all of it.")
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="RUN",
            help="Another run, whose scores are averaged with those of RUN; may be repeated.",
            autocompletion=complete_run,
        ),
    ] = None,
    rerank_with: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Cross-attention run (SCAN, BFAN, MMCA) that can re-rank the first results; may be repeated.",
            autocompletion=complete_run,
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="INDEX", help="Folder of the index.", rich_help_panel=OUTPUT)
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="STORE",
            help="Vector store: auto, exact, faiss, faiss?kind=hnsw, milvus:FILE.db, milvus+http://HOST:PORT or "
            "postgresql://...",
            rich_help_panel=OUTPUT,
        ),
    ] = "auto",
    precision: Annotated[
        Precision,
        typer.Option(
            metavar="bfloat16|float16|float32",
            help="Number format of the fragments stored for re-ranking.",
            rich_help_panel=OUTPUT,
        ),
    ] = Precision.BFLOAT16,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an index of other runs.", rich_help_panel=OUTPUT)
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Drop more than a fifth of the index, and images of folders that are empty or missing now.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Stay, and bring the index up to date whenever the images change; Ctrl-C ends.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare an index with its checksums instead: `quintet index INDEX --verify`; exit status 1: damaged.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option(
            metavar="COPY",
            help="Copy an index into a new folder or COPY.tar instead: `quintet index INDEX --backup COPY`.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: JsonOption = False,
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Images encoded at a time.", rich_help_panel=COMPUTE)
    ] = 32,
    workers: WorkersOption = 4,
    device: DeviceOption = "auto",
    ray: RayOption = None,
    ray_workers: RayWorkersOption = None,
    ray_gpus: RayGpusOption = 0.0,
) -> None:
    """Index photos, or update their index.

    `quintet index quintet-small ~/Pictures -o holiday`

    The same command, given again, adds new images, drops deleted ones, and recognises moved or renamed ones by their
    content. It also continues a build that was stopped; until it is done, searches use the earlier index. Unreadable
    images are listed. What cannot be listed, such as a folder that may not be read or a disk that is not mounted,
    stays in the index, and the exit status is 3.
    """
    if verify or backup is not None:
        _keep_safe(out or run, sources, verify, backup, as_json)
        return
    if run is None:
        raise typer.BadParameter("is missing: name the run that encodes the images", param_hint="RUN")
    if out is None:
        raise typer.BadParameter("is missing: name the folder of the index", param_hint="--out / -o")
    from quintet.data.remote import is_url

    for source in sources or []:
        if not is_url(source) and not os.path.lexists(source) and not (out / "index.json").exists():
            raise typer.BadParameter(f"{shown(source)} does not exist", param_hint="IMAGES")
    from quintet.runs.run_folder import check_run

    for each in (run, *(ensemble or []), *(rerank_with or [])):
        check_run(each)

    console = Console(stderr=True, quiet=as_json)
    options: dict[str, Any] = {
        "texts": texts,
        "rerank_with": rerank_with or [],
        "split": split,
        "store": store,
        "precision": precision.value,
        "device": device,
        "batch_size": batch_size,
        "workers": workers,
        "overwrite": overwrite,
        "prune": prune,
        "ray": ray,
        "ray_workers": ray_workers,
        "ray_gpus": ray_gpus,
    }
    runs = [run, *(ensemble or [])]
    if watch:
        _watch(runs, sources or [], out, options, as_json, console)
        return

    from quintet.search.indexing import build_index

    with (
        says_how_to_go_on(console, "what is encoded is kept, and the same command goes on"),
        work_bar(console, "indexing", "items") as progress,
    ):
        report = build_index(runs, sources or [], out, progress=progress, **options)
    if as_json:
        print_json({"index": str(out), **asdict(report)})
    else:
        _print(out, report, console)
    if report.unlisted:
        raise typer.Exit(3)


def _watch(
    runs: list[Path], sources: list[str], out: Path, options: dict[str, Any], as_json: bool, console: Console
) -> None:
    from quintet.search.watch import watch_index

    first = True
    with says_how_to_go_on(console, "the index is complete up to its last update, and the same command goes on"):
        for report in watch_index(runs, sources, out, **options):
            if as_json:
                print_json({"index": str(out), **asdict(report)})
            elif first or report.added or report.dropped or report.repaired:
                _print(out, report, console)
            if first:
                console.print("watching; Ctrl-C ends", style="dim")
            first = False


def _keep_safe(index: Path | None, sources: list[str] | None, verify: bool, backup: Path | None, json: bool) -> None:
    if index is None or sources:
        raise typer.BadParameter("takes one index: quintet index INDEX --verify", param_hint="--verify / --backup")
    from quintet.search.index_folder import check_marker

    check_marker(index.resolve())
    from quintet.search.safekeeping import backup_index, verify_index

    damage = verify_index(index) if verify else None
    if not damage and backup is not None:
        backup_index(index, backup)
    console = Console(quiet=json)
    if json:
        print_json({"index": str(index), "damage": damage, "backup": None if damage or not backup else str(backup)})
    for line in damage or ():
        console.print(shown(line), markup=False, highlight=False, soft_wrap=True)
    if damage:
        raise QuintetError(f"{index} is damaged; the command that built it makes anew what is damaged")
    if damage is not None:
        console.print(f"{shown(index)} is whole", markup=False, highlight=False)
    if backup is not None:
        console.print(f"{shown(index)} is copied to {shown(backup)}", markup=False, highlight=False)


def _print(index: Path, report: BuildReport, console: Console) -> None:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    for path, why in report.unreadable[:SHOWN]:
        say(f"unreadable: {_short(why if path in why else f'{path}: {why}')}")
    if len(report.unreadable) > SHOWN:
        say(f"... and {len(report.unreadable) - SHOWN} more; --json lists all")
    for each in report.unlisted[:SHOWN]:
        what = "no longer there" if each.gone else "not listed"
        advice = "; to drop them, add --prune" if each.gone else ""
        say(f"{what}: {_short(each.path)}: {each.why}; {each.kept} of its images are kept{advice}")
    if len(report.unlisted) > SHOWN:
        say(f"... and {len(report.unlisted) - SHOWN} more; --json lists all")
    for line in report.repaired[:SHOWN]:
        say(f"was damaged, and is made anew: {_short(line)}")
    if report.videos:
        say(f"passed over: {report.videos} {'video' if report.videos == 1 else 'videos'}; photos are indexed")
    rate = f", {report.encoded / report.seconds:.1f} a second" if report.encoded and report.seconds else ""
    say(
        f"{shown(index)}: {report.added} added, {report.kept} kept, {report.dropped} dropped, {len(report.unreadable)} "
        f"unreadable; {report.encoded} encoded{rate}"
    )
    say(f'search it with: quintet search {shell_quoted(index)} "a dog in the water"')


def _short(line: str) -> str:
    """Of a name of any length, on one line."""
    line = shown(line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
