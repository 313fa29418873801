"""Earlier figures of others on the test split of Flickr8k, compared with the rows of the grid."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.pages.plain_table import table
from benchmarks.pages.results_compare import Results

PROTOTYPE = "a prototype"
AUTHORS = "the authors' code"


@dataclass(frozen=True)
class Earlier:
    """An earlier rsum, and the row of the grid that is closest to it."""

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
    Earlier("best-ensemble-both", "the best ensemble", "a goal", 360.0),
)
HEAD = """
## Against earlier figures

On the same test split, before Quintet had results. *Reached*: the mean over seeds is not lower. *Within the interval*:
it is lower by less than half of the 95 % interval over queries.

"""


def earlier_text(results: Results, earlier: Sequence[Earlier] = EARLIER) -> str:
    """The table of those whose row is measured; empty if none is."""
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
    columns = ("what", "source", "rsum", "here", "difference", "verdict")
    return HEAD + table(columns, lines) + "\n" if lines else ""
