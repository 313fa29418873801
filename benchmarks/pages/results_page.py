"""Write docs/results*.md, one page per grid, from the files under benchmarks/results/GRID. No measured number is typed.

python -m benchmarks.pages.results_page
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.grids.catalogue import grid_rows
from benchmarks.grids.rows import Row
from benchmarks.pages.plain_table import table
from benchmarks.pages.results_claims import CLAIMS, PAPER_TABLES, Claim
from benchmarks.pages.results_compare import (
    NOT_SCORED,
    Comparison,
    Results,
    compare,
    pairs_of_grid,
    read_results,
    relabelled,
)
from benchmarks.pages.results_earlier import earlier_text
from benchmarks.pages.results_tables import (
    is_judged,
    mean_rsum,
    of_kind,
    paper_table_text,
    recipes_text,
    results_text,
)
from quintet.files import write_text

RESULTS = Path(__file__).parents[1] / "results"
DOCS = Path(__file__).parents[2] / "docs"
CLIPSCORE = 0.512  # Hessel et al. 2021, Table 1


@dataclass(frozen=True)
class Page:
    """The page of a grid: its file, title and introduction."""

    file: str
    title: str
    about: str
    needs: str = "a GPU, or days of two processor cores"  # of rows that are missing
    readings: Path | None = None  # written by hand, without numbers: what the numbers mean


PAGES = {
    "flickr8k": Page(
        "results.md",
        "Results on Flickr8k",
        "[Experiments](evidence.md) test each paper's main claim on a generated corpus. "
        "[Results on scenes](results-scenes.md) are on one, too; [trials](results-trials.md) are settings "
        "that were tried before the recipes were settled. A [report](report-flickr8k/index.html) of some runs has "
        "training curves, ranks, searches and attention, without photographs.",
        readings=Path(__file__).parent / "results_readings.md",
    ),
    "scenes": Page(
        "results-scenes.md",
        "Results on scenes",
        "The corpus is [generated](scenes.md), the recipes are small; [results](results.md) are on photographs.",
    ),
    "clip": Page(
        "results-clip.md",
        "Do mined hard negatives help a contrastive model?",
        "Small dual encoders are trained from scratch on a [generated corpus](scenes.md), by the recipes `clip-scenes` "
        "and `siglip-scenes`: a first round, then a second from its weights, equally long without mined negatives, "
        "with them beside the batch, and with the loss of AOQ.",
        needs="about five minutes of a processor core each",
    ),
    "trials": Page(
        "results-trials.md",
        "Trials on Flickr8k",
        "One seed each. Settings chosen here by the validation split have three seeds in [results](results.md).",
    ),
    "small": Page(
        "results-small.md",
        "Results on Flickr8k, on two CPU cores",
        "HREM with small embeddings and few epochs, Dual-Path with a fixed image CNN: less accurate, but trainable on "
        "a CPU.",
    ),
}
HEAD = """# {title}

Written by `benchmarks/pages/results_page.py` from the files under `benchmarks/results/{grid}/`, one per run, with its
command, recipe, seed, device and versions. Test split, {images:,} images and {texts:,} texts; every epoch was
selected on the validation split. {done} of {total} rows of the grid are measured, on {devices}.
{about}

How to read the tables:

- Recalls are in per cent, means over seeds.
- **rsum** has the sample standard deviation over seeds after ±. Below it is a 95 % bootstrap interval over test queries
  (resampled by group, mean over seeds). Dev rsum is that of the validation split.
- **S** is the overlap of the scores of positive and negative pairs (Dual-Path, Eq. 10; lower is better).
{agreement}- **Seconds** are of training with validation. Runs shared the device, so they are upper bounds.
- **GiB** are the peak memory over the seeds: of tensors on a GPU, of the process on a CPU. A second round that ran
  first also mined.
- There is a table for every image tower whose features are read. Under *pixels* the matcher has its own image CNN.
  Single models and ensembles have separate tables.
"""
AGREEMENT = """- **tau-c** is the agreement with {judgements:,} expert judgements (protocol of CLIPScore, which was
  trained on 400 million pairs and has {clipscore}).
"""
RECIPES_HEAD = """
## The recipes

From the features of EfficientNet-Lite0: same corpus, features and seeds, epochs selected in the same way, best first.
The search for settings was not equal ([below](#where-a-method-falls-short)).

"""
NOT_MEASURED = """
## Rows of the grid that are not measured

These need {needs}: `python -m benchmarks.measure.flickr8k --grid {grid}` trains what is
missing.

"""
PAPER_TABLES_HEAD = """
## The papers' tables, with our numbers

Mean and sample standard deviation over seeds. The papers' numbers are from other data sets and features; only the order
can be compared. Rows are ordered by rsum. S may order them differently: it counts all negative pairs equally, recall
only the hardest.
"""
CLAIMS_HEAD = """
## Claims of the papers

Each claim is an ordering. Differences are taken seed by seed, better minus worse according to the paper: of rsum, or
where a claim is about S, of S with the sign turned round, because less is better. *Above 0* counts the pairs of runs
that agree with the paper. There are two 95 % intervals: *over seeds* (Student's t over the means of the seeds) and
*over queries* (paired bootstrap over test groups; S has none). **Confirmed**: both are above 0. **Not
confirmed**: both are below 0, so the opposite was measured. Everything else is **inconclusive**: the difference is
small, or the few seeds vary too much to be sure of its sign. **Not scored**: this setting cannot show the claim, and
its section says why; or all runs of a side collapsed in training. A pair with a run that collapsed counts nowhere.
"""


def scored(claim: Claim, grid: str, found: Comparison) -> tuple[str, ...]:
    """The cells of a comparison; there is no verdict where the grid cannot show the claim."""
    *numbers, verdict = found.cells()
    return (*numbers, NOT_SCORED if found.pairs and grid in claim.not_shown else verdict)


def claim_text(claim: Claim, grid: str, rows: Sequence[Row], results: Results) -> str:
    measure = "S" if claim.by_overlap else "rsum"
    columns = ("comparison", f"difference in {measure}", "above 0", "over seeds", "over queries", "verdict")
    pairs = pairs_of_grid(rows, claim.pairs)
    found = {pair: compare(results, [pair], claim.by_overlap) for pair in pairs}
    lines = [
        (f"{better} > {worse} ({one.pairs[0][0].content['tower']})", *scored(claim, grid, one))
        for (better, worse), one in found.items()
        if one.pairs
    ]
    whole = compare(results, pairs, claim.by_overlap)
    *_, verdict = scored(claim, grid, whole)
    parts = [f"### {claim.title}: {verdict}\n", f"{claim.source}.\n"]
    if grid in claim.not_shown and whole.pairs:
        parts.append(f"Not scored: {claim.not_shown[grid]}\n")
    if lines:
        together = ("**together**", *scored(claim, grid, whole))
        parts.append(table(columns, [*lines, *([together] if len(lines) > 1 else [])]) + "\n")
    notes = [note for note in (claim.note, claim.grid_notes.get(grid)) if note]
    if notes:
        parts.append(" ".join(notes) + "\n")
    if whole.collapsed:
        runs = ", ".join(f"`{run}`" for run in whole.collapsed)
        parts.append(f"Left out, because training warned of a collapse: {runs}.\n")
    missing = [f"{better} > {worse}" for (better, worse), one in found.items() if not one.pairs and not one.collapsed]
    if missing and lines:
        parts.append(f"Not measured: {', '.join(missing)}.\n")
    return "\n".join(parts)


def best_text(results: Results, kind: str) -> str:
    """The row with the highest mean rsum."""
    known = of_kind(results, kind)
    if not known:
        return ""
    name = max(known, key=lambda one: mean_rsum(known[one]))
    seeds = f"mean of {len(known[name])} seeds" if len(known[name]) > 1 else "one seed"
    return f"\nBest {kind}: `{name}`, rsum {mean_rsum(known[name]):.1f}, {seeds}."


def notes_text(results: Results) -> str:
    """The warnings of training, and the runs that had them."""
    runs: dict[str, list[str]] = defaultdict(list)
    for name, seeds in results.items():
        for seed, result in seeds.items():
            for note in dict.fromkeys(result.content.get("notes", ())):
                runs[note].append(f"`{name}-seed{seed}`")
    lines = [f"- {', '.join(names)}: {note}" for note, names in runs.items()]
    return "\n## Warnings of training\n\n" + "\n".join(lines) + "\n" if lines else ""


def missing_text(grid: str, missing: Sequence[Row]) -> str:
    if not missing:
        return ""
    seeds: dict[str, list[int]] = defaultdict(list)
    for row in missing:
        seeds[row.name].append(row.seed)
    lines = [f"- `{name}`, seed {', '.join(map(str, of_name))}" for name, of_name in seeds.items()]
    return NOT_MEASURED.format(grid=grid, needs=PAGES[grid].needs) + "\n".join(lines) + "\n"


def head_text(grid: str, results: Results, done: int, total: int) -> str:
    every = [result.content for seeds in results.values() for result in seeds.values()]
    agreement = ""
    if is_judged(results):
        judgements = next(found["human_agreement"]["judgements"] for found in every if found["human_agreement"])
        agreement = AGREEMENT.format(judgements=judgements, clipscore=CLIPSCORE)
    return HEAD.format(
        grid=grid,
        title=PAGES[grid].title,
        about=PAGES[grid].about,
        images=every[0]["counts"]["images"],
        texts=every[0]["counts"]["texts"],
        done=done,
        total=total,
        devices=" and ".join(sorted({found["device"] for found in every})),
        agreement=agreement,
    )


def page(grid: str, results: Results) -> str:
    if not results:
        command = f"python -m benchmarks.measure.flickr8k --grid {grid}"
        return f"# {PAGES[grid].title}\n\nNot measured yet; run `{command}`. {PAGES[grid].about}\n"
    rows = grid_rows(grid)
    results = relabelled(results, rows)
    missing = [row for row in rows if row.seed not in results.get(row.name, {})]
    claims = [claim for claim in CLAIMS if pairs_of_grid(rows, claim.pairs)]
    verdicts, shown, unmeasured = [], [], []
    for claim in claims:
        whole = compare(results, pairs_of_grid(rows, claim.pairs), claim.by_overlap)
        if not whole.pairs and not whole.collapsed:
            unmeasured.append(claim.title)
            continue
        shown.append(claim)
        mean, above, *_, verdict = scored(claim, grid, whole)
        verdicts.append((claim.title, mean, above, verdict))
    readings = PAGES[grid].readings
    papers = "".join(paper_table_text(paper, rows, results) for paper in PAPER_TABLES)
    recipes = recipes_text(results, rows) if grid == "flickr8k" else ""
    left = f"\nNot measured, needs {PAGES[grid].needs}: {'; '.join(unmeasured)}.\n" if unmeasured else ""
    parts = [
        head_text(grid, results, len(rows) - len(missing), len(rows)),
        best_text(results, "single") + best_text(results, "ensemble") + "\n",
        RECIPES_HEAD + recipes if recipes else "",
        "\n## Single models\n" + results_text(results, "single"),
        "\n## Ensembles\n\nThe mean of the members' scores.\n" + results_text(results, "ensemble"),
        earlier_text(results) if grid == "flickr8k" else "",
        "\n" + readings.read_text(encoding="utf-8") if readings is not None else "",
        PAPER_TABLES_HEAD + papers if papers else "",
        CLAIMS_HEAD + "\n" + table(("claim", "difference", "above 0", "verdict"), verdicts) + "\n" + left,
        *("\n" + claim_text(claim, grid, rows, results) for claim in shown),
        notes_text(results),
        missing_text(grid, missing),
    ]
    return "".join(parts)


def main(results: Path = RESULTS, docs: Path = DOCS) -> None:
    for grid, where in PAGES.items():
        write_text(docs / where.file, page(grid, read_results(results / grid)))
        print(f"written: {docs / where.file}")


if __name__ == "__main__":
    main()
