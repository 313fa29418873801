"""`quintet mine`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from quintet.cli.options import (
    COMPUTE,
    OUTPUT,
    DeviceOption,
    JsonOption,
    RayGpusOption,
    RayOption,
    RayWorkersOption,
    RunArgument,
    SplitOption,
    one_of,
    parse_size,
)
from quintet.cli.progress import TimeColumn
from quintet.cli.resume import says_how_to_go_on
from quintet.cli.terminal import print_json
from quintet.errors import QuintetError

if TYPE_CHECKING:
    from quintet.data.negatives import NegativeLists

PRECISIONS = ("auto", "float32", "float16", "bfloat16")
REASONS = {
    "positive_pairs": "pairs of one group",
    "duplicate_sentence_pairs": "pairs that share a text",
    "texts_above_false_negative_threshold": "texts above an image's false-negative threshold",
    "images_above_false_negative_threshold": "images above a text's false-negative threshold",
}


def mine_command(
    run: RunArgument,
    corpus: Annotated[
        Path | None,
        typer.Argument(metavar="CORPUS", help="Corpus to mine; default: the one the run was trained on."),
    ] = None,
    split: SplitOption = "train",
    stage: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Mine with the selected weights of this stage of the run.")
    ] = None,
    top_texts: Annotated[int, typer.Option(metavar="N", min=1, help="Hard negative texts per image.")] = 300,
    top_images: Annotated[int, typer.Option(metavar="N", min=1, help="Hard negative images per text.")] = 60,
    exclude_duplicates: Annotated[
        bool,
        typer.Option("--exclude-duplicates", help="Exclude texts that are equal to one of the image's own texts."),
    ] = False,
    false_negative_margin: Annotated[
        float | None,
        typer.Option(
            metavar="MARGIN",
            help="Exclude negatives that score above the anchor's best positive plus this margin (0; -0.05 excludes "
            "more); default: exclude none.",
        ),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Find candidates with FAISS and score them exactly; the recall is measured and told. Embeddings only.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the lists; default: RUN/negatives/SPLIT.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: JsonOption = False,
    precision: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="Number format of the first pass: auto, float32, float16 or bfloat16. Float32 scores decide.",
            **one_of("number format", PRECISIONS),
            rich_help_panel=COMPUTE,
        ),
    ] = "auto",
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Working memory, as in 8G; default: half of the GPU's free memory, or 1G on a CPU.",
            rich_help_panel=COMPUTE,
        ),
    ] = None,
    device: DeviceOption = "auto",
    ray: RayOption = None,
    ray_workers: RayWorkersOption = None,
    ray_gpus: RayGpusOption = 0.0,
) -> None:
    """Mine offline hard negatives over a whole split.

    `quintet mine runs/first corpora/f30k --top-texts 300 --top-images 60`

    `quintet mine runs/first/stages/online` mines with that stage's selected weights, as `--stage online` does.

    Every image is compared with every text; pairs of one group are never negatives. A run that was stopped is
    continued by the same command. Several processes share the work: `torchrun --nproc-per-node 2 -m quintet mine ...`.
    """
    from quintet.data.pretrained import is_pretrained
    from quintet.runs.run_folder import check_run, locate, shipped_runs

    check_run(run, stage)
    folder, stage = locate(run, stage)
    if out is None and (is_pretrained(folder) or folder in shipped_runs().values()):
        raise QuintetError(f"{folder.name} is no run folder of yours; name a folder for its lists with --out")
    out = out if out is not None else folder / "negatives" / (split if stage is None else f"{split}-{stage}")
    working = None if memory is None else parse_size(memory)
    if corpus is not None:
        from quintet.data.corpus import read_corpus_head

        read_corpus_head(corpus)

    from quintet import distributed
    from quintet.mining.mine import mine

    main = distributed.is_main_launched()
    console = Console(stderr=True, quiet=as_json or not main)
    with says_how_to_go_on(console), _bar(console) as bar:
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
            memory=working,
            stage=stage,
            device=device,
            approximate=approximate,
            ray=ray,
            ray_workers=ray_workers,
            ray_gpus=ray_gpus,
            progress=lambda done, total: bar.update(task, description="mining", completed=done, total=total),
        )
    if not main:
        return
    if as_json:
        print_json({"folder": str(out), **lists.manifest})
        return
    report = Console()
    report.print(summary_table(lists))
    report.print(f"lists in {out}", highlight=False, markup=False, soft_wrap=True)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn(), TimeColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


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
    if recall := facts["computed"].get("recall"):
        notes.append(
            f"approximate: {recall['texts']:.1%} of the texts and {recall['images']:.1%} of the images of exact lists "
            "are in these, by a sample"
        )
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
