"""`quintet report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quintet.cli.options import (
    OUTPUT,
    BlockOption,
    BootstrapOption,
    DeviceOption,
    EnsembleOption,
    ExpertAnnotationsOption,
    RunsArgument,
    TestSplitOption,
    ensembles,
)
from quintet.cli.terminal import shown


def report_command(
    runs: RunsArgument,
    ensemble: EnsembleOption = None,
    corpus: Annotated[
        Path | None,
        typer.Option(metavar="CORPUS", help="Corpus folder; default: the one the first run was trained on."),
    ] = None,
    split: TestSplitOption = None,
    expert_annotations: ExpertAnnotationsOption = None,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Texts whose words are left out one by one.")] = 200,
    bootstrap: BootstrapOption = 1000,
    seed: Annotated[int, typer.Option(metavar="SEED", min=0, help="Seed of everything drawn at random.")] = 0,
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the page, the figures and the numbers.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ],
    title: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Title of the page; default: the name of the corpus.", rich_help_panel=OUTPUT
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Queries in each gallery.", rich_help_panel=OUTPUT)
    ] = 6,
    photographs: Annotated[
        bool,
        typer.Option(
            "--photographs/--no-photographs",
            help="Show images and texts of the corpus. Check its licence before publishing them.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    block: BlockOption = 1024,
    device: DeviceOption = "auto",
) -> None:
    """Write an HTML report of runs: results, figures, examples.

    `quintet report runs/scan runs/vse -o report`

    `quintet report runs/t2i runs/i2t --ensemble runs/t2i,runs/i2t --photographs -o report`

    The page opens offline; figures are also files, and the numbers JSON. It has results with intervals, training
    curves, recalls and ranks, score distributions, speed, hard and infrequent samples, galleries in both directions,
    failures, runs side by side where they differ, online and offline negatives, attention and word importance.
    Galleries and failures are of the first run, which also chooses the hard samples. Without `--photographs`, no file
    has an image or text of the corpus.
    """
    from quintet.runs.run_folder import check_run, default_corpus, default_split

    teams = ensembles(ensemble)
    every = list(dict.fromkeys([*runs, *(run for team in teams for run in team)]))
    for run in every:
        check_run(run)

    from quintet.data.corpus import Corpus

    where = Corpus.open(corpus or default_corpus(runs[:1]))
    chosen = split or default_split(every, where.splits)
    where.split(chosen)

    from quintet.report.analysis import Options, open_subjects
    from quintet.report.html_report import make_report
    from quintet.report.material import Material, Settings
    from quintet.runs.devices import pick_device

    console = Console(stderr=True)
    with console.status("opening") as status:
        opened = dict(zip(every, open_subjects(every, where, chosen, device=pick_device(device)), strict=True))
        named = {" + ".join(opened[run].label for run in team): [opened[run] for run in team] for team in teams}
        settings = Settings(
            title or f"{where.name}: retrieval report", photographs, expert_annotations, bootstrap, examples,
            Options(seed=seed, samples=samples, block=block),
        )  # fmt: skip
        material = Material([opened[run] for run in dict.fromkeys(runs)], named, settings)
        left_out: dict[str, str] = {}
        page = make_report(material, out, status.update, left_out)
    for part, why in left_out.items():
        console.print(f"left out: {shown(part)}: {shown(why)}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"written: {page}", highlight=False, markup=False, soft_wrap=True)
