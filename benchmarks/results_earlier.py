"""Figures that were known before Quintet measured anything, beside its own: the same test split of Flickr8k."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from plain_table import table
from results_compare import Results

PROTOTYPE = "a throw-away prototype"
AUTHORS = "the authors' code"


@dataclass(frozen=True)
class Earlier:
    """Somebody's rsum, and the row of the grid that comes nearest."""

    row: str
    what: str
    whose: str
    rsum: float


EARLIER = (
    Earlier(
        "vse-avg-online-lite2",
        "VSE++ on EfficientNet-Lite2, average pooling, words learned, 15 epochs",
        PROTOTYPE,
        249.2,
    ),
    Earlier("scan-t2i-online-lite2", "SCAN t2i on EfficientNet-Lite2, words learned, 15 epochs", PROTOTYPE, 272.0),
    Earlier(
        "scan-t2i-online-lite2",
        "SCAN on EfficientNet-Lite2, hardest negatives from the first step, 5 epochs",
        AUTHORS,
        189.0,
    ),
    Earlier("vsrn-online", "VSRN on EfficientNet-Lite2, 12 epochs, collapsed", AUTHORS, 41.0),
    Earlier("heads", "heads over frozen towers, two minutes on a CPU", PROTOTYPE, 306.0),
    Earlier("heads-both", "heads over frozen towers, two image towers", PROTOTYPE, 326.0),
    Earlier("best-ensemble-both", "what the best ensemble should reach", "nobody's: a goal", 360.0),
)
HEAD = """
## Against earlier figures

Of the same test split, before Quintet had results of its own. *Reached* means that the mean over seeds is not
lower; *within the interval*, that it is lower by less than half of the 95 % interval over queries.

"""


def earlier_text(results: Results, earlier: Sequence[Earlier] = EARLIER) -> str:
    """The table of those whose row is measured; nothing where none is."""
    lines = []
    for one in earlier:
        found = [result.content for result in results.get(one.row, {}).values()]
        if not found:
            continue
        ours = [content["metrics"]["rsum"] for content in found]
        half = statistics.mean((high - low) / 2 for low, high in (content["intervals"]["rsum"] for content in found))
        mean, spread = statistics.mean(ours), f" ± {statistics.stdev(ours):.1f}" if len(ours) > 1 else ""
        gap = mean - one.rsum
        reading = "reached" if gap >= 0 else "within the interval" if -gap < half else "missed"
        lines.append(
            (one.what, one.whose, f"{one.rsum:.0f}", f"{mean:.1f}{spread} (`{one.row}`)", f"{gap:+.1f}", reading)
        )
    columns = ("what", "whose", "rsum", "here", "difference", "reading")
    return HEAD + table(columns, lines) + "\n" if lines else ""
