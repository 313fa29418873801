"""`quintet analyse`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from quintet.cli.options import (
    OUTPUT,
    BatchSizeOption,
    BlockOption,
    CorpusOption,
    DeviceOption,
    EnsembleOption,
    JsonOption,
    RunArgument,
    TestSplitOption,
    complete_run,
    ensembles,
    one_of,
    split_names,
)
from quintet.cli.terminal import print_json

ANALYSES = (
    *(
        "distributions",
        "correlation",
        "attention",
        "words",
        "curves",
        "errors",
        "hardness",
        "ranks",
        "negatives",
        "mined",
    ),
    "timing",
)


def analyse_command(
    run: RunArgument,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Another run or stage to show beside it in every figure; may be repeated.",
            autocompletion=complete_run,
        ),
    ] = None,
    ensemble: EnsembleOption = None,
    corpus: CorpusOption = None,
    split: TestSplitOption = None,
    what: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,...",
            help="Analyses to make: distributions, correlation, attention, words, curves, errors, hardness, ranks, "
            "negatives, mined, timing; default: all that apply, except timing.",
            **one_of("analysis", ANALYSES, several=True),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="SEED", min=0, help="Seed of everything drawn at random.")] = 0,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="words: positive pairs whose words are left out one by one.")
    ] = 200,
    images: Annotated[int, typer.Option(metavar="N", min=2, help="correlation: images in the map.")] = 100,
    bins: Annotated[int, typer.Option(metavar="N", min=1, help="distributions: bins of the histograms.")] = 200,
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for figures and numbers.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ],
    png: Annotated[
        bool, typer.Option("--png", help="Write figures as PNG besides SVG.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: JsonOption = False,
    batch_size: BatchSizeOption = 128,
    block: BlockOption = 1024,
    device: DeviceOption = "auto",
) -> None:
    """Look inside runs: score distributions, word importance, curves.

    `quintet analyse runs/first -o analysis/first`

    `quintet analyse runs/full --compare runs/rank-only --what distributions,words -o analysis/both`

    `quintet analyse runs/scan --ensemble runs/scan,runs/bfan --what ranks,distributions -o analysis/together`

    Each analysis writes KIND.json and its figures to the folder. An analysis that does not apply to a run is left out,
    unless `--what` names it.
    """
    from quintet.runs.run_folder import check_run, default_corpus, default_split

    single = [run, *(compare or [])]
    teams = ensembles(ensemble)
    every = [*single, *dict.fromkeys(each for team in teams for each in team if each not in single)]
    for each in every:
        check_run(each)

    from quintet.data.corpus import Corpus

    where = Corpus.open(corpus or default_corpus([run]))
    chosen = split or default_split(every, where.splits)
    where.split(chosen)

    from quintet.report.analysis import Ensemble, Options, analyse, open_subjects
    from quintet.runs.devices import pick_device

    kinds = split_names(what) if what else None
    options = Options(seed=seed, bins=bins, images=images, samples=samples, batch_size=batch_size, block=block)
    torch_device = pick_device(device)
    with Console(stderr=True, quiet=as_json).status("opening") as status:
        subjects = open_subjects(every, where, chosen, device=torch_device, batch_size=batch_size)
        opened = dict(zip(every, subjects, strict=True))
        together = [Ensemble([opened[each] for each in team]) for team in teams]
        found = analyse(
            [*subjects[: len(single)], *together],
            out,
            kinds,
            options=options,
            formats=("svg", "png") if png else ("svg",),
            progress=lambda kind: status.update(kind),
        )
    if as_json:
        print_json(found)
        return
    console = Console()
    for kind, content in found.items():
        for line in _lines(kind, content):
            console.print(line, highlight=False, soft_wrap=True)
    console.print(f"written to {escape(str(out))}", highlight=False, soft_wrap=True)


def _lines(kind: str, content: dict[str, Any]) -> Iterator[str]:
    """The printed summary of an analysis: its files, and a line for each run."""
    if "reason" in content:
        yield f"[dim]{kind}: skipped: {escape(content['reason'])}[/]"
        return
    yield f"[bold]{kind}[/]: {', '.join([f'{kind}.json', *content['figures']])}"
    yield from (f"  {escape(line)}" for line in _SHOWN.get(kind, lambda _: ())(content))


def _distributions(content: dict[str, Any]) -> Iterator[str]:
    for label, found in content["runs"].items():
        means = f"{found['positive']['mean']:.4f}, of negative pairs {found['negative']['mean']:.4f}"
        yield f"{label}: S {found['S']:.4f}, mean score of positive pairs {means}"


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
                f"{label}, {way}: the hardest negative of a batch of {content['batch_size']} has rank "
                f"{measured['mean_rank']:.1f} on average ({content['expected_rank'][way]:.1f} expected)"
            )


def _curves(content: dict[str, Any]) -> Iterator[str]:
    passed = content["passed"]
    ways = {"i2t_r1": "text R@1", "t2i_r1": "image R@1"}
    for label, epochs in passed.get("epochs", {}).items():
        found = [
            f"{word} {'never' if epochs[name] is None else f'after {epochs[name]}'}" for name, word in ways.items()
        ]
        yield f"{label}: epochs to pass the best of {passed['baseline']}: {', '.join(found)}"


_SHOWN = {
    "curves": _curves,
    "distributions": _distributions,
    "correlation": _correlation,
    "words": _words,
    "negatives": _negatives,
}
