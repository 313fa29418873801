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

from quintet.errors import QuintetError


def analyse_command(
    run: Path = typer.Argument(
        ..., metavar="RUN", help="A run folder, or a stage of one (RUN/stages/NAME).", show_default=False
    ),
    compare: list[Path] | None = typer.Option(
        None, metavar="RUN", help="Another run or stage beside it in every figure; may be given again."
    ),
    corpus: Path | None = typer.Option(None, help="The corpus to look at; default: the one the run was trained on."),
    split: str = typer.Option("test", help="Which split of it."),
    what: str | None = typer.Option(
        None,
        metavar="KIND,...",
        help="distributions, correlation, words, curves, errors, hardness, ranks, negatives, mined, timing; "
        "default: all that apply, except timing.",
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for figures and numbers.", show_default=False),
    png: bool = typer.Option(False, "--png", help="Figures as PNG too; SVG is always written."),
    samples: int = typer.Option(200, min=1, help="words: right pairs whose words are removed one by one."),
    images: int = typer.Option(100, min=2, help="correlation: images in the map."),
    bins: int = typer.Option(200, min=1, help="distributions: bins of the histograms behind S."),
    seed: int = typer.Option(0, min=0, help="Of everything that is drawn at random."),
    block: int = typer.Option(1024, min=1, help="Images and texts scored at a time: memory only."),
    batch_size: int = typer.Option(
        128, min=1, help="Images or texts encoded at a time; pairs in a batch of negatives."
    ),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
    as_json: bool = typer.Option(False, "--json", help="Print the numbers as JSON and nothing else."),
) -> None:
    """Look inside trained runs: similarity distributions and S, correlation maps, discriminative words, curves, ranks.

    `quintet analyse runs/first -o analysis/first`

    `quintet analyse runs/full --compare runs/rank-only --what distributions,words -o analysis/both`

    Every kind writes KIND.json and its figures. What a run has nothing for is left out, unless it is asked for by name.
    """
    from quintet.data.corpus import Corpus
    from quintet.report.analysis import ANALYSES, analyse
    from quintet.report.analysis.subject import Options, open_subjects
    from quintet.runs.devices import pick_device
    from quintet.runs.run_folder import locate, read_head

    kinds = [part for part in re.split(r"[,\s]+", what) if part] if what else None
    for kind in kinds or ():
        ANALYSES.builder(kind)  # a typo is answered before a run is opened
    folder = corpus if corpus is not None else read_head(locate(run)[0]).get("corpus")
    if folder is None:
        raise QuintetError(f"run {run} does not know a corpus; say with --corpus which one to look at")
    where = Corpus.open(folder)
    options = Options(seed=seed, bins=bins, images=images, samples=samples, batch_size=batch_size, block=block)
    place = pick_device(device)
    with Console(stderr=True, quiet=as_json).status("opening") as status:
        subjects = open_subjects([run, *(compare or [])], where, split, device=place, batch_size=batch_size)
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
    """What is printed of an analysis: its files, and the numbers that fit a line each."""
    if "reason" in content:
        yield f"[dim]{kind}: not made: {escape(content['reason'])}[/]"
        return
    yield f"[bold]{kind}[/]: {', '.join([f'{kind}.json', *content['figures']])}"
    yield from (f"  {escape(line)}" for line in _SHOWN.get(kind, lambda _: ())(content))


def _distributions(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["runs"].items():
        right, wrong = found["positive"]["mean"], found["negative"]["mean"]
        yield f"{label}: S {found['S']:.4f}, mean score of right pairs {right:.4f}, of wrong pairs {wrong:.4f}"


def _correlation(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["maps"].items():
        yield f"{label}: mean correlation of different images {found['mean']:.4f}"


def _words(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["runs"].items():
        best = [f"{row['word']} {row['drop']:.3f}" for row in found["means"][:5]]
        if best:
            yield f"{label}: most discriminative on average: {', '.join(best)}"


def _negatives(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["runs"].items():
        for way, measured in found.items():
            yield (
                f"{label}, {way}: the hardest of a batch of {content['batch_size']} has rank "
                f"{measured['mean_rank']:.1f} on average ({content['expected_rank'][way]:.1f} expected)"
            )


_SHOWN = {"distributions": _distributions, "correlation": _correlation, "words": _words, "negatives": _negatives}
