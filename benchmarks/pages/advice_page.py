"""Write docs/advice.md from advice_text.md, with its numbers from the result files.

python -m benchmarks.pages.advice_page

In braces, `GRID/ROW` is the mean test rsum over seeds, `GRID/ROW - GRID/ROW` the mean difference in the seeds of both;
`runs:` and `collapsed:` count the files of rows that begin so; `true:` and `kept:` are of mined lists.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.pages.evidence_numbers import RESULTS as EVIDENCE
from benchmarks.pages.evidence_numbers import read_runs
from quintet.files import read_json, write_text

RESULTS = EVIDENCE.parent
TEXT = Path(__file__).parent / "advice_text.md"
PAGE = Path(__file__).parents[2] / "docs" / "advice.md"


def rsums(row: str) -> dict[int, float]:
    """Seed -> test rsum."""
    found = {}
    for path in sorted(RESULTS.glob(f"{row}-seed[0-9].json")):
        content = read_json(path)
        found[int(content["seed"])] = float(content.get("metrics", content.get("test"))["rsum"])
    if not found:
        raise SystemExit(f"the page names {row}, which has no result file")
    return found


def files(start: str) -> list[dict[str, Any]]:
    """Trainings of rows that begin so."""
    made = [read_json(path) for path in sorted(RESULTS.glob(f"{start}*.json"))]
    return [one for one in made if "metrics" in one or "test" in one]


def collapsed(content: dict[str, Any]) -> bool:
    return any("collapsed" in note for note in content["notes"])


def plain(row: str) -> list[dict[str, Any]]:
    return [read_json(path)["filters"]["plain"] for path in sorted(RESULTS.glob(f"{row}-seed[0-9].json"))]


def value(field: str) -> str:
    """
    >>> value("runs:flickr8k/heads-seed")
    '3'
    """
    kind, _, rest = field.partition(":")
    if kind == "runs":
        return str(len(files(rest)))
    if kind == "collapsed":
        return str(sum(map(collapsed, files(rest))))
    if kind == "true":
        shares = [[100 * one[side]["true_in_list"] for one in plain(rest)] for side in ("texts", "images")]
        texts, images = map(statistics.fmean, shares)
        return f"{texts:.0f} % of the texts and {images:.0f} % of the images"
    if kind == "kept":
        made = [one["filters"][rest]["texts"]["true_kept"] for one in read_runs()["vse-8000-b128-lists"].values()]
        return f"{100 * statistics.fmean(made):.0f} %"
    one, _, other = field.partition(" - ")
    if not other:
        return f"{statistics.fmean(rsums(one).values()):.1f}"
    first, second = rsums(one), rsums(other)
    return f"{statistics.fmean(first[seed] - second[seed] for seed in first.keys() & second.keys()):+.1f}"


def page() -> str:
    return re.sub(r"\{([^{}]+)\}", lambda found: value(found[1]), TEXT.read_text(encoding="utf-8"))


def main(to: Path = PAGE) -> None:
    write_text(to, page())
    print(f"written: {to}")


if __name__ == "__main__":
    main()
