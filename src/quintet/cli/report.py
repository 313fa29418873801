"""`quintet report`."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from quintet.errors import QuintetError


def report_command(
    runs: list[Path] = typer.Argument(
        ...,
        metavar="RUN...",
        help="Run folders, or stages of them (RUN/stages/NAME), each shown alone.",
        show_default=False,
    ),
    out: Path = typer.Option(..., "--out", "-o", help="The folder to write.", show_default=False),
    ensemble: list[str] | None = typer.Option(
        None, metavar="RUN,RUN", help="Runs whose mean score is measured too; may be given again."
    ),
    corpus: Path | None = typer.Option(
        None, help="The corpus to measure on; default: the one the first run was trained on."
    ),
    split: str = typer.Option("test", help="Which split of it."),
    photographs: bool = typer.Option(
        False, "--photographs/--no-photographs", help="Show images and texts of the corpus: for your own eyes."
    ),
    expert_annotations: Path | None = typer.Option(
        None, metavar="FILE", help="Flickr8k's ExpertAnnotations.txt: also the agreement with people."
    ),
    title: str | None = typer.Option(None, help="Of the page."),
    examples: int = typer.Option(6, min=1, help="Queries in each gallery."),
    samples: int = typer.Option(200, min=1, help="Texts whose words are removed one by one."),
    bootstrap: int = typer.Option(1000, min=0, help="Resamples behind the 95 % intervals; 0: no intervals."),
    seed: int = typer.Option(0, min=0, help="Of everything that is drawn at random."),
    block: int = typer.Option(1024, min=1, help="Images and texts scored at a time: memory only."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
) -> None:
    """Write a report of trained runs: one page that opens offline, the figures as files, the numbers as JSON.

    `quintet report runs/scan runs/vse -o report`

    `quintet report runs/t2i runs/i2t --ensemble runs/t2i,runs/i2t --photographs -o report`

    Results with intervals, training curves, recalls and ranks, distributions, speed, hard and infrequent samples,
    galleries in both directions, failures, attention and discriminative words. Galleries and failures are of the first
    run, which also chooses the hard samples. Without `--photographs` no image and no text of the corpus is in any
    of the files.
    """
    from quintet.data.corpus import Corpus
    from quintet.report.analysis.subject import Options, open_subjects
    from quintet.report.build import make_report
    from quintet.report.measure import Material, Settings
    from quintet.runs.devices import pick_device
    from quintet.runs.run_folder import locate, read_head

    teams = [[Path(part.strip()) for part in text.split(",") if part.strip()] for text in ensemble or []]
    if any(len(team) < 2 for team in teams):
        raise QuintetError("--ensemble takes two runs or more with commas between them, as in --ensemble runs/a,runs/b")
    folder = corpus if corpus is not None else read_head(locate(runs[0])[0]).get("corpus")
    if folder is None:
        raise QuintetError(f"run {runs[0]} does not know a corpus; say with --corpus which one to measure on")
    where = Corpus.open(folder)
    console = Console(stderr=True)
    with console.status("opening") as status:
        every = list(dict.fromkeys([*runs, *(run for team in teams for run in team)]))
        opened = dict(zip(every, open_subjects(every, where, split, device=pick_device(device)), strict=True))
        named = {" + ".join(opened[run].label for run in team): [opened[run] for run in team] for team in teams}
        settings = Settings(
            title or f"{where.name}: retrieval report", photographs, expert_annotations, bootstrap, examples,
            Options(seed=seed, samples=samples, block=block),
        )  # fmt: skip
        material = Material([opened[run] for run in dict.fromkeys(runs)], named, settings)
        page = make_report(material, out, status.update)
    console.print(f"written: {page}", highlight=False, markup=False, soft_wrap=True)
