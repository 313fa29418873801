"""`quintet mine`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from quintet import distributed
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from quintet.data.negatives import NegativeLists

SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
REASONS = {
    "positive_pairs": "pairs of one group",
    "duplicate_sentence_pairs": "pairs that share a text",
    "texts_above_false_negative_threshold": "texts above an image's false-negative threshold",
    "images_above_false_negative_threshold": "images above a text's false-negative threshold",
}


def mine_command(
    run: Path = typer.Argument(
        ...,
        metavar="RUN_OR_CHECKPOINT",
        help="The run whose matcher mines, or the selected weights of one of its stages.",
        show_default=False,
    ),
    corpus: Path | None = typer.Argument(
        None, metavar="CORPUS", help="The corpus to mine; default: the one the run was trained on."
    ),
    top_texts: int = typer.Option(300, min=1, help="Hard negative texts for each image."),
    top_images: int = typer.Option(60, min=1, help="Hard negative images for each text."),
    split: str = typer.Option("train", help="Which split of the corpus."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the lists; default: RUN/negatives/SPLIT."),
    exclude_duplicates: bool = typer.Option(
        False, "--exclude-duplicates", help="A text equal to one of the image's own is no negative."
    ),
    false_negative_margin: float | None = typer.Option(
        None, help="Leave out what scores more than the anchor's best positive plus this (0, or -0.05 to be stricter)."
    ),
    precision: str = typer.Option(
        "auto", help="How blocks are computed: auto, float32, float16, bfloat16. Float32 scores decide in any case."
    ),
    memory: str | None = typer.Option(
        None, help="Working memory, as in 8G; default: half of a GPU's free memory, 1G on a CPU."
    ),
    stage: str | None = typer.Option(None, help="Mine with the selected weights of this stage of the run."),
    batch_size: int = typer.Option(128, min=1, help="Images or texts encoded at a time."),
    device: str = typer.Option("auto", help="cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."),
    as_json: bool = typer.Option(False, "--json", help="Print the manifest as JSON and nothing else."),
) -> None:
    """Mine the hardest negatives of a whole split: for every image texts, for every text images.

    `quintet mine runs/first corpora/f30k --top-texts 300 --top-images 60`

    `quintet mine runs/first/stages/online` mines with that stage's selected weights, as `--stage online` does.

    Every pair is compared; texts and images of one group are never negatives of each other. Mining that was stopped or
    killed goes on where it was when the same command is given again. Several processes share the work:
    `torchrun --nproc-per-node 2 -m quintet mine ...`.
    """
    from quintet.mining.mine import mine
    from quintet.runs.run_folder import locate, shipped_runs

    folder, stage = locate(run, stage)
    if out is None and folder in shipped_runs().values():
        raise QuintetError(f"{folder.name} comes with Quintet; name a folder for its lists with --out")
    out = out if out is not None else folder / "negatives" / (split if stage is None else f"{split}-{stage}")
    main = distributed.is_main_launched()
    with _bar(Console(stderr=True, quiet=as_json or not main)) as bar:
        task = bar.add_task("encoding", total=None)
        lists = mine(
            folder,
            corpus,
            split=split,
            top_texts=top_texts,
            top_images=top_images,
            out=out,
            exclude_duplicates=exclude_duplicates,
            false_negative_margin=false_negative_margin,
            precision=precision,  # type: ignore[arg-type]  # checked by `mine`
            memory=None if memory is None else parse_size(memory),
            stage=stage,
            batch_size=batch_size,
            device=device,
            progress=lambda done, total: bar.update(task, description="mining", completed=done, total=total),
        )
    if not main:
        return
    if as_json:
        print(json.dumps({"folder": str(out), **lists.manifest}, ensure_ascii=False))
        return
    report = Console()
    report.print(summary_table(lists))
    report.print(f"lists in {out}", highlight=False, markup=False, soft_wrap=True)


def parse_size(text: str) -> int:
    """Bytes from a size with a unit.

    >>> parse_size("8G") == parse_size("8 GiB") == 8 * 2**30
    True
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise QuintetError(f"{text!r} is not a size; write bytes or a unit, as in 512M or 8G")
    return int(float(match[1]) * SIZES[match[2].upper()])


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TextColumn("left"), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )


def summary_table(lists: NegativeLists) -> Table:
    """Score quantiles of positives and of the negatives by rank; below, what was left out and why."""
    facts: dict[str, Any] = lists.manifest
    found = facts["quantiles"]
    table = Table(title=_title(facts), box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("scores")
    for at in found["at"]:
        table.add_column({0.0: "min", 0.5: "median", 1.0: "max"}.get(at, f"{100 * at:g} %"), justify="right")
    rows = {"positive pairs": found["positives"]}
    for side, words in (("texts", "texts of images"), ("images", "images of texts")):
        rows |= {f"{words}, {'rank ' if rank != 'last' else ''}{rank}": found[side][rank] for rank in found[side]}
    for label, values in rows.items():
        table.add_row(label, *(["-"] * len(found["at"]) if values is None else [f"{value:.3f}" for value in values]))
    notes = [
        f"{words}: {facts['excluded'][reason]:,} left out"
        for reason, words in REASONS.items()
        if facts["excluded"].get(reason)
    ]
    for side, anchors in (("texts", "images"), ("images", "texts")):
        short = facts["lists"][side]["not_full"]
        if short:
            notes.append(
                f"{short:,} of {facts['lists'][side]['anchors']:,} {anchors} have fewer negatives than asked for"
            )
    table.caption = "\n".join(notes)
    table.caption_justify = "left"
    return table


def _title(facts: dict[str, Any]) -> str:
    from rich.markup import escape

    counts, options = facts["lists"], facts["options"]
    return (
        f"split {escape(str(facts['split']))} mined with {escape(str(facts['matcher']['name']))}: "
        f"{options['top_texts']} texts for each of {counts['texts']['anchors']:,} images, "
        f"{options['top_images']} images for each of {counts['images']['anchors']:,} texts"
    )
