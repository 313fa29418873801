"""`quintet evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from quintet.cli.options import (
    OUTPUT,
    BatchSizeOption,
    BlockOption,
    BootstrapOption,
    CorpusOption,
    CrowdAnnotationsOption,
    DeviceOption,
    ExpertAnnotationsOption,
    JsonOption,
    RunsArgument,
    TestSplitOption,
    complete_run,
    one_of,
    run_list,
)
from quintet.cli.progress import work_bar
from quintet.cli.terminal import print_json
from quintet.errors import QuintetError

RESULTS = ("npy:", "trec:")  # of other programs, as `quintet.evaluation.rankings` reads them
PROTOCOLS = ("full", "5fold", "5k", "identity")


def evaluate_command(
    runs: RunsArgument,
    corpus: CorpusOption = None,
    split: TestSplitOption = None,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="full, 5fold (COCO 1K), 5k (COCO 5K) or identity (CUHK-PEDES).",
            **one_of("protocol", PROTOCOLS),
        ),
    ] = "full",
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble/--separate", help="Several runs: evaluate the mean of their scores, or each alone."),
    ] = True,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="RUN[,RUN]",
            help="Test whether the results of this run, or of the ensemble of these runs, differ, query by query.",
            autocompletion=complete_run,
        ),
    ] = None,
    hard_samples: Annotated[
        bool,
        typer.Option(
            "--hard-samples",
            help="Also R@1 on hard and infrequent queries, chosen by the run of --compare where it is given.",
        ),
    ] = False,
    eccv: Annotated[
        bool,
        typer.Option("--eccv", help="Also ECCV Caption (mAP@R, R-Precision, R@1): COCO's test split of 5,000 images."),
    ] = False,
    cxc: Annotated[bool, typer.Option("--cxc", help="Also the recalls of CxC, on the same split.")] = False,
    eccv_data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            help="Folder with the JSON files of both; default: those of the package eccv_caption.",
        ),
    ] = None,
    relevance: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Relevant pairs with grades, JSONL or qrels: also nDCG; default: relevance.jsonl of the corpus.",
        ),
    ] = None,
    slices: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Also the recalls by caption length (length), image size (size) or a field of tables (field:NAME).",
        ),
    ] = None,
    expert_annotations: ExpertAnnotationsOption = None,
    crowd_annotations: CrowdAnnotationsOption = None,
    bootstrap: BootstrapOption = 1000,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Seed of the resampling.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="JSON file for the results and the settings behind them.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    ranks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=".npz file for the rank of every positive pair.", rich_help_panel=OUTPUT),
    ] = None,
    save_run: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TREC run file for the rankings of both directions.", rich_help_panel=OUTPUT),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="K", min=1, help="Candidates of a query in that file; default: all.", rich_help_panel=OUTPUT
        ),
    ] = None,
    as_json: JsonOption = False,
    batch_size: BatchSizeOption = 128,
    block: BlockOption = 1024,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate runs: R@K, rsum, median rank, with confidence intervals.

    `quintet evaluate runs/first` evaluates one run on the test split that its recipe names, of its own corpus.

    `quintet evaluate runs/a runs/b` evaluates their ensemble; with `--separate`, each of them.

    `quintet evaluate runs/a --compare runs/b` also tests whether they differ; with `--hard-samples`, it evaluates both
    on queries that resemble all of their negatives, or none. `--compare runs/b,runs/c` compares with an ensemble.

    `quintet evaluate runs/a --corpus coco --eccv --cxc` adds what people verified to match, beside COCO's own pairs.

    `npy:FOLDER` (images.npy, images.txt, texts.npy, texts.txt) and `trec:FILE` stand for the results of other programs.

    Recalls and mAP@R are in per cent. Ranks start from 1; a negative whose score ties with a positive is ranked first.
    """
    from quintet.runs.run_folder import check_run, default_corpus, default_split

    if ranks is not None and not ensemble and len(runs) > 1:
        raise QuintetError("--ranks writes one file: evaluate the runs of --separate one at a time, or as an ensemble")
    others = run_list(compare) if compare is not None else []
    if compare is not None and not others:
        raise QuintetError("--compare takes a run, or the runs of an ensemble with commas between them")
    every = [*runs, *others]
    if depth is not None and save_run is None:
        raise QuintetError("--depth is for the file of --save-run")
    trained = [run for run in every if not str(run).startswith(RESULTS)]
    if not trained and corpus is None:
        raise QuintetError("results of other programs do not know a corpus: name theirs with --corpus")
    for run in trained:
        check_run(run)

    from quintet.data.corpus import Corpus
    from quintet.files import check_output

    for file in (out, ranks, save_run):
        if file is not None:
            check_output(file)
    opened = Corpus.open(corpus or default_corpus(trained))
    opened.split(split or default_split(trained, opened.splits))  # mistakes are answered before torch is imported

    from quintet.evaluation.evaluator import evaluate

    with work_bar(Console(stderr=True, quiet=as_json), "encoding", "items") as progress:
        evaluation = evaluate(
            runs,
            opened,
            split=split,
            protocol=protocol,
            ensemble=ensemble,
            compare=others or None,
            hard_samples=hard_samples,
            eccv=eccv,
            cxc=cxc,
            eccv_data=eccv_data,
            relevance=relevance,
            slices=slices,
            expert_annotations=expert_annotations,
            crowd_annotations=crowd_annotations,
            save_run=save_run,
            depth=depth,
            bootstrap=bootstrap,
            seed=seed,
            batch_size=batch_size,
            block=block,
            device=device,
            progress=progress,
        )
    if ranks is not None:
        evaluation.save_ranks(ranks)
    if out is not None:
        evaluation.save(out)
    if as_json:
        print_json(evaluation.to_json(), indent=2)
        return
    console = Console()
    for table in evaluation.tables():
        console.print(table, highlight=False, soft_wrap=isinstance(table, Text))
