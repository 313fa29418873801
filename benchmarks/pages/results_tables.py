"""The tables of the results pages: single models, ensembles, and the papers' tables with our numbers."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.grids.rows import Row
from benchmarks.pages.plain_table import table
from benchmarks.pages.results_claims import PaperTable
from benchmarks.pages.results_compare import Result, Results, interval_text, over_queries, series_names

RECALLS = {f"{way}_r{k}": f"{way} R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)}
Seeds = Sequence[Result]  # the results of one name
# The recipes as they are shipped, all from the first tower's features: methods of the grid, without ablations.
RECIPES = (
    *("heads", "vse-avg", "vse-gpo", "scan-t2i", "scan-i2t", "bfan-equal", "bfan-prob", "vsrn"),
    *("mmca", "hrem-fusion", "hrem-standalone", "hrem-none", "dual-path-full"),
)
SECOND = "adap-off-quin"


def results_text(results: Results, kind: str) -> str:
    """The tables of single models or of ensembles, one per tower, best first."""
    towers: dict[str, list[Seeds]] = defaultdict(list)
    for seeds in of_kind(results, kind).values():
        towers[seeds[0].content["tower"]].append(seeds)
    judged = is_judged(results)
    columns = ("model", "loss", "seeds", *RECALLS.values(), "rsum", "S", *(("tau-c",) if judged else ()))
    columns = (*columns, *(("dev rsum", "s", "GiB") if kind == "single" else ()))
    parts = []
    for tower, models in towers.items():
        rows = [_row(seeds, kind, judged) for seeds in sorted(models, key=mean_rsum, reverse=True)]
        parts.append(f"\n### {tower}\n\n{table(columns, rows)}\n")
    return "".join(parts) or "\nNot measured yet.\n"


def recipes_text(results: Results, rows: Sequence[Row]) -> str:
    """One table of the recipes on equal features: the first round, and the second where the method has one."""
    labels = {row.name: row.label for row in rows}
    measured: list[tuple[float, tuple[str, ...]]] = []
    missing = []
    for name in RECIPES:
        row = name if name in labels else f"{name}-online"
        seeds, second = (list(results.get(one, {}).values()) for one in (row, f"{name}-{SECOND}"))
        if not seeds:
            missing += [f"{labels[row]} (`{row}`)"] if row in labels else []
            continue
        again = _measured(second, "rsum")
        cells = (
            f"{labels[row]} (`{row}`)",
            str(len(seeds)),
            *(with_spread(_measured(seeds, metric)) for metric in ("i2t_r1", "t2i_r1")),
            with_spread(_measured(seeds, "rsum"), mean_form="**{}**"),
            f"{with_spread(again)} ({len(again)} seeds)" if again else "",
        )
        measured.append((mean_rsum(seeds), cells))
    if not measured:
        return ""
    columns = ("recipe", "seeds", "i2t R@1", "t2i R@1", "rsum", "rsum after a second round, AdapOffQuin")
    lines = [cells for _, cells in sorted(measured, reverse=True)]
    left = f"\nNot measured, needs a GPU: {', '.join(missing)}.\n" if missing else ""
    return f"{table(columns, lines)}\n{left}"


def paper_table_text(paper: PaperTable, rows: Sequence[Row], results: Results) -> str:
    """A table of a paper with its numbers and ours, for every series in which two of its rows are measured."""
    columns = ("model", "loss", "paper's R@1", "seeds", "i2t R@1", "t2i R@1", "rsum", "S")
    parts = []
    for names in series_names(rows).values():
        measured = {
            name: list(results[names[name]].values()) for name in paper.rows if results.get(names.get(name, ""))
        }
        if len(measured) < 2:
            continue
        order = sorted(measured, key=lambda name: mean_rsum(measured[name]), reverse=True)
        lines = [_paper_row(measured[name], paper.rows[name]) for name in order]
        tower = measured[order[0]][0].content["tower"]
        parts.append(f"From {tower}, best first:\n\n{table(columns, lines)}\n\n{_overlaps_text(measured, order)}\n")
    return (
        f"\n### {paper.title}\n\nPublished numbers: {paper.source}. {paper.note}\n\n" + "\n".join(parts)
        if parts
        else ""
    )


def of_kind(results: Results, kind: str) -> dict[str, Seeds]:
    found = {name: list(seeds.values()) for name, seeds in results.items()}
    return {name: seeds for name, seeds in found.items() if seeds[0].content["kind"] == kind}


def mean_rsum(seeds: Seeds) -> float:
    return statistics.fmean(result.rsum for result in seeds)


def is_judged(results: Results) -> bool:
    """Whether the results have human agreement."""
    return any(result.content["human_agreement"] for seeds in results.values() for result in seeds.values())


def with_spread(values: Iterable[float], form: str = "{:.1f}", mean_form: str = "{}") -> str:
    """The mean, and after ± the sample standard deviation if there are several values.

    >>> with_spread([1.0, 2.0, 3.0]), with_spread([1.0], mean_form="**{}**")
    ('2.0 ± 1.0', '**1.0**')
    """
    found = list(values)
    mean = mean_form.format(form.format(statistics.fmean(found)))
    return f"{mean} ± {form.format(statistics.stdev(found))}" if len(found) > 1 else mean


def _model_cells(seeds: Seeds) -> tuple[str, str]:
    first = seeds[0].content
    return f"{first['label']} (`{first['name']}`)", first["loss"] or ""


def _measured(seeds: Seeds, name: str) -> list[float]:
    return [result.content["metrics"][name] for result in seeds]


def _overlaps(seeds: Seeds) -> list[float]:
    return [result.content["similarities"]["S"] for result in seeds]


def _row(seeds: Seeds, kind: str, judged: bool) -> tuple[str, ...]:
    contents = [result.content for result in seeds]
    interval = interval_text(over_queries(np.mean([result.shares for result in seeds], axis=0)), "{:.1f}")
    cells = [
        *_model_cells(seeds),
        str(len(seeds)),
        *(f"{statistics.fmean(_measured(seeds, name)):.1f}" for name in RECALLS),
        f"{with_spread(_measured(seeds, 'rsum'), mean_form='**{}**')}<br>{interval}",
        with_spread(_overlaps(seeds), "{:.3f}"),
    ]
    if judged:
        agreement = [found["human_agreement"]["tau_c"] for found in contents if found["human_agreement"]]
        cells.append(f"{statistics.fmean(agreement):.3f}" if agreement else "")
    if kind == "single":
        chosen = [list(found["selected"][0].values())[-1]["rsum"] for found in contents if "selected" in found]
        cells.append(f"{statistics.fmean(chosen):.1f}" if chosen else "")
        trained = [found for found in contents if "training" in found]
        cells.append(f"{statistics.median(found['training']['seconds'] for found in trained):.0f}" if trained else "")
        cells.append(f"{max(found['peak_memory']['bytes'] for found in trained) / 2**30:.1f}" if trained else "")
    return tuple(cells)


def _paper_row(seeds: Seeds, published: tuple[float, float] | None) -> tuple[str, ...]:
    return (
        *_model_cells(seeds),
        " and ".join(map(str, published)) if published else "",
        str(len(seeds)),
        *(with_spread(_measured(seeds, name)) for name in ("i2t_r1", "t2i_r1")),
        with_spread(_measured(seeds, "rsum"), mean_form="**{}**"),
        with_spread(_overlaps(seeds), "{:.3f}"),
    )


def _overlaps_text(measured: dict[str, list[Result]], order: Sequence[str]) -> str:
    by_overlap = sorted(order, key=lambda name: statistics.fmean(_overlaps(measured[name])))
    if by_overlap == list(order):
        return "The order by S is the same."
    return f"The order by S differs, least overlap first: {', '.join(f'`{name}`' for name in by_overlap)}."
