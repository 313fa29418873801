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
        help="Run folders, or stages of runs (RUN/stages/NAME).",
        show_default=False,
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for the report.", show_default=False),
    ensemble: list[str] | None = typer.Option(
        None, metavar="RUN,RUN", help="Ensemble of runs to measure too; repeatable."
    ),
    corpus: Path | None = typer.Option(
        None, help="Corpus to measure on; default: the one the first run was trained on."
    ),
    split: str = typer.Option("test", help="Split of the corpus."),
    photographs: bool = typer.Option(
        False, "--photographs/--no-photographs", help="Show images and texts of the corpus, for private use."
    ),
    expert_annotations: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="ExpertAnnotations.txt of Flickr8k: also measure human agreement.",
    ),
    title: str | None = typer.Option(None, help="Title of the page."),
    examples: int = typer.Option(6, min=1, help="Queries per gallery."),
    samples: int = typer.Option(200, min=1, help="Number of positive pairs whose words are removed one by one."),
    bootstrap: int = typer.Option(1000, min=0, help="Bootstrap resamples of the 95 % intervals; 0: no intervals."),
    seed: int = typer.Option(0, min=0, help="Seed of all random draws."),
    block: int = typer.Option(
        1024, min=1, help="Images and texts scored at a time; bounds the memory, not the result."
    ),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1, ...; auto uses a GPU if there is one."),
) -> None:
    """Write a report of trained runs: a page that opens offline, the figures as files, the numbers as JSON.

    `quintet report runs/scan runs/vse -o report`

    `quintet report runs/t2i runs/i2t --ensemble runs/t2i,runs/i2t --photographs -o report`

    Sections: results with intervals, training curves, recalls and ranks, score distributions, accuracy against speed,
    hard and infrequent samples, searches in both directions, failures, attention and discriminative words. Searches
    and failures are those of the first run, which also chooses the hard samples. Without `--photographs` no file
    contains an image or a text of the corpus.
    """
    from quintet.data.corpus import Corpus
    from quintet.report.analysis import Options, open_subjects
    from quintet.report.html_report import make_report
    from quintet.report.material import Material, Settings
    from quintet.runs.devices import pick_device
    from quintet.runs.run_folder import default_corpus

    teams = [[Path(part.strip()) for part in text.split(",") if part.strip()] for text in ensemble or []]
    if any(len(team) < 2 for team in teams):
        raise QuintetError("--ensemble takes two or more runs separated by commas, as in --ensemble runs/a,runs/b")
    measured_on = Corpus.open(corpus if corpus is not None else default_corpus(runs[:1]))
    console = Console(stderr=True)
    with console.status("opening") as status:
        every = list(dict.fromkeys([*runs, *(run for team in teams for run in team)]))
        opened = dict(zip(every, open_subjects(every, measured_on, split, device=pick_device(device)), strict=True))
        named = {" + ".join(opened[run].label for run in team): [opened[run] for run in team] for team in teams}
        settings = Settings(
            title or f"{measured_on.name}: retrieval report", photographs, expert_annotations, bootstrap, examples,
            Options(seed=seed, samples=samples, block=block),
        )  # fmt: skip
        material = Material([opened[run] for run in dict.fromkeys(runs)], named, settings)
        page = make_report(material, out, status.update)
    console.print(f"written: {page}", highlight=False, markup=False, soft_wrap=True)
