"""Writes docs/results.md from the files under benchmarks/results/flickr8k: no number in it is typed by hand.

python benchmarks/results_page.py
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np

import flickr8k_grid
from plain_table import table
from quintet.files import write_text
from results_claims import CLAIMS, Claim
from results_compare import Comparison, Result, Results, compare, interval_text, over_queries, read_results

RESULTS = Path(__file__).parent / "results" / "flickr8k"
PAGE = Path(__file__).parent.parent / "docs" / "results.md"
CLIPSCORE = 0.512  # Hessel et al. 2021, Table 1
RECALLS = [f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
HEAD = """# Results on Flickr8k

Written by `benchmarks/results_page.py` from the files under `benchmarks/results/flickr8k/`, one per run, each with its
command, recipe, seed, device and versions. Test split, {images:,} photographs and {texts:,} captions; every epoch was
selected on the validation split. {done} of {total} rows of the grid are measured, on {devices}.

Recalls are per cent, mean over seeds. **rsum** has the sample standard deviation over seeds behind ±, and below it a
95 % interval over test queries (groups drawn with replacement, the seeds' mean). S is the overlap of right and wrong
pairs (Dual-Path, Eq. 10; lower is better). tau-c is the agreement with {judgements:,} expert judgements (CLIPScore's
protocol; CLIPScore itself, which saw 400 million pairs, has {clipscore}). Seconds are of training with validation; runs
shared the GPU, so they are upper bounds. Single models and ensembles are never in one table.
"""
CLAIMS_HEAD = """
## What the papers claim, and what we measured

Each claim is an ordering. Differences in rsum are taken seed by seed, better minus worse as the paper has it. Two 95 %
intervals: *over seeds* (Student's t over all pairs of runs: would other seeds show it?) and *over queries* (paired
bootstrap over test groups: would other photographs?). **Confirmed** means that both lie above 0, **not confirmed** that
both lie below 0, so that the opposite was measured; everything else is **inconclusive**: with so many seeds and queries
the difference, if there is one, is too small to be seen. The papers' numbers are of other data sets and other features;
only the order can be compared.
"""


def suffixes() -> dict[str, str]:
    """How the names of rows end in each series, and what its tower is called."""
    return {
        "" if series == flickr8k_grid.FIRST else f"-{series}": tower
        for series, (tower, _) in flickr8k_grid.SERIES.items()
    }


def compare_all(claim: Claim, results: Results) -> Comparison:
    """A claim over all its pairs and all towers."""
    return Comparison(tuple(pair for suffix in suffixes() for pair in compare(results, claim.pairs, suffix).pairs))


def claim_text(claim: Claim, results: Results) -> str:
    columns = ("comparison", "pairs of runs", "difference in rsum", "over seeds", "over queries", "reading")
    lines = []
    measured = set()
    for suffix, tower in suffixes().items():
        for better, worse in claim.pairs:
            found = compare(results, [(better, worse)], suffix)
            if found.pairs:
                measured.add((better, worse))
                lines.append((f"{better} > {worse} ({tower})", *found.cells()))
    whole = compare_all(claim, results)
    parts = [f"### {claim.title}: {whole.verdict}\n", f"{claim.source}.\n"]
    if lines:
        together = ("**together**", *whole.cells())
        parts.append(table(columns, [*lines, *([together] if len(lines) > 1 else [])]) + "\n")
    if claim.note:
        parts.append(claim.note + "\n")
    missing = [f"{better} > {worse}" for better, worse in claim.pairs if (better, worse) not in measured]
    if missing:
        parts.append(f"Not measured: {', '.join(missing)}.\n")
    return "\n".join(parts)


def results_text(results: Results, kind: str) -> str:
    """The tables of single models or of ensembles, one per tower, best first."""
    towers: dict[str, list[list[Result]]] = defaultdict(list)
    for seeds in results.values():
        of_name = list(seeds.values())
        if of_name[0].content["kind"] == kind:
            towers[of_name[0].content["tower"]].append(of_name)
    columns = ("model", "loss", "seeds", *(f"{way} R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)))
    columns = (*columns, "rsum", "S", "tau-c", *(("s", "GiB") if kind == "single" else ()))
    parts = []
    for tower, rows in towers.items():
        rows.sort(key=lambda row: -statistics.fmean(result.rsum for result in row))
        parts.append(f"\n### {tower}\n\n" + table(columns, [_row(row, kind) for row in rows]) + "\n")
    return "".join(parts) or "\nNone is measured yet.\n"


def _best(results: Results, kind: str) -> str:
    """The name with the highest mean rsum, and that mean."""
    means = {
        name: statistics.fmean(result.rsum for result in seeds.values())
        for name, seeds in results.items()
        if all(result.content["kind"] == kind for result in seeds.values())
    }
    name = max(means, key=lambda known: means[known], default="")
    return f"`{name}`, rsum {means[name]:.1f}, mean of {len(results[name])} seeds" if name else ""


def _row(seeds: list[Result], kind: str) -> tuple[str, ...]:
    contents = [result.content for result in seeds]
    first = contents[0]
    recalls = [f"{statistics.fmean(found['metrics'][name] for found in contents):.1f}" for name in RECALLS]
    sums = [result.rsum for result in seeds]
    spread = f" ± {statistics.stdev(sums):.1f}" if len(sums) > 1 else ""
    interval = interval_text(over_queries(np.mean([result.shares for result in seeds], axis=0)), "{:.1f}")
    people = [found["human_agreement"]["tau_c"] for found in contents if found["human_agreement"]]
    cells = [
        f"{first['label']} (`{first['name']}`)",
        first["loss"] or "",
        str(len(seeds)),
        *recalls,
        f"**{statistics.fmean(sums):.1f}**{spread}<br>{interval}",
        f"{statistics.fmean(found['similarities']['S'] for found in contents):.3f}",
        f"{statistics.fmean(people):.3f}" if people else "",
    ]
    if kind == "single":
        trained = [found for found in contents if "training" in found]
        cells.append(f"{statistics.median(found['training']['seconds'] for found in trained):.0f}" if trained else "")
        cells.append(f"{max(found['peak_memory']['bytes'] for found in trained) / 2**30:.1f}" if trained else "")
    return tuple(cells)


def notes_text(results: Results) -> str:
    """What training warned of: it belongs beside the numbers."""
    lines = [
        f"- `{name}-seed{seed}`: {note}"
        for name, seeds in results.items()
        for seed, result in seeds.items()
        for note in result.content.get("notes", ())
    ]
    return "\n## What training warned of\n\n" + "\n".join(lines) + "\n" if lines else ""


def missing_text(results: Results) -> str:
    missing: dict[str, list[int]] = defaultdict(list)
    for row in flickr8k_grid.rows(flickr8k_grid.METHODS, flickr8k_grid.ENSEMBLES):
        if row.seed not in results.get(row.name, {}):
            missing[row.name].append(row.seed)
    if not missing:
        return ""
    lines = [f"- `{name}`, seed {', '.join(map(str, seeds))}" for name, seeds in missing.items()]
    return "\n## Rows of the grid that are not measured\n\n" + "\n".join(lines) + "\n"


def page(results: Results) -> str:
    every = [result for seeds in results.values() for result in seeds.values()]
    if not every:
        return "# Results on Flickr8k\n\nNothing is measured yet; `python benchmarks/flickr8k.py` does it.\n"
    first = every[0].content
    judged = [found.content["human_agreement"] for found in every if found.content["human_agreement"]]
    facts = {
        "images": first["counts"]["images"],
        "texts": first["counts"]["texts"],
        "done": len(every),
        "total": len(flickr8k_grid.rows(flickr8k_grid.METHODS, flickr8k_grid.ENSEMBLES)),
        "devices": " and ".join(sorted({result.content["device"] for result in every})),
        "judgements": judged[0]["judgements"] if judged else 0,
        "clipscore": CLIPSCORE,
    }
    best = {kind: _best(results, kind) for kind in ("single", "ensemble")}
    verdicts = [(claim.title, compare_all(claim, results).verdict) for claim in CLAIMS]
    parts = [
        HEAD.format(**facts),
        "".join(f"\nBest {kind}: {found}." for kind, found in best.items() if found) + "\n",
        "\n## Single models\n" + results_text(results, "single"),
        "\n## Ensembles\n\nThe mean of the members' scores.\n" + results_text(results, "ensemble"),
        CLAIMS_HEAD + "\n" + table(("claim", "reading"), verdicts) + "\n",
        *("\n" + claim_text(claim, results) for claim in CLAIMS),
        notes_text(results),
        missing_text(results),
    ]
    return "".join(parts)


def main(results: Path = RESULTS, target: Path = PAGE) -> None:
    write_text(target, page(read_results(results)))
    print(f"written: {target}")


if __name__ == "__main__":
    main()
