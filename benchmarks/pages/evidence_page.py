"""Write docs/evidence.md from the files under benchmarks/results/evidence. No measured number is typed.

python -m benchmarks.pages.evidence_page
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.grids.evidence_grid import FILTERS, MIDDLE, SEEDS, Row, rows
from benchmarks.pages.evidence_claims import (
    PLAIN,
    SMALLER,
    TRUTH,
    Claim,
    cleared,
    first_lines,
    order,
    searched,
    setting,
)
from benchmarks.pages.evidence_claims import claims as all_claims
from benchmarks.pages.evidence_numbers import RESULTS, SETTINGS, Effect, Runs, gain, mean_of, name_of, read_runs
from benchmarks.pages.plain_table import table
from benchmarks.pages.results_compare import interval_text
from quintet.files import write_text

PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"
TEXT = Path(__file__).parent / "evidence_text.md"  # written by hand, with places for what is measured
LISTS = ("plain", "truth")
COLUMNS = ("comparison", "verdict", "effect", "over seeds", "over queries", "by truth", "i2t", "t2i")


def number(value: float) -> str:
    return f"{value:+.1f}".replace("-0.0", "+0.0")


def verdict(claim: Claim, label: str, effect: Effect) -> str:
    return "this setting cannot show it" if label in claim.cannot else effect.verdict


def cells(label: str, effect: Effect, verdict: str = "") -> tuple[str, ...]:
    if not effect.seeds:
        return (label, effect.verdict, "", "", "", "", "", "")
    truth = f"{number(effect.mean('test_true'))}<br>{interval_text(effect.over_seeds('test_true'))}"
    return (
        label,
        f"**{verdict or effect.verdict}**",
        number(effect.mean()),
        interval_text(effect.over_seeds()),
        interval_text(effect.over_queries),
        truth.removesuffix("<br>"),
        *(number(effect.way(direction)) for direction in ("i2t", "t2i")),
    )


def first_table(runs: Runs) -> str:
    lines = [cells(claim, Effect(runs, weights))[:5] for claim, weights in first_lines(runs)]
    return table(("claim", "verdict", "effect on rsum", "over seeds", "over queries"), lines)


def answer(runs: Runs) -> str:
    """Three sentences: should I use offline negatives, and which loss?"""
    small, large, best, long, ahead, clear = (
        Effect(runs, weights)
        for weights in (
            mean_of([searched(runs, *one) for one in SMALLER]),
            searched(runs, 16000, 128),
            searched(runs, 16000, 32),
            gain(16000, 128, "online-x2"),
            mean_of(
                [order("AdapOffQuin", "OffTri", size, "plain", batch) for size, batch in SETTINGS if size < MIDDLE]
            ),
            mean_of([cleared(*one) for one in SETTINGS]),
        )
    )
    return (
        "**On a few thousand images, no: train the triplet loss on the hardest negatives of the batch**; the second "
        f"round with mined negatives changed rsum by {number(small.mean())} on 2,000 to 8,000 scenes, by "
        f"{number(large.mean())} on 16,000 in batches of 128, and by {number(best.mean())} in batches of 32, where a "
        "larger batch is the better remedy.\n"
        f"**First search the learning rate, then train longer**: twice the epochs of the first round, which costs as "
        f"much as a second, brought {number(long.mean())} on 16,000 scenes in batches of 128.\n"
        f"**If you mine, take AdapOffQuin**, {number(ahead.mean())} against OffTri on 2,000 and 4,000 scenes (no "
        "difference seen on 16,000), and do not expect much of filters: lists without any false negative changed rsum "
        f"by {number(clear.mean())} by the corpus's pairs and by {number(clear.mean('test_true'))} by what is true."
    )


def claim_text(claim: Claim, runs: Runs) -> str:
    made = [(label, Effect(runs, weights)) for label, weights in claim.lines]
    counts = Counter(verdict(claim, *one) for one in made)
    counted = ", ".join(f"{name}: {count}" for name, count in counts.items())
    return (
        f"### {claim.title}\n\nOf {len(made)} comparisons, {counted}. {claim.reading}\n\n"
        f"{table(COLUMNS, [cells(*one, verdict(claim, *one)) for one in made])}\n"
    )


# What else the files say


def condition_text(runs: Runs) -> str:
    """The share of false negatives in the lists, and what the corpus is like."""
    lines = []
    for size, batch in SETTINGS:
        made = list(runs.get(name_of(size, batch, "lists"), {}).values())
        if made:
            plain = [one["filters"]["plain"] for one in made]
            first = [one["false_by_rank"] for one in made]
            spread = [one["images_a_text_is_true_of"] for one in made]
            lines.append(
                (
                    setting(size, batch),
                    len(made),
                    *(f"{100 * statistics.fmean(one[side][0] for one in first):.0f} %" for side in ("texts", "images")),
                    *(
                        f"{100 * statistics.fmean(one[side]['true_in_list'] for one in plain):.0f} %"
                        for side in ("texts", "images")
                    ),
                    f"{statistics.fmean(one['mean'] for one in spread):.0f}",
                    f"{100 * statistics.fmean(one['above_5'] for one in spread):.0f} %",
                )
            )
    columns = ("lists", "seeds", "first text true", "first image true", "texts true", "images true")
    return table((*columns, "images a text is true of", "texts true of more than 5"), lines)


def filters_text(runs: Runs) -> str:
    """What each filter keeps of true and of wrong candidates."""
    made = list(runs[name_of(MIDDLE, 128, "lists")].values())
    lines = []
    for name in FILTERS:
        found = [one["filters"][name] for one in made]
        numbers = [
            f"{100 * statistics.fmean(one[side][key] for one in found):.0f} %"
            for side in ("texts", "images")
            for key in ("true_in_list", "true_kept", "wrong_kept")
        ]
        lines.append((f"`{name}`", *numbers, f"{statistics.fmean(one['images']['empty'] for one in found):,.0f}"))
    per_side = [
        f"{side}: {what}" for side in ("texts", "images") for what in ("true in list", "true kept", "wrong kept")
    ]
    return table(("filter", *per_side, "empty image lists"), lines)


BANDS = {"1": ["1"], "2-10": ["2-5", "6-10"], "11-50": ["11-20", "21-50"], "51-200": ["51-100", "101-200"]}


def ranks_text(runs: Runs) -> str:
    """Cross-retrieval ranks before and after."""
    lines = []
    for size, batch in SETTINGS:
        for what, label in (("online", "first round"), (PLAIN, "AdapOffQuin"), (TRUTH, "AdapOffQuin, cleared lists")):
            made = [one["cross_retrieval"] for one in runs.get(name_of(size, batch, what), {}).values()]
            bands = [
                statistics.fmean(100 * sum(one[part] for part in parts) / sum(one.values()) for one in made)
                for parts in (*BANDS.values(), [">200"])
            ]
            lines.append((f"{size:,}, {batch}", label, *(f"{share:.1f}" for share in bands)))
    return table(("scenes, batch", "after", *BANDS, "over 200"), lines)


def curves_text(runs: Runs) -> str:
    """Validation rsum early, in the middle and at the end, of the two rounds."""
    lines = []
    for size, batch in SETTINGS:
        for what, label in (("online", "first round"), (PLAIN, "AdapOffQuin"), (TRUTH, "AdapOffQuin, cleared lists")):
            curves = [one["stages"]["only"]["rsum"] for one in runs.get(name_of(size, batch, what), {}).values()]
            parts = [
                statistics.fmean(curve[0] for curve in curves),
                statistics.fmean(curve[len(curve) // 2] for curve in curves),
                statistics.fmean(max(curve) for curve in curves),
                statistics.fmean(max(curve) - curve[-1] for curve in curves),
            ]
            lines.append((f"{size:,}, {batch}", label, *(f"{value:.1f}" for value in parts)))
    return table(("scenes, batch", "run", "first validation", "half way", "best", "best minus last"), lines)


def runs_text(runs: Runs) -> str:
    """Every measured training."""
    lines = []
    for name, seeds in runs.items():
        made = [one for one in seeds.values() if "test" in one]
        if made:
            test = [one["test"]["rsum"] for one in made]
            lines.append(
                (
                    f"`{name}`",
                    ", ".join(str(one["seed"]) for one in made),
                    " / ".join(f"{value:.1f}" for value in test),
                    f"{statistics.fmean(one['test_true']['rsum'] for one in made):.1f}",
                    f"{statistics.fmean(one['dev']['rsum'] for one in made):.1f}",
                    f"{made[0]['steps']:,}",
                    f"{statistics.fmean(one['training_seconds'] for one in made):.0f}",
                )
            )
    return table(("row", "seeds", "test rsum", "by truth", "dev rsum", "steps", "seconds"), lines)


def missing_text(missing: Sequence[Row]) -> str:
    seeds: dict[str, list[int]] = defaultdict(list)
    for one in missing:
        seeds[one.name].append(one.seed)
    lines = "\n".join(
        f"    python -m benchmarks.measure.evidence --only '{name}'    # seed {', '.join(map(str, of))}"
        for name, of in seeds.items()
    )
    if not missing:
        return "Every row of the grid is made."
    return f"{len(missing)} rows of the grid. Each line makes the row for all seeds that have no file:\n\n{lines}"


def page(runs: Runs) -> str:
    known = rows()
    small = Effect(runs, mean_of([searched(runs, *one) for one in SMALLER]))
    missing = [one for one in known if one.seed not in runs.get(one.name, {})]
    return TEXT.read_text(encoding="utf-8").format(
        answer=answer(runs),
        first=first_table(runs),
        done=len(known) - len(missing),
        total=len(known),
        seeds=len(SEEDS),
        claims="\n".join(claim_text(claim, runs) for claim in all_claims(runs)),
        condition=condition_text(runs),
        filters=filters_text(runs),
        ranks=ranks_text(runs),
        curves=curves_text(runs),
        middle=MIDDLE,
        small=number(small.mean()),
        small_i2t=number(small.way("i2t")),
        small_true=number(small.mean("test_true")),
        longer_lists=number(
            Effect(runs, gain(MIDDLE, 128, f"{PLAIN}-h4")).mean() - Effect(runs, gain(MIDDLE, 128)).mean()
        ),
        runs=runs_text(runs),
        missing=missing_text(missing),
    )


def main(results: Path = RESULTS, to: Path = PAGE) -> None:
    write_text(to, page(read_runs(results)))
    print(f"written: {to}")


if __name__ == "__main__":
    main()
