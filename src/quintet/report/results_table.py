"""The table of results: both directions, rsum, intervals. Single models and ensembles have one each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from quintet.evaluation.human_agreement import Agreement
from quintet.evaluation.metrics import DIRECTIONS, RECALLS
from quintet.evaluation.result import Result

WORDS = {"i2t": "image to text", "t2i": "text to image"}
HEADINGS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "medr"}
COLUMNS = [f"{way}_{name}" for way in DIRECTIONS for name in HEADINGS]


def results_html(results: Mapping[str, Result], caption: str, people: Mapping[str, Agreement] | None = None) -> str:
    """One table, the best recalls in bold; with `people` a column of their agreement. No results: nothing."""
    if not results:
        return ""
    best = {name: max(result.metrics[name] for result in results.values()) for name in (*RECALLS, "rsum")}
    ways = "".join(f'<th scope="colgroup" colspan="{len(HEADINGS)}">{WORDS[way]}</th>' for way in DIRECTIONS)
    heads = [*HEADINGS.values(), *HEADINGS.values(), "rsum", *(["tau-c"] if people else [])]
    columns = "".join(f'<th scope="col">{heading}</th>' for heading in heads)
    rows = []
    for name, result in results.items():
        cells = [_cell(result, column, best) for column in (*COLUMNS, "rsum")]
        rows.append(_row(escape(name), [*cells, *([_agreement(people.get(name))] if people else [])]))
    chance = next(iter(results.values())).chance
    last = [_number(column, chance[column]) for column in (*COLUMNS, "rsum")]
    rows.append(_row("chance", [*last, *(["0.000"] if people else [])], "soft"))
    return (
        f'<div class="wide results" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr><td></td>{ways}<td></td>{'<td></td>' if people else ''}</tr>"
        f"<tr><td></td>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(heading: str, cells: list[str], kind: str = "") -> str:
    return f'<tr class="{kind}"><th scope="row">{heading}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _cell(result: Result, name: str, best: Mapping[str, float]) -> str:
    number = _number(name, result.metrics[name])
    shown = f"<b>{number}</b>" if result.metrics[name] == best.get(name) else number
    interval = result.intervals.get(name)
    return shown + ("" if interval is None else _small(f"{interval[0]:.1f} to {interval[1]:.1f}"))


def _number(name: str, value: float) -> str:
    return f"{value:g}" if name.endswith("medr") else f"{value:.1f}"


def _agreement(found: Agreement | None) -> str:
    if found is None:
        return ""
    interval = "" if found.interval is None else _small(f"{found.interval[0]:.3f} to {found.interval[1]:.3f}")
    return f"{found.tau_c:.3f}{interval}"


def _small(text: str) -> str:
    return f'<br><span class="soft">{text}</span>'
