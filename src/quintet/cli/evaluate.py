"""`quintet evaluate`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quintet.cli.options import (
    OUTPUT,
    BatchSizeOption,
    BlockOption,
    BootstrapOption,
    CorpusOption,
    DeviceOption,
    ExpertAnnotationsOption,
    JsonOption,
    RunsArgument,
    SplitOption,
    complete_run,
)
from quintet.errors import QuintetError

if TYPE_CHECKING:
    import torch

    from quintet.data.corpus import Corpus, Split
    from quintet.evaluation.human_agreement import Agreement
    from quintet.evaluation.result import Result
    from quintet.evaluation.scoring import Member
    from quintet.evaluation.significance import Difference


def _complete_protocol(incomplete: str) -> Iterator[str]:
    yield from (name for name in ("full", "5fold", "5k", "identity") if name.startswith(incomplete))


def agreements(
    annotations: Path,
    split: Split,
    teams: Mapping[str, Sequence[Member]],
    resamples: int,
    seed: int,
    device: torch.device,
) -> dict[str, Agreement]:
    """The agreement of each single model or ensemble with the experts."""
    from quintet.evaluation.human_agreement import human_agreement, judged_pairs, pair_scores, read_expert_annotations

    pairs = judged_pairs(read_expert_annotations(annotations), split)
    return {
        name: human_agreement(pair_scores(team, pairs, device), pairs, resamples, seed) for name, team in teams.items()
    }


def agreement_line(name: str, found: Agreement) -> str:
    """
    >>> from quintet.evaluation.human_agreement import Agreement
    >>> agreement_line("first", Agreement(0.4123, (0.39, 0.43), 5664, 16992, 158))
    'first: Kendall tau-c 0.412 (0.390 to 0.430) with 16,992 judgements of 5,664 pairs'
    """
    interval = "" if found.interval is None else f" ({found.interval[0]:.3f} to {found.interval[1]:.3f})"
    what = f"{found.judgements:,} judgements of {found.pairs:,} pairs"
    return f"{name}: Kendall tau-c {found.tau_c:.3f}{interval} with {what}"


def hard_samples(
    results: Mapping[str, Result], teams: Mapping[str, Sequence[Member]], split: Split, device: torch.device
) -> dict[str, Any]:
    """R@1 of all results on hard and infrequent queries; the last one, which the others are compared with, chooses."""
    from quintet.evaluation.scoring import member_scores
    from quintet.evaluation.special_samples import negative_means, special_samples

    *_, last = results
    if len(results[last].ranks) > 1:
        raise QuintetError("--hard-samples needs a protocol without folds: use --protocol full")
    scores = member_scores(teams[last], device)
    means = negative_means(scores, split.image_groups, split.text_groups, tuple(results[last].settings["block"]))
    ranks = {name: result.ranks[0] for name, result in results.items()}
    return {"chosen_by": last, "rows": special_samples(ranks, *means)}


def hard_samples_table(found: Mapping[str, Any]) -> Table:
    title = f"R@1 on hard and infrequent queries, chosen by {escape(found['chosen_by'])}"
    table = Table(title=title, box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left")
    for heading in ("", "per cent", "", "image to text", "text to image"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in found["rows"]:
        recalls = (f"{row['i2t_r1']:.1f}", f"{row['t2i_r1']:.1f}")
        table.add_row(row["samples"], str(row["percent"]), escape(row["run"]), *recalls)
    return table


DIRECTIONS = {"i2t": "image to text", "t2i": "text to image"}
HEADINGS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "medr", "meanr": "meanr", "map_at_r": "mAP@R"}
WITH_INTERVAL = ("r1", "r5", "r10")
PAIRED_RESAMPLES = 10_000
LABEL_WIDTH = 15  # with it the table fits 80 columns


def evaluate_command(
    runs: RunsArgument,
    corpus: CorpusOption = None,
    split: SplitOption = "test",
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="full, 5fold (COCO 1K), 5k (COCO 5K) or identity (CUHK-PEDES).",
            autocompletion=_complete_protocol,
        ),
    ] = "full",
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble/--separate", help="Several runs: evaluate the mean of their scores, or each alone."),
    ] = True,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Test whether the results of this run differ, query by query.",
            autocompletion=complete_run,
        ),
    ] = None,
    hard: Annotated[
        bool,
        typer.Option(
            "--hard-samples",
            help="Also R@1 on hard and infrequent queries, chosen by the run of --compare where it is given.",
        ),
    ] = False,
    expert_annotations: ExpertAnnotationsOption = None,
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
    as_json: JsonOption = False,
    batch_size: BatchSizeOption = 128,
    block: BlockOption = 1024,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate runs: R@K, rsum, median rank, with confidence intervals.

    `quintet evaluate runs/first` evaluates one run on the test split of its own corpus.

    `quintet evaluate runs/a runs/b` evaluates their ensemble; with `--separate`, each of them.

    `quintet evaluate runs/a --compare runs/b` also tests whether they differ; with `--hard-samples`, it evaluates both
    on queries that resemble all of their negatives, or none.

    Recalls and mAP@R are in per cent. Ranks start from 1; a negative whose score ties with a positive is ranked first.
    """
    from quintet.data.corpus import Corpus
    from quintet.runs.run_folder import check_run, default_corpus

    if ranks is not None and not ensemble and len(runs) > 1:
        raise QuintetError("--ranks writes one file: evaluate the runs of --separate one at a time, or as an ensemble")
    every = [*runs, *([compare] if compare else [])]
    for run in every:
        check_run(run)
    where = Corpus.open(corpus or default_corpus(every))
    chosen = where.split(split)

    from quintet.evaluation.evaluator import evaluate_members
    from quintet.evaluation.protocols import find_protocol
    from quintet.files import write_json
    from quintet.runs.devices import pick_device
    from quintet.runs.run import open_run

    find_protocol(protocol)  # report a typo before anything is encoded
    torch_device = pick_device(device)
    opened = [open_run(folder) for folder in every]
    options: dict[str, Any] = {
        "protocol": protocol,
        "block": block,
        "bootstrap": bootstrap,
        "seed": seed,
        "device": torch_device,
    }
    with Console(stderr=True, quiet=as_json).status("") as status:
        members = []
        for member in opened:
            status.update(
                f"encoding {len(chosen.images)} images and {len(chosen.texts)} texts with {escape(member.name)}"
            )
            members.append(_encode(member, where, chosen, batch_size, torch_device))
        status.update("ranking")
        teams = [members[: len(runs)]] if ensemble else [[member] for member in members[: len(runs)]]
        results = _by_name([evaluate_members(team, chosen, **options) for team in teams])
        differences = {}
        if compare is not None:
            other = evaluate_members(members[-1:], chosen, **options)
            differences = _differences(results, other, seed)
            results = _by_name([*results.values(), other])
            teams.append(members[-1:])
        people: dict[str, Agreement] = {}
        named = dict(zip(results, teams, strict=True))
        special = hard_samples(results, named, chosen, torch_device) if hard else None
        if expert_annotations is not None:
            status.update("agreement with people")
            people = agreements(expert_annotations, chosen, named, bootstrap, seed, torch_device)
    if ranks is not None:
        next(iter(results.values())).save_ranks(ranks)
    facts = {
        "corpus": {"name": where.name, "folder": str(where.root)},
        "runs": [{"name": run.name, "weights_sha256": run.weights_checksum} for run in opened],
        "batch_size": batch_size,
    }
    report = _report(results, differences, facts)
    if people:
        report["human_agreement"] = {name: found.to_json() for name, found in people.items()}
    if special is not None:
        report["special_samples"] = special
    if out is not None:
        write_json(out, report)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    console = Console()
    console.print(results_table(results, title=_title(where, chosen, results)))
    for label, difference in differences.items():
        console.print(comparison_table(label, difference))
    if special is not None:
        console.print(hard_samples_table(special))
    for name, found in people.items():
        console.print(agreement_line(name, found), markup=False, highlight=False, soft_wrap=True)


def _differences(results: Mapping[str, Result], other: Result, seed: int) -> dict[str, dict[str, Difference]]:
    from quintet.evaluation.significance import paired_test

    (name,) = other.members
    return {
        f"{label} - {name}": paired_test(result.ranks, other.ranks, PAIRED_RESAMPLES, seed)
        for label, result in results.items()
    }


def _encode(run: Any, corpus: Corpus, split: Split, batch_size: int, device: torch.device) -> Member:
    from quintet.evaluation.evaluator import encode_split
    from quintet.evaluation.scoring import Member

    matcher = run.matcher.to(device)
    images = run.image_batches(corpus, split.images, batch_size)
    texts = run.text_batches(split.texts, batch_size)
    return Member(matcher, *encode_split(matcher, images, texts, split, device), name=run.name)


def _by_name(results: Sequence[Result]) -> dict[str, Result]:
    """Results under the names of their runs; runs of one name are numbered."""
    named: dict[str, Result] = {}
    for result in results:
        name = " + ".join(result.members)
        number = 1 + sum(known == name or known.startswith(f"{name} (") for known in named)
        named[name if number == 1 else f"{name} ({number})"] = result
    return named


def _report(
    results: Mapping[str, Result], differences: Mapping[str, Mapping[str, Difference]], facts: dict[str, Any]
) -> dict[str, Any]:
    """One result as itself; several, or a comparison, under `results` and `comparisons`. Always with provenance."""
    from quintet.evaluation.result import provenance

    made = {**provenance(), **facts}
    if len(results) == 1:
        return {**next(iter(results.values())).to_json(), "provenance": made}
    return {
        "results": {name: result.to_json() for name, result in results.items()},
        "comparisons": {
            label: {"resamples": PAIRED_RESAMPLES, **{name: value.to_json() for name, value in difference.items()}}
            for label, difference in differences.items()
        },
        "provenance": made,
    }


def _title(corpus: Corpus, split: Split, results: Mapping[str, Result]) -> str:
    what = (
        f"{escape(corpus.name)}, split {escape(split.name)}: {len(split.images):,} images, {len(split.texts):,} texts"
    )
    kinds = dict.fromkeys(result.kind for result in results.values())
    return f"{what}\nprotocol {next(iter(results.values())).protocol}, {' and '.join(kinds)}"


def results_table(results: Mapping[str, Result], title: str | None = None) -> Table:
    """One table for any number of results on the same split: both directions, intervals below, chance last."""
    table = Table(title=title, box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("", min_width=LABEL_WIDTH, max_width=LABEL_WIDTH, overflow="fold")  # a long name costs lines only
    for heading in (*HEADINGS.values(), "rsum"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        table.add_row(f"[bold]{escape(name)}[/]" if len(result.members) == 1 else f"[bold]{result.kind}[/]")
        for direction, words in DIRECTIONS.items():
            cells = [_cell(result, f"{direction}_{metric}", metric in WITH_INTERVAL) for metric in HEADINGS]
            table.add_row(f"  {words}", *cells, _cell(result, "rsum", True) if direction == "t2i" else "")
    chance = next(iter(results.values())).chance
    table.add_row("[dim]chance[/]")
    for direction, words in DIRECTIONS.items():
        cells = [_number(chance[f"{direction}_{metric}"], metric) for metric in HEADINGS]
        row = (f"  {words}", *cells, _number(chance["rsum"], "rsum") if direction == "t2i" else "")
        table.add_row(*row, style="dim")
    intervals = any(result.intervals for result in results.values())
    notes = [f"{result.kind}: {escape(name)}" for name, result in results.items() if len(result.members) > 1]
    table.caption = "\n".join([*notes, *(["below the number: its 95 % bootstrap interval"] if intervals else [])])
    table.caption_justify = "left"
    return table


def comparison_table(label: str, differences: Mapping[str, Difference]) -> Table:
    """The difference of two results on the same queries, with its interval and p-value."""
    table = Table(title=escape(label), box=None, header_style="bold", padding=(0, 1, 0, 0), title_justify="left")
    for heading in ("", "difference", "95 % interval", "p"):
        table.add_column(heading, justify="right" if heading else "left")
    named = {f"{d}_{m}": f"{words} {HEADINGS[m]}" for d, words in DIRECTIONS.items() for m in HEADINGS} | {
        "rsum": "rsum"
    }
    for name, words in named.items():
        if name in differences:
            found = differences[name]
            low, high = found.interval
            table.add_row(words, f"{found.difference:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{found.p_value:.4f}")
    table.caption = "paired by group: bootstrap interval, p by sign flips"
    table.caption_justify = "left"
    return table


def _cell(result: Result, name: str, with_interval: bool) -> str:
    number = _number(result.metrics[name], name)
    if not with_interval or name not in result.intervals:
        return number
    low, high = result.intervals[name]
    return f"{number}\n[dim]{_short(low)}-{_short(high)}[/]"


def _number(value: float, name: str) -> str:
    if name.endswith("medr"):
        return f"{value:g}"
    return f"{value:.2f}" if round(abs(value), 2) < 1 else f"{value:.1f}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value >= 99.95 else f"{value:.1f}"
