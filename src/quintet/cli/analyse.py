"""`quintet analyse`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape


def analyse_command(
    run: Path = typer.Argument(
        ..., metavar="RUN", help="A run folder, or a stage of one (RUN/stages/NAME).", show_default=False
    ),
    compare: list[Path] | None = typer.Option(
        None, metavar="RUN", help="Another run or stage to show in the same figures; repeatable."
    ),
    corpus: Path | None = typer.Option(None, help="Corpus to analyse on; default: the one the run was trained on."),
    split: str = typer.Option("test", help="Split of the corpus."),
    what: str | None = typer.Option(
        None,
        metavar="KIND,...",
        help="distributions, correlation, words, curves, errors, hardness, ranks, negatives, mined, timing; "
        "default: all that apply, except timing.",
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for the figures and numbers.", show_default=False),
    png: bool = typer.Option(False, "--png", help="Also write the figures as PNG, besides SVG."),
    samples: int = typer.Option(200, min=1, help="words: number of positive pairs whose words are removed one by one."),
    images: int = typer.Option(100, min=2, help="correlation: number of images in the map."),
    bins: int = typer.Option(200, min=1, help="distributions: number of histogram bins."),
    seed: int = typer.Option(0, min=0, help="Seed of all random draws."),
    block: int = typer.Option(
        1024, min=1, help="Images and texts scored at a time; bounds the memory, not the result."
    ),
    batch_size: int = typer.Option(128, min=1, help="Images or texts encoded at a time; negatives: pairs per batch."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1, ...; auto uses a GPU if there is one."),
    as_json: bool = typer.Option(False, "--json", help="Print only the numbers, as JSON."),
) -> None:
    """Analyse trained runs: score distributions and S, correlation maps, discriminative words, training curves, ranks.

    `quintet analyse runs/first -o analysis/first`

    `quintet analyse runs/full --compare runs/rank-only --what distributions,words -o analysis/both`

    Each kind writes KIND.json and its figures. Kinds that do not apply to a run are skipped, unless --what names them.
    """
    from quintet.data.corpus import Corpus
    from quintet.report.analysis import ANALYSES, Options, analyse, open_subjects
    from quintet.runs.devices import pick_device
    from quintet.runs.run_folder import default_corpus

    kinds = [part for part in re.split(r"[,\s]+", what) if part] if what else None
    for kind in kinds or ():
        ANALYSES.builder(kind)  # an unknown kind fails before a run is opened
    opened = Corpus.open(corpus if corpus is not None else default_corpus([run]))
    options = Options(seed=seed, bins=bins, images=images, samples=samples, batch_size=batch_size, block=block)
    with Console(stderr=True, quiet=as_json).status("opening") as status:
        runs = [run, *(compare or [])]
        subjects = open_subjects(runs, opened, split, device=pick_device(device), batch_size=batch_size)
        found = analyse(
            subjects,
            out,
            kinds,
            options=options,
            formats=("svg", "png") if png else ("svg",),
            progress=lambda kind: status.update(kind),
        )
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    console = Console()
    for kind, content in found.items():
        for line in _lines(kind, content):
            console.print(line, highlight=False, soft_wrap=True)
    console.print(f"written to {escape(str(out))}", highlight=False, soft_wrap=True)


def _lines(kind: str, content: dict[str, Any]) -> Iterator[str]:
    """What is printed of an analysis: its files, and a line per run."""
    if "reason" in content:
        yield f"[dim]{kind}: skipped: {escape(content['reason'])}[/]"
        return
    yield f"[bold]{kind}[/]: {', '.join([f'{kind}.json', *content['figures']])}"
    yield from (f"  {escape(line)}" for line in _SHOWN.get(kind, lambda _: ())(content))


def _distributions(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["runs"].items():
        positive, negative = found["positive"]["mean"], found["negative"]["mean"]
        yield f"{label}: S {found['S']:.4f}, mean score of positive pairs {positive:.4f}, of negatives {negative:.4f}"


def _correlation(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["maps"].items():
        yield f"{label}: mean correlation of different images {found['mean']:.4f}"


def _words(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["runs"].items():
        best = [f"{row['word']} {row['drop']:.3f}" for row in found["means"][:5]]
        if best:
            yield f"{label}: most discriminative words on average: {', '.join(best)}"


def _negatives(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["runs"].items():
        for way, measured in found.items():
            yield (
                f"{label}, {way}: mean rank of the hardest negative in batches of {content['batch_size']}: "
                f"{measured['mean_rank']:.1f} (expected {content['expected_rank'][way]:.1f})"
            )


_SHOWN = {"distributions": _distributions, "correlation": _correlation, "words": _words, "negatives": _negatives}
