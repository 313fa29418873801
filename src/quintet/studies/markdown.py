"""A study's summary as Markdown tables, in the layouts of the papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quintet.evaluation.metrics import CUTS
from quintet.studies.published import VALIDATION, same_setting

DIRECTIONS = {"i2t": "text", "t2i": "image"}  # what is retrieved: the papers' names of the two directions
NOTHING = "-"


def render_tables(summary: dict[str, Any]) -> str:
    """All tables of a summary, with notes. They are made from the summary alone."""
    parts = [f"# Study {summary['study']}", _preamble(summary)]
    for table in summary["tables"]:
        parts += [f"## {table['title']}", _layout(summary, table)]
    parts += [f"## Difference to {_label(summary, summary['reference'])}, seed by seed", _gains(summary)]
    for extra in summary["extras"].values():
        parts += [f"## {extra['title']}", _extra(extra)]
    notes = list(_notes(summary))
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are padded to their widest cell. The first column is left-aligned, others right.

    >>> print(markdown_table(["model", "R@1"], [["VSRN", "9.5"]]))
    | model | R@1 |
    |:------|----:|
    | VSRN  | 9.5 |
    """
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "| "
        + " | ".join(c.ljust(w) if not n else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in (header, *rows)
    ]
    rule = "|" + "|".join(f":{'-' * (w + 1)}" if not n else f"{'-' * (w + 1)}:" for n, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _preamble(summary: dict[str, Any]) -> str:
    seeds = summary["seeds"]
    spread = (
        f"Means over {len(seeds)} seeds ({', '.join(map(str, seeds))}), ± their sample standard deviation."
        if len(seeds) > 1
        else f"One seed ({seeds[0]}), so no spread is known."
    )
    together = any(variant.get("ensemble") for variant in summary["variants"].values())
    models = (
        "Single models, and ensembles (the mean of the scores of two) where a table says so"
        if together
        else ("Single models")
    )
    return (
        f"Base recipe {summary['base']}; corpus {summary['corpus']}, split {summary['split']}: {summary['images']:,} "
        f"images, {summary['texts']:,} texts.\n"
        f"{models}, each at its best validation epoch; recalls in per cent.\n{spread}"
    )


def _layout(summary: dict[str, Any], table: dict[str, Any]) -> str:
    header = ["model", *table.get("marks", ()), *(_heading(name) for name in table["columns"])]
    rows = []
    sections = [*([VALIDATION] if table["validation"] else []), *summary["protocols"]]
    for section in sections:
        rows.append([_section(summary, section), *("" for _ in header[1:])])
        for row in table["rows"]:
            cells = [_cell(summary, row["variant"], section, name, table["compare"]) for name in table["columns"]]
            rows.append([row["label"], *row["marks"], *cells])
            for printed in _beside(summary, row["published"], section, sections):
                if not printed["values"].keys().isdisjoint(table["columns"]):
                    numbers = [_printed(summary, printed, name) for name in table["columns"]]
                    rows.append([f"published: {printed['place']}", *("" for _ in row["marks"]), *numbers])
    return markdown_table(header, rows)


def _beside(
    summary: dict[str, Any], published: Sequence[dict[str, Any]], section: str, sections: Sequence[str]
) -> list[dict[str, Any]]:
    """What a section shows of the published numbers of a row: those of its own corpus and protocol.

    Where no section has any, the first one shows all of them. Each says what it was measured on.
    """

    def fits(printed: dict[str, Any], one: str) -> bool:
        return same_setting(summary["corpus"], one, summary["images"], printed)

    if any(fits(printed, one) for printed in published for one in sections):
        return [printed for printed in published if fits(printed, section)]
    return list(published) if section == sections[0] else []


def _printed(summary: dict[str, Any], printed: dict[str, Any], name: str) -> str:
    """A number with the digits of ours, or with those that the paper prints where these are more."""
    if name not in printed["values"]:
        return NOTHING
    value = printed["values"][name]
    return f"{value:.{max(summary['digits'].get(name, 1), len(str(value).partition('.')[2]))}f}"


def _heading(name: str) -> str:
    """`i2t_r1` is the text R@1; only the first recall of a direction names it, as a group heading would."""
    if name.endswith("_medr"):
        return "Med r"
    direction, _, cut = name.partition("_r")
    if direction not in DIRECTIONS:
        return name
    return f"{DIRECTIONS[direction]} R@{cut}" if cut == str(CUTS[0]) else f"R@{cut}"


def _section(summary: dict[str, Any], protocol: str) -> str:
    if protocol == VALIDATION:
        return f"**{summary['validation']:,} validation images**"
    return f"**{summary['images']:,} test images, {protocol}**"


def _cell(summary: dict[str, Any], key: str, protocol: str, name: str, compare: str | None) -> str:
    found = summary["variants"][key]["protocols"][protocol]
    if not found["seeds"]:
        return NOTHING
    digits = summary["digits"].get(name, 1)
    cell = with_spread(found["mean"][name], found["spread"] and found["spread"][name], digits)
    other = summary["variants"][compare]["protocols"][protocol] if compare else None
    if other is None or not other["seeds"]:
        return cell
    return f"{cell} ({signed(found['mean'][name] - other['mean'][name], digits)})"


def with_spread(mean: float, spread: float | None, digits: int = 1) -> str:
    """
    >>> with_spread(72.84, 0.41), with_spread(72.84, None)
    ('72.8 ± 0.4', '72.8')
    """
    return f"{mean:.{digits}f}" if spread is None else f"{mean:.{digits}f} ± {spread:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """
    >>> signed(-0.04), signed(1.25), signed(-3.0)
    ('+0.0', '+1.2', '-3.0')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _gains(summary: dict[str, Any]) -> str:
    """rsum against the reference: over seeds, and each seed with the p-value of its paired test."""
    rows = []
    for protocol in summary["protocols"]:
        rows.append([_section(summary, protocol), "", ""])
        for key, variant in summary["variants"].items():
            if key == summary["reference"]:
                continue
            found = variant["protocols"][protocol]["difference"]
            spread = "" if not found["spread"] else f" ± {found['spread']['rsum']:.1f}"
            mean = f"{signed(found['mean']['rsum'])}{spread}" if found["seeds"] else NOTHING
            rows.append([variant["label"], mean, ", ".join(_tests(variant, protocol)) or NOTHING])
    note = "Behind each seed's difference: p of a sign-flip test over the test groups. It does not cover other seeds."
    return markdown_table(["model", "rsum", "each seed (p)"], rows) + "\n\n" + note


def _tests(variant: dict[str, Any], protocol: str) -> Iterator[str]:
    for run in variant["runs"]:
        test = run["protocols"].get(protocol, {}).get("paired")
        if test is not None:
            yield f"{signed(test['rsum']['difference'])} ({test['rsum']['p_value']:.4f})"


def _extra(extra: dict[str, Any]) -> str:
    if not extra["rows"]:
        return str(extra.get("reason", "nothing was measured"))
    columns = extra["columns"]
    rows = []
    for row, published in zip(extra["rows"], extra["published"], strict=True):
        rows.append([column["form"].format(row[column["key"]]) for column in columns])
        for printed in published:
            cells = [printed["values"].get(column["key"], "") for column in columns[1:]]
            rows.append([f"published: {printed['place']}", *(str(cell) for cell in cells)])
    figures = "".join(f"\n\n![{extra['title']}]({figure})" for figure in extra.get("figures", ()))
    return markdown_table([column["heading"] for column in columns], rows) + figures


def _notes(summary: dict[str, Any]) -> Iterator[str]:
    yield from summary["notes"]
    for variant in summary["variants"].values():
        for run in variant["runs"]:
            who = f"{variant['label']}, seed {run['seed']}"
            if run["status"] != "trained":
                yield f"{who}: {run['status']}: {run['reason']}"
            yield from (f"{who}: {note}" for note in run["notes"])
            for protocol, found in run["protocols"].items():
                if found["at_chance"]:
                    rsum, chance = (f"{found[name]['rsum']:.1f}" for name in ("metrics", "chance"))
                    yield f"{who}: not clearly better than guessing ({protocol}: rsum {rsum}, guessing {chance})"


def _label(summary: dict[str, Any], key: str) -> str:
    return str(summary["variants"][key]["label"])
