"""Writes docs/results.md and docs/results-scenes.md, one page per grid, from the files under benchmarks/results/GRID:
no measured number in them is typed by hand.

python benchmarks/results_page.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import flickr8k_grid
from flickr8k_grid import Row
from plain_table import table
from quintet.files import write_text
from results_claims import CLAIMS, PAPER_TABLES, Claim
from results_compare import Results, compare, pairs_of_grid, read_results, relabelled
from results_earlier import earlier_text
from results_tables import is_judged, mean_rsum, of_kind, paper_table_text, results_text

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
CLIPSCORE = 0.512  # Hessel et al. 2021, Table 1


@dataclass(frozen=True)
class Page:
    """Where the results of a grid are written, and what is said of its corpus."""

    file: str
    title: str
    about: str
    readings: Path | None = None  # written by people, without numbers: what the numbers mean


PAGES = {
    "flickr8k": Page(
        "results.md",
        "Results on Flickr8k",
        "[Results on scenes](results-scenes.md) are of a corpus that anybody can generate; before the recipes were "
        "settled, [other settings were tried](results-trials.md). A [report](report-flickr8k/index.html) of some of "
        "the runs has curves, ranks, searches and attention, without photographs.",
        Path(__file__).parent / "results_readings.md",
    ),
    "scenes": Page(
        "results-scenes.md",
        "Results on scenes",
        "The corpus is [generated](scenes.md), with small recipes; photographs are in [results](results.md).",
    ),
    "trials": Page(
        "results-trials.md",
        "What was tried on Flickr8k",
        "One seed each: what is chosen here by the validation split is measured under three in [results](results.md).",
    ),
    "small": Page(
        "results-small.md",
        "Results on Flickr8k, on two processor cores",
        "HREM with small embeddings and few epochs, Dual-Path with a fixed image CNN: less is learned, but anybody can "
        "train it.",
    ),
}
HEAD = """# {title}

Written by `benchmarks/results_page.py` from the files under `benchmarks/results/{grid}/`, one per run, each with its
command, recipe, seed, device and versions. Test split, {images:,} images and {texts:,} texts; every epoch was
selected on the validation split. {done} of {total} rows of the grid are measured, on {devices}.
{about}

Recalls are per cent, mean over seeds. **rsum** has the sample standard deviation over seeds behind ±, and below it a
95 % interval over test queries (groups drawn with replacement, the seeds' mean). S is the overlap of right and wrong
pairs (Dual-Path, Eq. 10; lower is better). {people}Dev rsum is the validation
split's. Seconds are of training with validation; runs shared the device, so they are upper bounds. GiB are the most
that any seed took, on a GPU for its tensors, on a CPU as a process; a second round that came first also mined. There is
a table for every image tower whose features are read; under *pixels* the matcher has an image CNN of its own. Single
models and ensembles are never in one table.
"""
PEOPLE = """tau-c is the agreement with {judgements:,} expert judgements (CLIPScore's
protocol; CLIPScore itself, which saw 400 million pairs, has {clipscore}). """
PAPER_TABLES_HEAD = """
## The papers' tables, as they came out here

Mean and sample standard deviation over seeds. The papers' numbers are of other data sets and other features; only the
order can be compared. Rows are ordered by rsum. S may order them otherwise: it counts all wrong pairs alike, recall
only the nearest.
"""
CLAIMS_HEAD = """
## What the papers claim, and what we measured

Each claim is an ordering. Differences in rsum are taken seed by seed, better minus worse as the paper has it; *above 0*
counts the pairs of runs that agree with the paper. Two 95 % intervals: *over seeds* (Student's t over the seeds' means:
would other seeds show it?) and *over queries* (paired bootstrap over test groups: would other images?).
**Confirmed** means that both lie above 0, **not confirmed** that both lie below 0, so that the opposite was measured.
Everything else is **inconclusive**: the difference is small, or so few seeds scatter so much that even the sign of a
large one is not certain.
"""


def claim_text(claim: Claim, grid: str, rows: Sequence[Row], results: Results) -> str:
    columns = ("comparison", "difference in rsum", "above 0", "over seeds", "over queries", "reading")
    pairs = pairs_of_grid(rows, claim.pairs)
    found = {pair: compare(results, [pair]) for pair in pairs}
    lines = [
        (f"{better} > {worse} ({one.pairs[0][0].content['tower']})", *one.cells())
        for (better, worse), one in found.items()
        if one.pairs
    ]
    whole = compare(results, pairs)
    parts = [f"### {claim.title}: {whole.verdict}\n", f"{claim.source}.\n"]
    if lines:
        together = ("**together**", *whole.cells())
        parts.append(table(columns, [*lines, *([together] if len(lines) > 1 else [])]) + "\n")
    notes = [note for note in (claim.note, claim.grid_notes.get(grid)) if note]
    if notes:
        parts.append(" ".join(notes) + "\n")
    missing = [f"{better} > {worse}" for (better, worse), one in found.items() if not one.pairs]
    if missing and lines:
        parts.append(f"Not measured: {', '.join(missing)}.\n")
    return "\n".join(parts)


def best_text(results: Results, kind: str) -> str:
    """The name with the highest mean rsum, and that mean."""
    known = of_kind(results, kind)
    if not known:
        return ""
    name = max(known, key=lambda one: mean_rsum(known[one]))
    seeds = f"mean of {len(known[name])} seeds" if len(known[name]) > 1 else "one seed"
    return f"\nBest {kind}: `{name}`, rsum {mean_rsum(known[name]):.1f}, {seeds}."


def notes_text(results: Results) -> str:
    """What training warned of, and in which runs: it belongs beside the numbers."""
    runs: dict[str, list[str]] = defaultdict(list)
    for name, seeds in results.items():
        for seed, result in seeds.items():
            for note in dict.fromkeys(result.content.get("notes", ())):
                runs[note].append(f"`{name}-seed{seed}`")
    lines = [f"- {', '.join(names)}: {note}" for note, names in runs.items()]
    return "\n## What training warned of\n\n" + "\n".join(lines) + "\n" if lines else ""


def missing_text(missing: Sequence[Row]) -> str:
    if not missing:
        return ""
    seeds: dict[str, list[int]] = defaultdict(list)
    for row in missing:
        seeds[row.name].append(row.seed)
    lines = [f"- `{name}`, seed {', '.join(map(str, of_name))}" for name, of_name in seeds.items()]
    return "\n## Rows of the grid that are not measured\n\n" + "\n".join(lines) + "\n"


def head_text(grid: str, results: Results, done: int, total: int) -> str:
    every = [result.content for seeds in results.values() for result in seeds.values()]
    people = ""
    if is_judged(results):
        judgements = next(found["human_agreement"]["judgements"] for found in every if found["human_agreement"])
        people = PEOPLE.format(judgements=judgements, clipscore=CLIPSCORE)
    return HEAD.format(
        grid=grid,
        title=PAGES[grid].title,
        about=PAGES[grid].about,
        images=every[0]["counts"]["images"],
        texts=every[0]["counts"]["texts"],
        done=done,
        total=total,
        devices=" and ".join(sorted({found["device"] for found in every})),
        people=people,
    )


def page(grid: str, results: Results) -> str:
    if not results:
        command = f"python benchmarks/flickr8k.py --grid {grid}"
        return f"# {PAGES[grid].title}\n\nNothing is measured yet; `{command}` does it. {PAGES[grid].about}\n"
    rows = flickr8k_grid.grid_rows(grid)
    results = relabelled(results, rows)
    missing = [row for row in rows if row.seed not in results.get(row.name, {})]
    claims = [claim for claim in CLAIMS if pairs_of_grid(rows, claim.pairs)]
    verdicts = []
    for claim in claims:
        mean, above, *_, reading = compare(results, pairs_of_grid(rows, claim.pairs)).cells()
        verdicts.append((claim.title, mean, above, reading))
    readings = PAGES[grid].readings
    papers = "".join(paper_table_text(paper, rows, results) for paper in PAPER_TABLES)
    parts = [
        head_text(grid, results, len(rows) - len(missing), len(rows)),
        best_text(results, "single") + best_text(results, "ensemble") + "\n",
        "\n## Single models\n" + results_text(results, "single"),
        "\n## Ensembles\n\nThe mean of the members' scores.\n" + results_text(results, "ensemble"),
        earlier_text(results) if grid == "flickr8k" else "",
        "\n" + readings.read_text(encoding="utf-8") if readings is not None else "",
        PAPER_TABLES_HEAD + papers if papers else "",
        CLAIMS_HEAD + "\n" + table(("claim", "difference in rsum", "above 0", "reading"), verdicts) + "\n",
        *("\n" + claim_text(claim, grid, rows, results) for claim in claims),
        notes_text(results),
        missing_text(missing),
    ]
    return "".join(parts)


def main(results: Path = RESULTS, docs: Path = DOCS) -> None:
    for grid, where in PAGES.items():
        write_text(docs / where.file, page(grid, read_results(results / grid)))
        print(f"written: {docs / where.file}")


if __name__ == "__main__":
    main()
